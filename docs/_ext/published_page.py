"""Writes `docs/published.md`: what papers claim, and what our runs measured.

``python docs/_ext/published_page.py`` writes it again after `docs/published.toml` or a run in
`docs/results` has changed. All numbers of ours are read from the runs.
"""

import json
import re
import tomllib
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from twinsolve.bench.tables import markdown, number
from twinsolve.bench.vision.classification.measures import hits
from twinsolve.bench.vision.classification.report import (
    Paired,
    Verdict,
    baselines_of,
    judge,
    paired_difference,
)
from twinsolve.bench.vision.segmentation import report as segmentation

DOCS = Path(__file__).parents[1]
RESULTS = DOCS / "results"
VERDICTS = (
    "holds", "holds in direction", "inconclusive", "does not hold", "not run", "cannot run here",
)  # fmt: skip
_HEAD = ("item", "what is claimed", "published", "ours", "verdict", "run")
_OF_TOKENS = ("token_cosine", "log10_condition")
_ERRATA = {"SE": "E3", "IF": "E0", "AO": "E1", "NT": "E2", "SK": "E4"}
Row = dict[str, Any]


class Difference(NamedTuple):
    """A mean difference, half of its interval (or NaN), the verdict of its table, its format."""

    mean: float
    half: float
    words: str
    form: str = ".2f"


def read_known() -> Row:
    """Read `published.toml`."""
    return tomllib.loads((DOCS / "published.toml").read_text())


def papers_of(known: Row) -> dict[str, Row]:
    """Return the papers in their order, each with its rows."""
    return {key: paper for key, paper in known["papers"].items() if isinstance(paper, dict)}


def page() -> str:
    """Return the whole page in Markdown."""
    known = read_known()
    papers = papers_of(known)
    parts = [known["papers"]["head"], _count_verdicts(papers), _count_items(known, papers)]
    for key, paper in papers.items():
        table = markdown(_HEAD, [_write_line(row, known) for row in paper["rows"]])
        parts += [f"## {paper['title']}", paper["about"], "\n".join(table), _list_errata(key)]
    sources = enumerate(known["sources"].values(), 1)
    parts += ["## Runs", _list_runs(known)]
    parts += ["## Sources", "\n".join(f"{place}. {text}" for place, text in sources)]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def ours_of(row: Row) -> tuple[str, str]:
    """Return our number, and the verdict: the one of `published.toml`, or what the number says."""
    ours = row.get("ours")
    if ours is None:
        return "-", row["verdict"]
    if not (RESULTS / ours["run"]).exists():
        return "-", "not run"
    verdict = None
    if "find" in ours:
        cell = _read_pattern(ours["run"], ours["find"])
    elif "row" in ours:
        cell, verdict = _write_difference(ours, row["published"].get("effect"))
    else:
        cell, verdict = _read_columns(ours)
    return f"{cell} {ours['unit']}", row.get("verdict", verdict)


def _write_difference(ours: Row, effect: float | None) -> tuple[str, str]:
    """Write a difference with its interval, and what it says of the claim."""
    difference = find_difference(ours)
    mean, half, words, form = difference
    width = "" if np.isnan(half) else f" ± {half:{form}}"
    verdict = weigh(difference, ours["claimed"], effect)
    if verdict == "inconclusive" and width:
        verdict += f" at{width}"
        if words.startswith("equal"):
            verdict += f", {words} point"
    return f"{mean:+{form}}{width}", verdict


def find_difference(ours: Row) -> Difference:
    """Return the difference of a row to its baseline, or to the row ``against``.

    It is read from the summary if ``table`` names a heading of it. Otherwise it is computed from
    `table.json`: its verdict is corrected for all rows, but not if ``against`` is given.
    """
    run, row = ours["run"], ours["row"]
    if "table" in ours:
        return _read_difference(run, ours["table"], row, ours.get("column", "verdict"))
    measure = ours["measure"]
    margin, form = (0.0, ".3f") if measure in _OF_TOKENS else (1.0, ".2f")
    if "against" in ours:
        apart = _compute_differences(read_table(run), measure, {row: ours["against"]})
        verdict = judge(apart, margin)[row]
    else:
        verdict = _judge_all(run, measure, margin)[row]
    half = verdict.apart.half_width if verdict.apart.determined else np.nan
    return Difference(verdict.apart.mean, half, verdict.words, form)


@cache
def _judge_all(run: str, measure: str, margin: float) -> dict[str, Verdict]:
    """Return the verdict on each row of a run, corrected for all of them."""
    table = read_table(run)
    if "pictures" in table:
        verdicts = judge(segmentation.differences(table), margin)
        return {row: verdict for (row, name), verdict in verdicts.items() if name == measure}
    return judge(_compute_differences(table, measure, baselines_of(table)), margin)


def _compute_differences(
    table: pd.DataFrame, measure: str, baselines: dict[str, str]
) -> dict[str, Paired]:
    """Pair accuracies by seed and image, and other measures by seed."""
    if "pictures" in table:
        apart = segmentation.differences(table, baselines)
        return {row: apart[row, measure] for row in baselines}
    if measure == "top1":
        values = {row: hits(table, row) for row in {*baselines, *baselines.values()}}
    else:
        values = dict(table.pivot(index="seed", columns="row", values=measure).items())
    return {row: paired_difference(values[row], values[to]) for row, to in baselines.items()}


def _read_difference(run: str, heading: str, row: str, column: str) -> Difference:
    """Read the line of a row from the table under a heading of a summary.

    The difference stands two columns before its verdict. A ``column`` of a condition has no
    verdict: it puts differences that are neither ahead nor behind in brackets.
    """
    text = (RESULTS / run / "summary.md").read_text().partition(heading)[2]
    head, *lines = (
        re.split(r"\s*\|\s*", line)[1:-1] for line in text.splitlines() if line[:1] == "|"
    )
    cells = dict(zip(head, next(line for line in lines if line[0] == row), strict=True))
    place = head.index(column) - (2 if column == "verdict" else 0)
    cell = cells[head[place]]
    mean, _, half = cell.strip("()").partition(" ± ")
    words = "ahead" if float(mean) > 0 else "behind"
    if column == "verdict" or cell[0] == "(":
        words = cells.get("verdict", "inconclusive")
    digits = len(mean.partition(".")[2])
    return Difference(float(mean), float(half or "nan"), words, f".{digits}f")


def weigh(difference: Difference, claimed: str, effect: float | None) -> str:
    """Say whether a claim of ``more``, ``less``, ``no less`` or a change ``within`` a limit holds.

    ``more`` and ``less`` hold if the corrected p is at most 0.05 and the interval reaches the
    published effect. They hold in direction if it does not, or if no effect is known. They do not
    hold if the difference is opposite, or if the interval ends before the effect; one that is not
    determined ends nowhere. A limit, 1 unless published, holds if the whole interval is within it,
    and does not if all of it is outside. ``no less`` has this limit on one side alone.
    """
    mean, half, words, _ = difference
    if claimed == "no less" and not np.isnan(half):
        if mean - half >= -1:
            return "holds"
        return "does not hold" if mean + half < -1 else "inconclusive"
    if claimed == "within":
        limit = abs(effect or 1)
        if abs(mean) + half <= limit:
            return "holds"
        return "does not hold" if abs(mean) - half > limit else "inconclusive"
    clear = words in ("ahead", "behind")
    if np.isnan(half) and not clear:
        return "inconclusive"
    along = mean if claimed == "more" else -mean
    reached = effect is not None and along + half >= abs(effect)
    if clear and along > 0:
        return "holds" if reached else "holds in direction"
    return "does not hold" if clear or (effect is not None and not reached) else "inconclusive"


@cache
def read_table(run: str) -> pd.DataFrame:
    """Read the rows of a run."""
    return pd.DataFrame(json.loads((RESULTS / run / "table.json").read_text()))


def _read_columns(ours: Row) -> tuple[str, str | None]:
    """Write the means of a column by layer, or by ``by``, and those of a second column."""
    columns = [ours["column"], *([ours["beside"]] if "beside" in ours else [])]
    table = read_table(ours["run"])
    for name, wanted in ours.get("where", {}).items():
        table = table[table[name].isin(wanted)]
    means = table.dropna(subset=columns).groupby(ours["by"], sort=ours["by"] == "layer")[columns]
    values = [means.mean()[column].tolist() for column in columns]
    cells = [", ".join(number(x, ours["format"]) for x in own) for own in values]
    return " against ".join(cells), _weigh_values(values, ours.get("claimed"))


def _weigh_values(values: list[list[float]], claimed: str | None) -> str | None:
    """Compare two columns layer by layer, or the last value of one column with its first."""
    if claimed is None:
        return None
    if claimed == "equal":
        return "holds" if len(set(values[0])) == 1 else "does not hold"
    first, second = values if len(values) == 2 else ([values[0][-1]], [values[0][0]])
    sign = 1 if claimed in ("more", "rises") else -1
    agree = [sign * (x - y) > 0 for x, y in zip(first, second, strict=True)]
    if all(agree):
        return "holds in direction"
    return "inconclusive" if any(agree) else "does not hold"


def _read_pattern(run: str, pattern: str) -> str:
    """Read what the groups of a pattern match in the summary of a run."""
    match = re.search(pattern, (RESULTS / run / "summary.md").read_text(), re.M)
    if match is None:
        raise ValueError(f"find: must match the summary of {run}, got {pattern!r}")
    return " against ".join(match.groups())


def _write_line(row: Row, known: Row) -> tuple[str, ...]:
    """Write the cells of a row."""
    cell, verdict = ours_of(row)
    run = row.get("ours", {}).get("run", "-")
    if cell != "-":
        cell += f"; {known['runs'][run]['setting']}"
        run = _link_run(run)
    why = f": {row['why']}" if "why" in row and verdict != "not run" else ""
    published = _write_published(row["published"], list(known["sources"]))
    return row["item"], row["claim"], published, cell, f"**{verdict}**{why}", run


def _write_published(published: Row, sources: list[str]) -> str:
    setting = f"; {published['setting']}" if "setting" in published else ""
    place = sources.index(published["source"]) + 1
    return f"{published.get('value', 'number not read')}{setting} [{place}]"


def _link_run(run: str) -> str:
    return f"[{run}](results/{run}/summary.md)"


def _list_runs(known: Row) -> str:
    """Write a table of the runs and their commands."""
    lines = [
        (_link_run(name) if (RESULTS / name).exists() else name, f"`{run['command']}`")
        for name, run in known["runs"].items()
    ]
    return "\n".join(markdown(("run", "command"), lines))


def _count_verdicts(papers: dict[str, Row]) -> str:
    """Write a table of the numbers of verdicts, with a line for each paper."""
    counts = {}
    for key, paper in papers.items():
        ours = [ours_of(row) for row in paper["rows"]]
        kinds = Counter(kind_of(verdict) for _, verdict in ours)
        n_measured = sum(cell != "-" for cell, _ in ours)
        counts[key] = [len(ours), n_measured, *(kinds[kind] for kind in VERDICTS)]
    counts["all"] = [sum(column) for column in zip(*counts.values(), strict=True)]
    lines = [(key, *map(str, own)) for key, own in counts.items()]
    return "\n".join(markdown(("paper", "rows", "with our number", *VERDICTS), lines))


def kind_of(verdict: str) -> str:
    """Return a verdict without its width."""
    return verdict.partition(" at ±")[0]


def _count_items(known: Row, papers: dict[str, Row]) -> str:
    """Say how many tables and figures the page lists."""
    items = {
        (key, row["item"].partition(",")[0]): row.get("count", 1)
        for key, paper in papers.items()
        for row in paper["rows"]
    }
    counts: Counter[str] = Counter()
    for (_, item), count in items.items():
        counts[_name_kind(item)] += count
    return str(known["papers"]["counted"]).format(**counts)


def _name_kind(item: str) -> str:
    """Name what an item is: "Table 4" has a number, "Table of ImageNet" a subject alone."""
    kind, of = re.findall(r"^(Table|Figure|)s?( of |)", item)[0]
    return "subjects" if of else f"{kind.lower() or 'other'}s"


def _list_errata(key: str) -> str:
    """List the errata of a paper, with links."""
    pattern = rf"^### ({_ERRATA[key]}-\w+): (.*)$"
    errata = re.findall(pattern, (DOCS / "errata.md").read_text(), re.M)
    links = "; ".join(f"[{id_}](errata.md#{id_.lower()}) {title}" for id_, title in errata)
    return f"Wrong as printed in this paper, {len(errata)} in number: {links}."


if __name__ == "__main__":
    (DOCS / "published.md").write_text(page())
