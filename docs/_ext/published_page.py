"""Writes `docs/published.md`: what papers claim beside what our runs found.

``python docs/_ext/published_page.py`` writes it anew after a change of `docs/published.toml` or of
a run in `docs/results`. Numbers of ours are read from the runs, never typed.
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
from twinsolve.bench.vision import segmentation
from twinsolve.bench.vision.classification.measures import hits
from twinsolve.bench.vision.classification.report import (
    Paired,
    Verdict,
    baselines_of,
    judge,
    paired_difference,
)

DOCS = Path(__file__).parents[1]
RESULTS = DOCS / "results"
VERDICTS = (
    "holds", "holds in direction", "inconclusive", "does not hold", "not run", "cannot run here",
)  # fmt: skip
_HEAD = ("item", "what is claimed", "published", "ours", "verdict", "run")
_OF_TOKENS = ("token_cosine", "log10_condition")
_ERRATA = {"SE": "E3", "IF": "E0", "AO": "E1", "NT": "E2", "SK": "E4"}
Row = dict[str, Any]


class Found(NamedTuple):
    """A mean difference, half its interval or NaN, and what is said of it: ahead, behind, ..."""

    mean: float
    half: float
    words: str
    form: str = ".2f"


def read_known() -> Row:
    """What stands in `published.toml`."""
    return tomllib.loads((DOCS / "published.toml").read_text())


def papers_of(known: Row) -> dict[str, Row]:
    """The papers in their order, each with its rows."""
    return {key: paper for key, paper in known["papers"].items() if isinstance(paper, dict)}


def page() -> str:
    """The whole page in Markdown."""
    known = read_known()
    papers = papers_of(known)
    parts = [known["papers"]["head"], _summarise(papers), _count_items(known, papers)]
    for key, paper in papers.items():
        table = markdown(_HEAD, [_write_line(row, known) for row in paper["rows"]])
        parts += [f"## {paper['title']}", paper["about"], "\n".join(table), _list_errata(key)]
    sources = enumerate(known["sources"].values(), 1)
    parts += ["## Runs", _list_runs(known)]
    parts += ["## Sources", "\n".join(f"{place}. {text}" for place, text in sources)]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def ours_of(row: Row) -> tuple[str, str]:
    """Our number with its interval or over layers, and the verdict: typed, or what follows."""
    ours = row.get("ours")
    if ours is None or not (RESULTS / ours["run"]).exists():
        return "-", row["verdict"] if ours is None else "not run"
    if "find" in ours:
        cell, verdict = _read_pattern(ours["run"], ours["find"]), row.get("verdict")
    elif "row" in ours:
        cell, verdict = _write_difference(ours, row["published"].get("effect"))
    else:
        cell, verdict = _read_columns(ours)
    return f"{cell} {ours['unit']}", row.get("verdict", verdict)


def _write_difference(ours: Row, effect: float | None) -> tuple[str, str]:
    """A row beside its baseline, or beside ``against``."""
    found = find_difference(ours)
    width = "" if np.isnan(found.half) else f" ± {found.half:{found.form}}"
    verdict = weigh(found, ours["claimed"], effect)
    if verdict == "inconclusive" and width:
        verdict += f" at{width}"
        if found.words.startswith("equal"):
            verdict += f", {found.words} point"
    return f"{found.mean:+{found.form}}{width}", verdict


def find_difference(ours: Row) -> Found:
    """What is said of a row: corrected for its table, or on its own beside ``against``.

    It is read from the summary where ``table`` names a heading, else computed from the table.
    """
    run, row = ours["run"], ours["row"]
    if "table" in ours:
        return _read_difference(run, ours["table"], row, ours.get("column", "verdict"))
    measure = ours["measure"]
    margin, form = (0.0, ".3f") if measure in _OF_TOKENS else (1.0, ".2f")
    if "against" in ours:
        apart = _find_differences(read_table(run), measure, {row: ours["against"]})
        verdict = judge(apart, margin)[row]
    else:
        verdict = _judge_all(run, measure, margin)[row]
    half = verdict.apart.half_width if verdict.apart.determined else np.nan
    return Found(verdict.apart.mean, half, verdict.words, form)


@cache
def _judge_all(run: str, measure: str, margin: float) -> dict[str, Verdict]:
    table = read_table(run)
    if "model" in table:
        verdicts = judge(segmentation.differences(table), margin)
        return {row: verdict for (row, name), verdict in verdicts.items() if name == measure}
    return judge(_find_differences(table, measure, baselines_of(table)), margin)


def _find_differences(
    table: pd.DataFrame, measure: str, baselines: dict[str, str]
) -> dict[str, Paired]:
    """Of rows to their baselines: of accuracy over seeds and images, of the rest over seeds."""
    if measure == "top1":
        values = {row: hits(table, row) for row in {*baselines, *baselines.values()}}
    else:
        values = dict(table.pivot(index="seed", columns="row", values=measure).items())
    return {row: paired_difference(values[row], values[to]) for row, to in baselines.items()}


def _read_difference(run: str, heading: str, row: str, column: str) -> Found:
    """What the table under a heading of a summary says of a row.

    The difference stands two places before its verdict; or in a column of a condition, in brackets
    where it is neither ahead nor behind.
    """
    text = (RESULTS / run / "summary.md").read_text().partition(heading)[2]
    head, *lines = (
        re.split(r"\s*\|\s*", line)[1:-1] for line in text.splitlines() if line[:1] == "|"
    )
    cells = dict(zip(head, next(line for line in lines if line[0] == row), strict=True))
    place = head.index(column) - (2 if column == "verdict" else 0)
    told = cells[head[place]]
    mean, _, half = told.strip("()").partition(" ± ")
    words = "ahead" if float(mean) > 0 else "behind"
    if column == "verdict" or told[0] == "(":
        words = cells.get("verdict", "inconclusive")
    digits = len(mean.partition(".")[2])
    return Found(float(mean), float(half or "nan"), words, f".{digits}f")


def weigh(found: Found, claimed: str, effect: float | None) -> str:
    """What a difference says of a claim of ``more``, ``less``, or an effect ``within`` a limit.

    More and less hold where the corrected p is at most 0.05 and the published effect lies in reach
    of the interval, in direction where it does not or is not known; they do not hold where the
    difference is the other way round, or the interval ends before the effect. A limit, 1 unless
    published, holds where the whole interval is within, and not where all of it is beyond.
    """
    clear = found.words in ("ahead", "behind")
    if claimed == "within":
        limit = abs(effect or 1)
        beyond = "does not hold" if abs(found.mean) - found.half > limit else "inconclusive"
        return "holds" if abs(found.mean) + found.half <= limit else beyond
    along = found.mean if claimed == "more" else -found.mean
    reached = effect is not None and along + found.half >= abs(effect)
    if clear and along > 0:
        return "holds" if reached else "holds in direction"
    return "does not hold" if clear or (effect is not None and not reached) else "inconclusive"


@cache
def read_table(run: str) -> pd.DataFrame:
    """The rows of a run."""
    return pd.DataFrame(json.loads((RESULTS / run / "table.json").read_text()))


def _read_columns(ours: Row) -> tuple[str, str | None]:
    """Means by layer or another column, alone or beside those of a second column."""
    columns = [ours["column"], *([ours["beside"]] if "beside" in ours else [])]
    table = read_table(ours["run"])
    for name, wanted in ours.get("where", {}).items():
        table = table[table[name].isin(wanted)]
    means = table.dropna(subset=columns).groupby(ours["by"], sort=ours["by"] == "layer")[columns]
    found = [means.mean()[column].tolist() for column in columns]
    cells = [", ".join(number(x, ours["format"]) for x in values) for values in found]
    return " against ".join(cells), _weigh_values(found, ours.get("claimed"))


def _weigh_values(found: list[list[float]], claimed: str | None) -> str | None:
    """Whether values are more or less than others throughout, rise or fall in all, or are equal."""
    first, second = found if len(found) == 2 else ([found[0][-1]], [found[0][0]])
    sign = {"more": 1, "rises": 1, "less": -1, "falls": -1, "equal": 0}.get(claimed or "")
    if sign is None:
        return None
    if sign == 0:
        return "holds" if len(set(found[0])) == 1 else "does not hold"
    agree = [sign * (x - y) > 0 for x, y in zip(first, second, strict=True)]
    if all(agree):
        return "holds in direction"
    return "inconclusive" if any(agree) else "does not hold"


def _read_pattern(run: str, pattern: str) -> str:
    """What the groups of a pattern find in the summary of a run."""
    matched = re.search(pattern, (RESULTS / run / "summary.md").read_text(), re.M)
    if matched is None:
        raise ValueError(f"{pattern!r} is not in the summary of {run}")
    return " against ".join(matched.groups())


def _write_line(row: Row, known: Row) -> tuple[str, ...]:
    cell, verdict = ours_of(row)
    run = row.get("ours", {}).get("run", "-")
    if cell != "-":
        cell += f"; {known['runs'][run]['setting']}"
        run = _link_run(run)
    why = f": {row['why']}" if "why" in row and verdict != "not run" else ""
    published = _describe_published(row["published"], list(known["sources"]))
    return row["item"], row["claim"], published, cell, f"**{verdict}**{why}", run


def _link_run(run: str) -> str:
    """To a summary that has a page."""
    if "/" in run:
        return run
    return f"[{run}](results/{run}/summary.md)"


def _list_runs(known: Row) -> str:
    lines = [
        (_link_run(name) if (RESULTS / name).exists() else name, f"`{run['command']}`")
        for name, run in known["runs"].items()
    ]
    return "\n".join(markdown(("run", "command"), lines))


def _describe_published(told: Row, sources: list[str]) -> str:
    setting = f"; {told['setting']}" if "setting" in told else ""
    return f"{told.get('value', 'number not read')}{setting} [{sources.index(told['source']) + 1}]"


def _summarise(papers: dict[str, Row]) -> str:
    """Verdicts by paper."""
    counts = {}
    for key, paper in papers.items():
        found = [ours_of(row) for row in paper["rows"]]
        kinds = Counter(kind_of(verdict) for _, verdict in found)
        measured = sum(cell != "-" for cell, _ in found)
        counts[key] = [len(found), measured, *(kinds[kind] for kind in VERDICTS)]
    counts["all"] = [sum(column) for column in zip(*counts.values(), strict=True)]
    lines = [(key, *map(str, own)) for key, own in counts.items()]
    return "\n".join(markdown(("paper", "rows", "with our number", *VERDICTS), lines))


def kind_of(verdict: str) -> str:
    """A verdict without its width."""
    return verdict.partition(" at ±")[0]


def _count_items(known: Row, papers: dict[str, Row]) -> str:
    """How many tables and figures are listed by number, by subject, and what else."""
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
    kind, of = re.findall(r"^(Table|Figure|)s?( of |)", item)[0]
    return "subjects" if of else f"{kind.lower() or 'other'}s"


def _list_errata(key: str) -> str:
    """Links to what is wrong as printed."""
    pattern = rf"^### ({_ERRATA[key]}-\w+): (.*)$"
    found = re.findall(pattern, (DOCS / "errata.md").read_text(), re.M)
    links = "; ".join(f"[{id_}](errata.md#{id_.lower()}) {title}" for id_, title in found)
    return f"Wrong as printed in this paper, {len(found)} in number: {links}."


if __name__ == "__main__":
    (DOCS / "published.md").write_text(page())
