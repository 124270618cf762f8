"""Count the lines of the layers that the check does not run."""

import ast
from collections.abc import Iterator
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import typer
from coverage import Coverage

from twinsolve.bench.options import Output
from twinsolve.bench.tables import markdown, write_summary, write_table
from twinsolve.bench.terminal import console

_UNROLLED = Path(str(find_spec("twinsolve.unrolled").origin)).parent
_FOLDERS = (
    "attention", "image_filters", "kernel_smoothing", "nonlocal_energy",
    "self_expression", "sparse_coding", "spectral_filtering",
)  # fmt: skip
_FILES = (
    "boosting.py",
    "conditioning.py",
    "fixed_point.py",
    "locally_linear.py",
    "solved_operator.py",
)
_LARGEST_SHARE = 0.1
_Function = ast.FunctionDef | ast.AsyncFunctionDef


class _Lines(NamedTuple):
    file: str
    executable: int
    missing: list[int]


def check_coverage(
    output: Output = Path("results/check-coverage"),
) -> None:
    """Run `twinsolve check` in one process, and count the lines of the layers that it runs.

    Lines are those within functions of operators and their shell, without constructors and
    `raise` statements. Exits with status 1 if more than a tenth of them are not run.
    """
    lines = measure_lines()
    table = pd.DataFrame([found._asdict() | {"missing": _ranges(found.missing)} for found in lines])
    table.insert(2, "not_run", [len(found.missing) for found in lines])
    executable, not_run = int(table.executable.sum()), int(table.not_run.sum())
    verdict = f"{not_run} of {executable} lines are not run: {not_run / executable:.1%}."
    every = markdown(
        ("file", "lines", "not run", "which"),
        (tuple(str(cell) for cell in row) for row in table.itertuples(index=False)),
    )
    console().print("\n".join([*every, "", verdict]))
    write_table(table, output)
    write_summary("Lines that the check runs", [verdict, "", *every], {}, output)
    raise typer.Exit(code=int(not_run > _LARGEST_SHARE * executable))


def measure_lines(**settings: Any) -> list[_Lines]:
    """Lines of each file of the layers, after a check of these settings."""
    paths = [path for folder in _FOLDERS for path in sorted((_UNROLLED / folder).glob("*.py"))]
    paths += [_UNROLLED / file for file in _FILES]
    measured = Coverage(data_file=None, include=[str(path) for path in paths])
    with measured.collect():
        from twinsolve.bench.check.checks import check_twins

        check_twins(n_jobs=1, **settings)
    return [_measure_lines(measured, path) for path in paths]


def _measure_lines(measured: Coverage, path: Path) -> _Lines:
    _, executable, _, missing, _ = measured.analysis2(str(path))
    counted = counted_lines(path.read_text())
    return _Lines(
        str(path.relative_to(_UNROLLED)),
        len(counted.intersection(executable)),
        sorted(counted.intersection(missing)),
    )


def counted_lines(source: str) -> set[int]:
    """Lines within functions, without constructors and raised errors."""
    functions, aside = set(), set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, _Function):
            functions |= _span(*node.body)
        if isinstance(node, ast.Raise) or getattr(node, "name", "") == "__init__":
            aside |= _span(node)
    return functions - aside


def _span(*nodes: Any) -> set[int]:
    return set(range(nodes[0].lineno, nodes[-1].end_lineno + 1))


def _ranges(lines: list[int]) -> str:
    """Such as "3, 7-9"."""
    return ", ".join(_range(run) for run in _runs(lines))


def _runs(lines: list[int]) -> Iterator[list[int]]:
    for _, run in groupby(enumerate(lines), lambda pair: pair[1] - pair[0]):
        yield [line for _, line in run]


def _range(run: list[int]) -> str:
    return str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}"


if __name__ == "__main__":
    typer.run(check_coverage)
