"use strict"

const make = (tag, place, words = "") => {
  const made = document.createElement(tag)
  made.textContent = words
  place.append(made)
  return made
}

// Numbers come before words, and both before empty cells, upwards and downwards.
const valueOf = (cell) => {
  const text = cell.textContent.trim()
  const number = /^[<±]?\s*[-+]?[\d,]*\.?\d+(e[-+]?\d+)?/i.exec(text)
  if (text === "" || text === "-") return [2, ""]
  return number ? [0, Number(number[0].replace(/[<±,\s]/g, ""))] : [1, text]
}

const sortBy = (table, column, sign) => {
  const body = table.tBodies[0]
  const rows = [...body.rows].map((row) => [valueOf(row.cells[column]), row])
  rows.sort(([[kind, a]], [[other, b]]) =>
    kind - other || sign * (kind === 0 ? a - b : a.localeCompare(b)))
  body.append(...rows.map(([, row]) => row))
}

for (const table of document.querySelectorAll("table:not(.plain)")) {
  const heads = [...table.tHead.rows[0].cells]
  heads.forEach((head, column) => {
    const button = document.createElement("button")
    button.append(...head.childNodes)
    head.append(button)
    button.onclick = () => {
      const up = head.getAttribute("aria-sort") !== "ascending"
      heads.forEach((other) => other.removeAttribute("aria-sort"))
      head.setAttribute("aria-sort", up ? "ascending" : "descending")
      sortBy(table, column, up ? 1 : -1)
    }
  })
  const rows = [...table.tBodies[0].rows]
  if (rows.length < 4) continue
  const bar = document.createElement("label")
  bar.className = "filter"
  table.parentElement.before(bar)
  const input = make("input", bar)
  input.type = "search"
  input.placeholder = "Rows that contain all these words"
  input.setAttribute("aria-label", "Filter rows")
  const count = make("output", bar, `${rows.length} rows`)
  input.oninput = () => {
    const words = input.value.toLowerCase().split(/\s+/)
    for (const row of rows) {
      const text = row.textContent.toLowerCase()
      row.hidden = !words.every((word) => text.includes(word))
    }
    count.textContent = `${rows.filter((row) => !row.hidden).length} of ${rows.length} rows`
  }
}

const dialog = document.querySelector("dialog")
dialog.onclick = () => dialog.close()
for (const picture of document.querySelectorAll(".picture")) {
  picture.onclick = () => {
    dialog.firstElementChild.src = picture.firstElementChild.src
    dialog.showModal()
  }
}

const read = (place) => JSON.parse(place.querySelector("script").textContent)

// Charts are drawn when they come near the window.
const watcher = new IntersectionObserver((seen) => {
  for (const { isIntersecting, target } of seen) {
    if (!isIntersecting) continue
    watcher.unobserve(target)
    Bokeh.embed.embed_item(read(target), target)
  }
}, { rootMargin: "600px" })
document.querySelectorAll(".plot").forEach((plot) => watcher.observe(plot))

const points = {}
for (const place of document.querySelectorAll(".points")) {
  points[place.id] = read(place)
  if (points[place.id].levels) {
    points[place.id].levels = Uint8Array.from(atob(points[place.id].levels), (c) => c.charCodeAt(0))
  }
  make("p", place, "No entry yet.")
}

// A picture of an image, or bars of the features of a point.
const drawPoint = (place, { levels, shape }, number) => {
  const size = shape.reduce((a, b) => a * b, 1)
  const values = levels.subarray(number * size, (number + 1) * size)
  const image = shape.length > 1
  const [height, width] = image ? shape : [64, size]
  const canvas = make("canvas", place)
  Object.assign(canvas, { width, height })
  canvas.style.height = "96px"
  canvas.style.width = image ? `${(96 * width) / height}px` : "100%"
  const drawn = new ImageData(width, height)
  const pixel = (k) => {
    if (image) return shape[2] ? [...values.subarray(3 * k, 3 * k + 3)] : Array(3).fill(values[k])
    const above = height - Math.floor(k / width) > (values[k % width] * height) / 255
    return above ? [255, 255, 255] : [11, 95, 165]
  }
  for (let k = 0; k < width * height; k++) drawn.data.set([...pixel(k), 255], 4 * k)
  canvas.getContext("2d").putImageData(drawn, 0, 0)
}

window.showEntry = (key, column, row, value) => {
  const place = document.getElementById(key)
  const { word, numbers, labels, levels, shape } = points[key]
  place.replaceChildren()
  make("p", place, `Entry ${value.toPrecision(4)}`)
  for (const [name, number] of [["row", row], ["column", column]]) {
    const part = make("div", place)
    make("p", part, `${name}: ${numbers[number]}, ${word} ${labels[number]}`)
    if (levels) drawPoint(part, { levels, shape }, number)
  }
  if (!levels) make("p", place, "The points are too large to be kept.")
}
