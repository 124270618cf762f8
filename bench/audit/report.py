"""What an audit of many networks shows: a matrix, the broken laws, and their scripts."""

import tomllib
from collections.abc import Mapping
from fnmatch import fnmatch
from importlib.resources import files
from pathlib import Path
from typing import Any

import pandas as pd

from ...datasets.files import write_whole
from ...twins.audit import LAWS
from ..tables import markdown

_SIGNS = {"holds": "✓", "broken": "✗", "refused": "!", "not judged": "·"}
_LEGEND = (
    "✓ holds, ✗ broken, ! refused with an error, · not judged. A number in a heading names the "
    "law below the table."
)

_PROGRAMS = (
    "**Every broken law.** A link leads to a program that shows it: one for each cause. "
    "`twinsolve audit NETWORK --law LAW` writes that of another row."
)


def write_scripts(table: pd.DataFrame, directory: Path) -> None:
    """Write a script for each known cause, and for each broken law of which none is known."""
    for row in explaining_rows(table).itertuples():
        write_whole(directory / script_name(row), row.script)


def explaining_rows(table: pd.DataFrame) -> pd.DataFrame:
    """The broken laws that have a script: the first of each cause, and those without a cause."""
    broken = broken_rows(table)
    causes = pd.Series(range(-len(broken), 0), index=broken.index)  # each its own
    for number, cause in reversed([*enumerate(read_causes())]):
        causes[explained_by(cause, broken)] = number
    return broken[~causes.duplicated()]


def script_name(row: "pd.Series[object]") -> str:
    """File of the script of a row, in the folder of the run."""
    words = f"{row.network}-{row.law}".replace("/", "-").replace(":", "-").replace(",", "")
    return f"scripts/{words.replace(' ', '_')}.py"


def broken_rows(table: pd.DataFrame) -> pd.DataFrame:
    """Rows of broken laws."""
    return table[table.verdict == "broken"]


def summary_lines(table: pd.DataFrame) -> list[str]:
    """What holds, then what is broken, then the matrix of networks and laws."""
    broken = [*_causes(table), *_broken(table)]
    return [*_counts(table), "", *_sound(table), *broken, "", *_matrix(table)]


def _counts(table: pd.DataFrame) -> list[str]:
    built = table[table.law != "build"]
    n_broken = built[built.verdict == "broken"].network.nunique()
    tried = built[built.verdict.isin(("holds", "broken"))]
    networks, packages = (_number(built[x].nunique(), x) for x in ("network", "package"))
    n_held = (tried.verdict == "holds").sum()
    held = f"{n_held} hold{'s' if n_held == 1 else ''}"
    breaking = f"{_number(n_broken, 'network')} break{'s' if n_broken == 1 else ''} one or more"
    return [f"{networks} of {packages}: {_number(len(tried), 'law')} tried, {held}; {breaking}."]


def _number(n: int, name: str) -> str:
    return f"{n} {name}{'' if n == 1 else 's'}"


def _sound(table: pd.DataFrame) -> list[str]:
    """The networks that break nothing, by package."""
    lines = []
    built = table[table.law != "build"]
    sound = built.groupby(["package", "version", "network"]).verdict.agg(
        lambda x: "broken" not in set(x)
    )
    for (package, version), group in sound.groupby(level=[0, 1]):
        names = [_short(name) for (_, _, name), holds in group.items() if holds]
        if names:
            where = f"{package} {version} ({len(names)}): " if package else ""
            lines.append(f"- {where}{'; '.join(names)}")
    return ["**No law is broken by:**", "", *lines, ""] if lines else []


def _short(network: str) -> str:
    return network.partition("/")[2] or network


def read_causes() -> list[dict[str, Any]]:
    """What is known of broken laws: of which networks and laws, whether by design, and why."""
    text = files("twinsolve.bench.audit").joinpath("causes.toml").read_text()
    causes: list[dict[str, Any]] = tomllib.loads(text)["causes"]
    return causes


def explained_by(cause: Mapping[str, Any], table: pd.DataFrame) -> pd.Series:
    """Which rows a cause explains: its networks may be patterns; without laws it means all."""
    named = [any(fnmatch(name, x) for x in cause["networks"]) for name in table.network]
    laws = cause.get("laws")
    explained = pd.Series(named, index=table.index, dtype=bool)
    return explained if laws is None else explained & table.law.isin(laws)


_KINDS = {
    "fault": "**Broken, and why:**",
    "design": "**Broken by design or by a documented limit:**",
}


def _causes(table: pd.DataFrame) -> list[str]:
    """The broken laws by what causes them; then those that nobody has looked into."""
    broken, causes, lines = broken_rows(table), read_causes(), []
    explained = pd.Series(False, index=broken.index)
    for kind, title in _KINDS.items():
        cells = []
        for cause in (cause for cause in causes if cause["kind"] == kind):
            rows = broken[explained_by(cause, broken) & ~explained]
            explained |= explained_by(cause, broken)
            if len(rows):
                names = "; ".join(map(_short, rows.network.unique()))
                laws = ", ".join(rows.law.unique())
                cells.append((names, laws, _largest(rows), cause["why"], cause.get("issue", "")))
        if cells:
            headings = ("networks", "laws", "largest error", "why", "upstream")
            lines += [title, "", *markdown(headings, cells), ""]
    others = "; ".join(sorted(broken[~explained].network.unique()))
    return [*lines, *([f"No cause is known here for: {others}.", ""] if others else [])]


def _largest(rows: pd.DataFrame) -> str:
    return _error(rows.error.astype(float).max())


def _error(error: float) -> str:
    return f"{error:.1e}" if error == error and error < 1e9 else "shape or NaN"


def _broken(table: pd.DataFrame) -> list[str]:
    scripts = set(explaining_rows(table).index)
    cells = [
        (
            row.network,
            f"{row.package} {row.version}",
            f"[{row.law}]({script_name(row)})" if row.Index in scripts else row.law,
            _error(row.error),
            f"{row.tolerance:.0e}",
            row.where,
        )
        for row in broken_rows(table).itertuples()
    ]
    headings = ("network", "package", "law", "error", "tolerance", "starts at")
    return [_PROGRAMS, "", *markdown(headings, cells)] if cells else []


def _matrix(table: pd.DataFrame) -> list[str]:
    laws = [law.name for law in LAWS if law.name in set(table.law)]
    built = table[table.law != "build"]
    signs = built.assign(sign=built.verdict.map(_SIGNS)).pivot_table(
        index="network", columns="law", values="sign", aggfunc="first"
    )
    cells = list(signs[laws].fillna("·").itertuples(name=None))
    headings = ("network", *(str(i + 1) for i in range(len(laws))))
    statements = {law.name: law.statement for law in LAWS}
    names = [f"{i + 1}. {law}: {statements[law]}" for i, law in enumerate(laws)]
    failed = table[table.law == "build"]
    lines = [f"- {row.network}: {row.why}" for row in failed.itertuples()]
    return [
        _LEGEND, "", *markdown(headings, cells), "", *names,
        *(["", "**Not built or not called:**", "", *lines] if lines else []),
    ]  # fmt: skip
