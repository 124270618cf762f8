"""The contract of all studies: a table, what is said and drawn of it, and how it is written."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd

from .figures import forget
from .jobs import Options
from .tables import Lines, Results, write_table
from .terminal import progress


@dataclass(frozen=True)
class Study:
    """A table, and what is said and drawn of it.

    Attributes
    ----------
    name : str
        Heading, and name of the files: NAME.json.gz holds the rows, NAME.csv and .tex the lines. If
        it is empty, as of the only study of a command, these are table.json, means.csv and .tex,
        and each further table has files named by its title, up to a comma.
    about : str
        A sentence, or the title of the table if there is no name.
    run : callable
        ``run(options)`` returns the tidy table.
    lines : callable
        ``lines(table)`` returns headings and cells of the table that is printed. By default there
        are only further tables.
    figures : mapping
        ``draw(table, path)`` by file name.
    more : mapping
        Functions such as `lines` by title: further tables, if they have rows.
    rule : str
        How settings are chosen; empty if all are given.
    notes : callable
        ``notes(table)`` returns sentences on how to read the tables.
    in_place : str
        Title of the further table that is printed in place of `lines`, if it has rows.
    """

    name: str
    about: str
    run: Callable[[Options], pd.DataFrame]
    lines: Callable[[pd.DataFrame], Lines] = lambda table: ((), [])
    figures: Mapping[str, Callable[[pd.DataFrame, Path], None]] = field(default_factory=dict)
    more: Mapping[str, Callable[[pd.DataFrame], Lines]] = field(default_factory=dict)
    rule: str = ""
    notes: Callable[[pd.DataFrame], Sequence[str]] = lambda table: ()
    in_place: str = ""

    def further(self, table: pd.DataFrame) -> dict[str, Lines]:
        """The further tables that have rows, by title."""
        found = {title: lines(table) for title, lines in self.more.items()}
        return {title: lines for title, lines in found.items() if lines[1]}

    def write(self, table: pd.DataFrame, results: Results) -> None:
        """Print the tables and sentences, and write them with rows and figures."""
        write_table(table, results.directory, f"{self.name}.json.gz" if self.name else "table.json")
        if self.name:
            results.text += [f"## {self.name}", "", self.about, ""]
        further, level = self.further(table), "###" if self.name else "##"
        results.add_table(
            self.name or self.about, self.lines(table), heading="", file=self.name or "means",
            shown=self.in_place not in further,
        )  # fmt: skip
        for title, lines in further.items():
            file = "" if self.name else "-".join(re.split("[,:]", title)[0].lower().split())
            results.add_table(title, lines, heading=f"{level} {title}", file=file)
        results.add_sentences(self.notes(table))
        for name, draw in self.figures.items():
            path = results.directory / name
            forget(path)
            draw(table, path)
            if path.exists():
                results.text += [f"![{name}]({name})", ""]


def run_studies(studies: Sequence[Study], options: Options) -> dict[str, pd.DataFrame]:
    """Run the studies, show their progress, and return their tables by name."""
    return {
        study.name: study.run(
            replace(options, progress=options.progress or progress(study.name or "jobs"))
        )
        for study in studies
    }


def write_studies(
    title: str,
    studies: Sequence[Study],
    tables: Mapping[str, pd.DataFrame],
    settings: dict[str, Any],
    directory: Path,
    about: str = "",
) -> None:
    """Print the studies, and write their files, settings.json and summary.md."""
    results = Results(title, settings, directory)
    results.text += [about, ""] if about else []
    results.add_sentences(dict.fromkeys(study.rule for study in studies if study.rule))
    for study in studies:
        study.write(tables[study.name], results)
    results.write()
