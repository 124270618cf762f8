"""What a preset consists of: studies, run one after another, and what they leave on disk."""

import argparse
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pandas as pd

from ...datasets.files import whole_file
from ..figures import forget
from ..jobs import Job, Options, run_jobs
from ..tables import Lines, markdown, write_lines, write_summary
from ..terminal import progress
from .problems import content_of, is_at_hand

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


def of_jobs(
    function: Callable[..., list[dict[str, Any]]],
    jobs: Iterable[Job],
    data: Sequence[str] = (),
    n_splits: int = 1,
) -> Callable[[Options], pd.DataFrame]:
    """The `run` of a study: rows of ``function(seed=, **job)``, for each job and seed of a split.

    The jobs that read `data` sets get a ``data_home=`` as well; those of a set whose files are
    missing are left out.
    """

    def run(options: Options) -> pd.DataFrame:
        home = options.data_home
        missing = [name for name in data if not is_at_hand(name, home)]
        seeded = [
            job | ({"data_home": home} if data else {}) | {"seed": options.seed + split}
            for job in jobs
            if job.get("data") not in missing
            for split in range(n_splits)
        ]
        content = {name: content_of(name, home) for name in data}
        return run_jobs(function, seeded, options, content=content)

    return run


def prose(docstring: str | None) -> str:
    """What a docstring says after its first line."""
    return " ".join((docstring or "").partition("\n\n")[2].split())


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


def run_script(path: str) -> None:
    """Run the script of a study: it holds ``ABOUT`` and ``studies()``, and writes to a folder."""
    name = Path(path).stem
    module = import_module(name)  # so that workers know its functions by a name
    parser = argparse.ArgumentParser(description=module.ABOUT)
    parser.add_argument("--seed", type=int, default=0, help="seed of all that is random")
    parser.add_argument("--n-seeds", type=int, default=10, help="seeds of k-means")
    parser.add_argument("--n-jobs", type=int, default=1, help="processes; -1 is all cores")
    parser.add_argument("--data-home", help="data root [$TWINSOLVE_DATA]")
    parser.add_argument("--output", type=Path, default=Path("results") / f"cluster-{name}")
    given = parser.parse_args()
    output, settings = given.output, {"seed": given.seed, "n_seeds": given.n_seeds}
    options = Options(
        **settings, n_jobs=given.n_jobs, data_home=given.data_home, directory=output / "runs"
    )
    studies = module.studies()
    try:
        tables = run_studies(studies, options)
    except (FileNotFoundError, ValueError) as error:
        sys.exit(str(error))
    title = f"python studies/{name}.py"
    write_studies(title, studies, tables, settings, output, module.ABOUT)
    print("\n".join([*rules(studies), f"Written to {output}/"]))
