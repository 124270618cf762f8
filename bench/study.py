"""The contract of all studies: a table, what is said and drawn of it, and how it is written."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd

from .figures import forget
from .jobs import Options
from .tables import Lines, markdown, write_lines, write_summary, write_table
from .terminal import progress

_MOST_ROWS = 540  # most rows of a table in summary.md


@dataclass(frozen=True)
class Study:
    """A part of a preset that gives a table, with its summary and its figures by file name.

    ``run(options)`` returns the tidy table, ``lines(table)`` the headings and cells of its summary.
    The functions in `more` return further summary tables, by title. `rule` says how settings are
    chosen; it is empty if all are given.
    """

    name: str
    about: str
    run: Callable[[Options], pd.DataFrame]
    lines: Callable[[pd.DataFrame], Lines]
    figures: Mapping[str, Callable[[pd.DataFrame, Path], None]] = field(default_factory=dict)
    more: Mapping[str, Callable[[pd.DataFrame], Lines]] = field(default_factory=dict)
    rule: str = ""

    def further(self, table: pd.DataFrame) -> dict[str, Lines]:
        """The further summary tables that have rows, by title."""
        found = {title: lines(table) for title, lines in self.more.items()}
        return {title: (headings, rows) for title, (headings, rows) in found.items() if rows}


def run_studies(studies: Sequence[Study], options: Options) -> dict[str, pd.DataFrame]:
    """Run the studies, show their progress, and return their tables by name."""
    return {s.name: s.run(replace(options, progress=progress(s.name))) for s in studies}


def write_studies(
    title: str,
    studies: Sequence[Study],
    tables: dict[str, pd.DataFrame],
    settings: dict[str, Any],
    directory: Path,
    about: str = "",
) -> None:
    """Write for each study STUDY.json.gz, .csv and .tex, and figures; settings.json, summary.md."""
    lines = [line for text in (about, *rules(studies)) if text for line in (text, "")]
    for study in studies:
        table = tables[study.name]
        write_table(table, directory, f"{study.name}.json.gz")
        write_lines(study.lines(table), directory / study.name)
        for name, draw in study.figures.items():
            forget(directory / name)
            draw(table, directory / name)
        lines += [f"## {study.name}", "", study.about, ""]
        lines += [*_table_or_file(study.name, study.lines(table)), ""]
        for heading, (headings, rows) in study.further(table).items():
            lines += [f"### {heading}", "", *markdown(headings, rows), ""]
        drawn = [name for name in study.figures if (directory / name).exists()]
        lines += [line for name in drawn for line in (f"![{name}]({name})", "")]
    write_summary(title, lines[:-1], settings, directory)


def _table_or_file(name: str, lines: Lines) -> list[str]:
    """Lines of the table, or a sentence that names its file if it is too long."""
    headings, rows = lines
    if len(rows) > _MOST_ROWS:
        return [f"All {len(rows)} rows, by affinity steps: {name}.csv; each run: {name}.json.gz."]
    return markdown(headings, rows)


def rules(studies: Sequence[Study]) -> list[str]:
    """The rules by which the studies choose settings, each once."""
    return list(dict.fromkeys(study.rule for study in studies if study.rule))
