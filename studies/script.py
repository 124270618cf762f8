"""What scripts of clustering studies share: jobs, cells of tables, the command line."""

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import pandas as pd

from twinsolve.bench.clustering.problems import content_of, is_at_hand
from twinsolve.bench.clustering.study import rules, run_studies, write_studies
from twinsolve.bench.clustering.summary import Cell
from twinsolve.bench.jobs import Job, Options, run_jobs


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


def with_deviation(column: str) -> Cell:
    """Mean and standard deviation."""
    return lambda rows: f"{rows[column].mean():.1f} ± {rows[column].std(ddof=0):.1f}"


def over_seeds(column: str) -> Cell:
    """Range over the seeds of the mean over all else."""

    def cell(rows: pd.DataFrame) -> str:
        means = rows.groupby("seed")[column].mean()
        return f"{means.min():.2f} to {means.max():.2f}"

    return cell
