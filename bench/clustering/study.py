"""What a preset consists of: studies, run one after another, and what they leave on disk."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd

from ...datasets.files import whole_file
from ..figures import forget
from ..jobs import Options
from ..tables import Lines, markdown, write_lines, write_summary
from ..terminal import progress

_MOST_ROWS = 540  # of a table in a summary


@dataclass(frozen=True)
class Study:
    """A question that a preset answers: a table, its lines in a summary, and figures by file name.

    ``run(options)`` returns the tidy table; ``lines(table)`` the headings and cells of its summary,
    and so do the functions in `more`, of further summary tables by their titles. `rule` says how
    settings are chosen, where they are.
    """

    name: str
    about: str
    run: Callable[[Options], pd.DataFrame]
    lines: Callable[[pd.DataFrame], Lines]
    figures: Mapping[str, Callable[[pd.DataFrame, Path], None]] = field(default_factory=dict)
    more: Mapping[str, Callable[[pd.DataFrame], Lines]] = field(default_factory=dict)
    rule: str = ""

    def further(self, table: pd.DataFrame) -> dict[str, Lines]:
        """The further summary tables that have anything to say, by their titles."""
        found = {title: lines(table) for title, lines in self.more.items()}
        return {title: (headings, rows) for title, (headings, rows) in found.items() if rows}


def run_studies(studies: Sequence[Study], options: Options) -> dict[str, pd.DataFrame]:
    """Tables of the studies by their names, with the progress of each on the screen."""
    return {s.name: s.run(replace(options, progress=progress(s.name))) for s in studies}


def write_studies(
    title: str,
    studies: Sequence[Study],
    tables: dict[str, pd.DataFrame],
    settings: dict[str, Any],
    directory: Path,
    about: str = "",
) -> None:
    """Write for each study STUDY.parquet, .csv and .tex, and figures; settings.json, summary.md."""
    lines = [line for text in (about, *rules(studies)) if text for line in (text, "")]
    for study in studies:
        table = tables[study.name]
        with whole_file(directory / f"{study.name}.parquet") as file:
            table.to_parquet(file, index=False)
        write_lines(study.lines(table), directory / study.name)
        for name, draw in study.figures.items():
            forget(directory / name)
            draw(table, directory / name)
        lines += [f"## {study.name}", "", study.about, ""]
        lines += [*_readable(study.name, study.lines(table)), ""]
        for heading, (headings, rows) in study.further(table).items():
            lines += [f"### {heading}", "", *markdown(headings, rows), ""]
        drawn = [name for name in study.figures if (directory / name).exists()]
        lines += [line for name in drawn for line in (f"![{name}]({name})", "")]
    write_summary(title, lines[:-1], settings, directory)


def _readable(name: str, lines: Lines) -> list[str]:
    """The table; of one that nobody would read to its end, where it is."""
    headings, rows = lines
    if len(rows) > _MOST_ROWS:
        return [f"All {len(rows)} rows, by affinity steps: {name}.csv; each run: {name}.parquet."]
    return markdown(headings, rows)


def rules(studies: Sequence[Study]) -> list[str]:
    """How the studies choose settings, each rule once; none where all settings are given."""
    return list(dict.fromkeys(study.rule for study in studies if study.rule))
