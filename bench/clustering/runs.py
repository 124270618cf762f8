"""Studies that are run one after another, and what they leave on disk."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from ..results import provenance, write_summary
from ..terminal import markdown, progress
from .study import Options, Study


def run_studies(studies: Sequence[Study], options: Options) -> dict[str, pd.DataFrame]:
    """Tables of the studies by their names; progress is told for each."""
    return {
        study.name: study.run(
            replace(options, progress=progress(study.name)) if options.progress is None else options
        )
        for study in studies
    }


def write_studies(
    title: str,
    studies: Sequence[Study],
    tables: dict[str, pd.DataFrame],
    settings: dict[str, Any],
    directory: Path,
) -> None:
    """Write STUDY.parquet for each study, figures, settings.json and summary.md."""
    directory.mkdir(parents=True, exist_ok=True)
    lines = [line for rule in rules(studies) for line in (rule, "")]
    for study in studies:
        table = tables[study.name]
        table.to_parquet(directory / f"{study.name}.parquet", index=False)
        for name, draw in study.figures.items():
            draw(table, directory / name)
        lines += [f"## {study.name}", "", study.about, ""]
        lines += [*markdown(*study.lines(table)), ""]
        for heading, (headings, rows) in study.further(table).items():
            lines += [f"### {heading}", "", *markdown(headings, rows), ""]
        lines += [line for name in study.figures for line in (f"![{name}]({name})", "")]
    write_summary(title, lines[:-1], provenance(settings), directory)


def rules(studies: Sequence[Study]) -> list[str]:
    """How the studies choose settings, each rule once; none where all settings are given."""
    return list(dict.fromkeys(study.rule for study in studies if study.rule))
