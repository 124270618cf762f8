"""Writes `docs/published.md`: all that five papers claim, and what our runs say of it.

``python docs/_ext/published_page.py`` writes it again after `docs/published/` or a run in
`docs/results` has changed. All numbers of ours are read from the runs. With ``--check FILE`` it
compares the items with a list of the papers' items, and exits with status 1 if they differ.
"""

import argparse
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from published_runs import Row, rate_note, read_ours
from result_values import RESULTS

from twinsolve.bench.tables import markdown

DOCS = RESULTS.parent
PAPERS = ("SE", "IF", "AO", "NT", "SK")
VERDICTS = (
    "holds", "holds in direction", "mixed", "inconclusive", "does not hold", "not run",
    "out of reach", "no claim",
)  # fmt: skip
_WITHOUT_OURS = ("not run", "out of reach", "no claim")
Rows = list[tuple[Row, str, str]]  # a row of an item, our number, the verdict on it
_HEAD = ("", "printed", "ours", "verdict")
_NUMBER = re.compile(r"[-+]?\d[\d,]*\.?\d*(?:e[-+]?\d+)?")


def read_runs() -> Row:
    """Read the head of the page, and the runs with their commands and data."""
    return tomllib.loads((DOCS / "published" / "runs.toml").read_text())


def read_papers() -> dict[str, Row]:
    """Read the papers, each with its items."""
    return {key: tomllib.loads((DOCS / "published" / f"{key}.toml").read_text()) for key in PAPERS}


def page() -> str:
    """Return the whole page in Markdown."""
    known, papers = read_runs(), read_papers()
    listed = [item for paper in papers.values() for item in paper["item"]]
    found = {item["id"]: rows_of(item, known) for item in listed}
    parts = [known["head"], _count_items(papers, found)]
    for paper in papers.values():
        items = [_write_item(item, found[item["id"]], known) for item in paper["item"]]
        parts += [f"## {paper['title']}", paper["about"], *items]
    parts += ["## Runs", _list_runs(known)]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def rows_of(item: Row, known: Row) -> Rows:
    """Return the rows of an item, each with our number and the verdict on it.

    The verdict is that of the row, or what the number says. A printed effect counts where the run
    is of the data of the item.
    """
    found = []
    for row in item["rows"]:
        ours = row.get("ours", {})
        if "run" in ours and not (RESULTS / ours["run"]).exists():
            found.append((row, "-", "not run"))
            continue
        task = row.get("task", item.get("task"))
        same = "run" in ours and known["runs"][ours["run"]]["task"] == task
        cell, verdict = read_ours(ours, row.get("effect") if same else None) if ours else ("-", "")
        found.append((row, cell, row.get("verdict") or verdict or ""))
    return found


def kind_of(verdict: str) -> str:
    """Return a verdict without its width."""
    return verdict.partition(" at ±")[0]


def verdict_on(rows: Rows) -> str:
    """Return the verdict on an item, which is mixed if those on its rows differ."""
    kinds = {kind_of(verdict) for _, _, verdict in rows}
    told = kinds.difference(_WITHOUT_OURS)
    if not told:
        return next(kind for kind in _WITHOUT_OURS if kind in kinds)
    if told == {"holds", "holds in direction"}:
        return "holds in direction"
    return told.pop() if len(told) == 1 else "mixed"


def _write_item(item: Row, rows: Rows, known: Row) -> str:
    """Write an item: what is claimed, the printed table, and a line for each row."""
    name = item["id"].partition("-")[2].replace("-", " ")
    text = [f"### {item['id'].partition('-')[0]} {name}: {item['subject']}", "", item["claim"]]
    if "setting" in item:
        text[-1] += f" ({item['setting']})"
    if "printed" in item:
        lines = [tuple(map(str, line)) for line in item["printed"]["rows"]]
        text += ["", "As printed:", "", *markdown(item["printed"]["columns"], lines)]
    lines = [_write_line(*each, known) for each in rows]
    return "\n".join([*text, "", *markdown(_HEAD, lines)])


def _write_line(row: Row, cell: str, verdict: str, known: Row) -> tuple[str, ...]:
    ours = row.get("ours", {})
    if "twin" in ours:
        cell = f"twin `{ours['twin']}`: {cell}"
    elif "test" in ours:
        cell = f"`{ours['test'].partition('::')[2]}`"
    elif cell != "-":
        run = ours["run"]
        setting = known["runs"][run]["setting"] + rate_note(ours)
        cell += f"; {setting}, [run](results/{run}/summary.md)"
    effect = f" ({row['effect']:+g})" if "effect" in row else ""
    why = f": {row['why']}" if "why" in row else ""
    return row.get("of", ""), f"{row.get('printed', '-')}{effect}", cell, f"**{verdict}**{why}"


def _list_runs(known: Row) -> str:
    """Write a table of the runs and their commands."""
    lines = [
        (f"[{name}](results/{name}/summary.md)" if (RESULTS / name).exists() else name,
         run["task"], f"`{run['command']}`")
        for name, run in known["runs"].items()
    ]  # fmt: skip
    return "\n".join(markdown(("run", "data", "command"), lines))


def _count_items(papers: dict[str, Row], found: dict[str, Rows]) -> str:
    """Write a table of the numbers of items by verdict, with a line for each paper."""
    counts = {}
    for key, paper in papers.items():
        kinds = Counter(verdict_on(found[item["id"]]) for item in paper["item"])
        measured = sum(any("ours" in row for row in item["rows"]) for item in paper["item"])
        counts[key] = [len(paper["item"]), measured, *(kinds[kind] for kind in VERDICTS)]
    counts["all"] = [sum(column) for column in zip(*counts.values(), strict=True)]
    lines = [(key, *map(str, own)) for key, own in counts.items()]
    return "\n".join(markdown(("paper", "items", "with a number or proof", *VERDICTS), lines))


def numbers_in(cells: object) -> Iterator[float]:
    """Yield the numbers of printed cells: of numbers, and of texts that begin with one."""
    if isinstance(cells, dict):
        told = ("columns", "derived", "note", "value")
        cells = [x for name, x in cells.items() if not name.startswith(told)]
    if isinstance(cells, list):
        for each in cells:
            yield from numbers_in(each)
    elif isinstance(cells, int | float):
        yield float(cells)
    elif isinstance(cells, str) and (match := _NUMBER.match(cells.lstrip("("))):
        yield float(match[0].replace(",", ""))


def differences_to(path: Path) -> list[str]:
    """Return how the items differ from those of a list: ids, their order, printed cells."""
    listed = {item["id"]: item for item in tomllib.loads(path.read_text())["item"]}
    own = {item["id"]: item for paper in read_papers().values() for item in paper["item"]}
    found = [f"{id_}: has no item" for id_ in listed if id_ not in own]
    found += [f"{id_}: is not on the list" for id_ in own if id_ not in listed]
    for key in PAPERS:
        there, here = ([x for x in ids if x.startswith(f"{key}-")] for ids in (listed, own))
        if sorted(there) == sorted(here) and there != here:
            found.append(f"{key}: items are not in the order of the paper")
    for id_ in own:
        if id_ in listed:
            found += _compare_cells(own[id_], listed[id_].get("published", []))
    return found


def _compare_cells(item: Row, published: object) -> Iterator[str]:
    """Compare printed tables cell by cell, and single numbers with those in the rows."""
    cells = list(numbers_in(published))
    if isinstance(published, list) or "rows" in published:  # type: ignore[operator]
        own = list(numbers_in(item.get("printed", {}).get("rows", [])))
        if own != cells:
            yield f"{item['id']}: prints the table {own}, not {cells}"
    told = " ".join(row.get("printed", "") for row in item["rows"])
    numbers = {float(x.replace(",", "")) for x in _NUMBER.findall(told)}
    known = {abs(float(x.replace(",", ""))) for x in _NUMBER.findall(str(published))}
    if wrong := sorted(x for x in numbers if abs(x) not in known):
        yield f"{item['id']}: its rows have {wrong}, which are not printed"
    if "printed" not in item and (missing := sorted(set(cells) - numbers)):
        yield f"{item['id']}: its rows lack {missing}"


def main() -> None:
    """Write the page, or check its items."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", metavar="FILE", type=Path, help="list of the papers' items")
    path = parser.parse_args().check
    if path is None:
        (DOCS / "published.md").write_text(page())
    elif found := differences_to(path):
        sys.exit("\n".join(found))


if __name__ == "__main__":
    main()
