"""The page in a real browser: sort, filter, hover, enlarge, on a wide and on a narrow window."""

import os
import re
import shutil

import pytest

from ..command import run as command
from .made import COEF, ERRORS, LABELS, NUMBERS, make_chosen, make_classified

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api")
    path = os.environ.get("CHROMIUM") or shutil.which("chromium")
    if path is None:
        pytest.skip("no Chromium: CHROMIUM names none, and none is on the path")
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    make_classified(folder / "results/classify")
    make_chosen(folder / "results/cluster-auto")
    make_chosen(folder / "results/features", images=False)
    command("report", folder / "results", "--output", folder)
    return folder / "report.html"


@pytest.fixture(params=[1280, 390])
def page(browser, file, request):
    """The page, which may say nothing on the console and fetch nothing until the test ends."""
    page = browser.new_page(viewport={"width": request.param, "height": 900})
    said, fetched = [], []
    page.on("console", lambda line: line.type in ("error", "warning") and said.append(line.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda asked: fetched.append(asked.url))
    page.goto(file.as_uri())
    yield page
    assert not said, said
    assert [url for url in fetched if not url.startswith("data:")] == [file.as_uri()]
    page.close()


def errors_shown(page):
    table = page.locator("table", has_text="10.00 ± 1")
    cells = table.locator("tbody tr:visible td:nth-child(2)").all_inner_texts()
    return table, [float(cell.split()[0]) for cell in cells]


def test_a_click_on_a_heading_sorts_by_number(page):
    table, shown = errors_shown(page)
    assert shown == list(ERRORS)
    heading = table.get_by_role("button", name="error %")
    heading.click()
    assert errors_shown(page)[1] == sorted(ERRORS)
    heading.click()
    assert errors_shown(page)[1] == sorted(ERRORS, reverse=True)
    assert table.locator("th[aria-sort=descending]").inner_text() == "error %"


def test_words_filter_rows(page):
    section = page.locator("section", has_text="10.00 ± 1")
    section.get_by_label("Filter rows").first.fill("± TWI")
    assert errors_shown(page)[1] == [3.25]
    assert section.get_by_text("1 of 5 rows").is_visible()
    section.get_by_label("Filter rows").first.fill("")
    assert len(errors_shown(page)[1]) == 5


def test_a_click_enlarges_a_figure(page):
    picture = page.locator(".picture").first
    small = picture.locator("img").bounding_box()["width"]
    picture.click()
    large = page.locator("dialog img")
    assert large.is_visible()
    assert large.bounding_box()["width"] > 1.2 * small
    page.keyboard.press("Escape")
    assert not large.is_visible()


def test_the_page_is_as_wide_as_the_window(page):
    for plot in page.locator(".plot").all():
        plot.scroll_into_view_if_needed()
        plot.locator("canvas").first.wait_for()
    width = page.viewport_size["width"]
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    for plot in page.locator(".plot").all():
        assert 250 < plot.locator("canvas").first.bounding_box()["width"] <= width


def test_an_entry_under_the_mouse_shows_its_two_points(page):
    section = page.locator("section", has_text="cluster mine.csv").first
    plot = section.locator(".matrices .plot").first
    plot.scroll_into_view_if_needed()
    plot.locator("canvas").first.wait_for()
    plot.evaluate("e => scrollTo(0, e.getBoundingClientRect().top + scrollY - 300)")
    box = plot.locator("canvas").first.bounding_box()
    shown = section.locator(".points")
    seen = set()
    for across, down in ((0.2, 0.6), (0.6, 0.2), (0.6, 0.6)):
        page.mouse.move(box["x"] + across * box["width"], box["y"] + down * box["height"])
        page.wait_for_timeout(300)
        row, column = map(int, re.findall(r"(?:row|column): (\d+)", shown.inner_text()))
        value = float(re.search(r"Entry ([\d.]+)", shown.inner_text())[1])
        i, j = (int(x) for x in (row - NUMBERS[0], column - NUMBERS[0]))
        assert value == COEF[i, j]
        assert f"row: {row}, cluster {LABELS[i]}" in shown.inner_text()
        tip = page.locator(".bk-tooltip-content", has_text=f"{row}, cluster {LABELS[i]}")
        tip.wait_for()
        seen.add((row, column))
    assert len(seen) == 3
    pixels = shown.locator("canvas").first.evaluate(
        "e => [...e.getContext('2d').getImageData(0, 0, 2, 2).data]"
    )
    assert pixels[::4] == [round(255 * (4 * i + k) / 15) for k in range(4)]


def test_another_setting_and_other_colours_can_be_drawn(page):
    plot = page.locator("section", has_text="10.00 ± 1").locator(".plot").first
    plot.scroll_into_view_if_needed()
    choices = plot.locator("select")
    choices.first.wait_for()
    assert choices.first.input_value() == "row"
    looks = {plot.locator("canvas").first.screenshot()}
    for place, name in ((0, "learning_rate"), (2, "row")):
        choices.nth(place).select_option(name)
        page.wait_for_timeout(500)
        looks.add(plot.locator("canvas").first.screenshot())
    assert len(looks) == 3
