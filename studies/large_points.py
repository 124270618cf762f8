"""Clustering on Dask workers by number of points: time, memory and error of each step.

``python studies/large_points.py --points 1000000 --subspaces 100 --noise 0`` makes points on 100
subspaces of dimension 6 in 50 dimensions, and clusters them as ``twinsolve cluster --dask`` does.
"""

from itertools import product
from pathlib import Path
from typing import Annotated

import numpy as np
import pandas as pd
import typer
from shared.script import run_script, write_found

from twinsolve.bench.clustering.filed_points import (
    FiledPoints,
    Watch,
    cluster_filed,
    dask_workers,
    step_lines,
)
from twinsolve.bench.jobs import Options
from twinsolve.bench.options import DASK, Output
from twinsolve.bench.study import Study
from twinsolve.bench.tables import Lines, number
from twinsolve.datasets import make_union_of_subspaces

METHOD = "SSC:gamma=50,tol=0.0001"
NOTE = (
    "Growth: the exponent of the number of points by which processor seconds grew from the number "
    "above. MiB: peak of private memory, that of Python and its libraries included; mapped files "
    "do not count. All points are of unit norm."
)


def write_points(n_points: int, n_subspaces: int, noise: float, folder: Path) -> Path:
    """Write points and labels, in random order."""
    X, y = make_union_of_subspaces(
        n_points // n_subspaces,
        n_subspaces=n_subspaces,
        n_features=50,
        dimension=6,
        noise=noise,
        random_state=0,
    )
    order = np.random.default_rng(0).permutation(len(X))
    folder.mkdir(parents=True, exist_ok=True)
    np.save(folder / "points.npy", X[order])
    np.save(folder / "labels.npy", y[order])
    return folder / "points.npy"


def growth_lines(table: pd.DataFrame) -> Lines:
    """The steps of each number of points, with their growth."""
    table = table.sort_values(["subspaces", "noise", "points"], kind="stable")
    same = [table[name] for name in ("subspaces", "noise", "step")]
    logs = np.log(table[["processor_seconds", "points"]]).groupby(same).diff()
    growth = logs.processor_seconds / logs.points
    head, lines = step_lines(table)
    added = [
        (f"{k}", f"{noise}", f"{n:,}", *line[:3], number(exponent, ".2f", ""), *line[3:])
        for k, noise, n, line, exponent in zip(
            table.subspaces, table.noise, table.points, lines, growth, strict=True
        )
    ]
    return ("subspaces", "noise", "points", *head[:3], "growth", *head[3:]), added


def main(
    points: Annotated[
        list[int] | None,
        typer.Option(min=2000, help="A number of points [10,000 and 30,000]; may be given again."),
    ] = None,
    subspaces: Annotated[
        list[int] | None,
        typer.Option(min=2, help="A number of subspaces [20]; may be given again."),
    ] = None,
    noise: Annotated[
        list[float] | None,
        typer.Option(min=0, help="A norm of the noise [0.3]; may be given again."),
    ] = None,
    dask: Annotated[str, DASK] = "local:2",
    output: Output = Path("results/large-points"),
) -> None:
    """Cluster each number of points, on each number of subspaces, with each noise."""
    sizes, numbers, noises = points or [10_000, 30_000], subspaces or [20], noise or [0.3]

    def run(options: Options) -> pd.DataFrame:
        tables = []
        assert options.directory
        for k, level, n in product(numbers, noises, sorted(sizes)):
            folder = options.directory / f"{n}-{k}-{level}"
            found = FiledPoints.open(str(write_points(n, k, level, folder)))
            with dask_workers(dask, folder) as client:
                _, table = cluster_filed(found, METHOD, k, 0, folder, Watch(client))
            tables.append(table.assign(points=n, subspaces=k, noise=level))
        return pd.concat(tables, ignore_index=True)

    title = "Steps of clustering in files"
    study = Study("", title, run, growth_lines, notes=lambda table: [NOTE])
    write_found(
        __file__,
        [study],
        {"points": sizes, "subspaces": numbers, "noise": noises, "dask": dask},
        output,
    )


if __name__ == "__main__":
    run_script(__file__)
