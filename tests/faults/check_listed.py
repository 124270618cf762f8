"""Plant the listed faults one at a time in a copy of the package, and see whether they are caught.

`python tests/faults/check_listed.py` writes `tests/faults/listed.csv`: for each fault whether
the check fails, or else the tests that its entry names, and where. It exits with status 1 if a
fault is not caught whose entry does not say why.
"""

import argparse
import importlib
import multiprocessing
import os
import subprocess
import sys
import tomllib
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd
from mutations import copy_package

from twinsolve.bench.check.checks import check_twins as _imported  # noqa: F401  all that it imports

TABLE = Path(__file__).with_name("listed.csv")
_PASSES: tuple[dict[str, Any], ...] = ({"data": ["drawn"]}, {"quick": True})
_PLACE = ["twin", "data", "case", "dtype"]
_LONGEST = 600  # seconds for a fault: no end is a failure too


@dataclass(frozen=True)
class Fault:
    """A mistake that could be in the package, and where it must show.

    Attributes
    ----------
    kind, name : str
    file : str
        Below the root of the package.
    old, new : str
        Source that occurs once in the file, and what is planted there.
    twins : tuple of str
        Twins that the check is held to: the layers that the fault changes are theirs.
    tests : tuple of str
        Files of tests that see it, where the check does not.
    survives : str
        Why neither catches it; empty if one must.
    """

    kind: str
    name: str
    file: str
    old: str
    new: str
    twins: tuple[str, ...] = ()
    tests: tuple[str, ...] = ()
    survives: str = ""

    def plant(self, package: Path) -> None:
        """Change the file of a copy of the package.

        Raises
        ------
        ValueError
            If the old source does not occur exactly once.
        """
        path = package / self.file
        source = path.read_text()
        if source.count(self.old) != 1:
            raise ValueError(f"{self.name}: {self.old!r} occurs {source.count(self.old)} times")
        path.write_text(source.replace(self.old, self.new))


def read_faults() -> list[Fault]:
    """Every fault of every kind, which the name of its file says."""
    return [
        Fault(path.stem.replace("-", " "), **fault)
        for path in sorted(Path(__file__).with_name("listed").glob("*.toml"))
        for fault in tomllib.loads(path.read_text())["fault"]
    ]


def check_faults(faults: list[Fault], n_jobs: int = 1) -> Iterator[dict[str, Any]]:
    """Yield a row for each fault: a row of the check that fails with it alone, or a test."""
    twins = sorted({twin for fault in faults for twin in fault.twins})
    with multiprocessing.get_context("fork").Pool(n_jobs, maxtasksperchild=1) as pool:
        without = pool.map(_find_failures, [(None, (twin,)) for twin in twins], chunksize=1)
        known = {row[0] for rows in without for row in rows}
        jobs = [pool.apply_async(_find_failures, ((fault, fault.twins),)) for fault in faults]
        for fault, job in zip(faults, jobs, strict=True):
            try:
                failed = [row for row in job.get(_LONGEST) if row[0] not in known]
            except multiprocessing.TimeoutError:
                failed = [("no end", 0.0)]
            caught_by, where = ("check", max(failed, key=_get_excess)[0]) if failed else ("", "")
            if not failed and fault.tests and fails_tests(fault):
                caught_by, where = "tests", " ".join(fault.tests)
            row = {"kind": fault.kind, "fault": fault.name, "file": fault.file}
            yield row | {"caught_by": caught_by, "where": where, "survives": fault.survives}


def _get_excess(row: tuple[str, float]) -> float:
    return row[1]


def _read_row(row: dict[str, Any]) -> tuple[str, float]:
    """The place of a failed row, and how many times its tolerance the deviation is."""
    place = ", ".join(str(row[name]) for name in _PLACE)
    deviation, tolerance = row.get("deviation"), row.get("tolerance")
    return place, 0.0 if pd.isna(deviation) or not tolerance else deviation / tolerance


def _find_failures(job: tuple[Fault | None, tuple[str, ...]]) -> list[tuple[str, float]]:
    """Failed rows of the check: of the laws, or where these say nothing of the data."""
    fault, twins = job
    if not twins:
        return []
    with TemporaryDirectory() as folder:
        package = copy_package(Path(folder) / "twinsolve")
        if fault is not None:
            fault.plant(package)
        check_twins = _import_check(package)
        found: list[tuple[str, float]] = []
        for settings in _PASSES:
            table = check_twins(twins=twins, n_jobs=1, **settings)
            found += [_read_row(row) for row in table[table.verdict == "broken"].to_dict("records")]
            if found and fault is not None:
                break
        return found


def _import_check(package: Path) -> Any:
    """`check_twins` of a copy of the package, in a process of its own."""
    for module in [m for m in sys.modules if m.partition(".")[0] == package.name]:
        del sys.modules[module]
    sys.path.insert(0, str(package.parent))
    warnings.simplefilter("ignore")  # faults divide by zero and miss their solutions
    checks = importlib.import_module(f"{package.name}.bench.check.checks")
    assert Path(str(checks.__file__)).is_relative_to(package)
    return checks.check_twins


def fails_tests(fault: Fault) -> bool:
    """Whether a test of those that the fault names fails with it."""
    with TemporaryDirectory() as folder:
        package = copy_package(Path(folder) / "twinsolve")
        fault.plant(package)
        options = ["-q", "-x", "-p", "no:cacheprovider"]
        run = subprocess.run(
            [sys.executable, "-P", "-m", "pytest", *options, *fault.tests],
            cwd=package,
            env=os.environ | {"PYTHONPATH": folder},
            capture_output=True,
            check=False,
        )
    return run.returncode == 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="kinds or faults; all without")
    parser.add_argument("--n-jobs", type=int, default=2, help="faults at a time (default: 2)")
    parser.add_argument("--table", type=Path, default=TABLE, help="written at the end")
    given = parser.parse_args()
    faults = [f for f in read_faults() if not given.names or {f.kind, f.name} & set(given.names)]
    rows = []
    for row in check_faults(faults, given.n_jobs):
        rows.append(row)
        print(f"{row['fault']:<48} {row['caught_by'] or 'NOT CAUGHT'}: {row['where']}", flush=True)
    table = pd.DataFrame(rows)
    table.to_csv(given.table, index=False)
    caught = table[["kind", "caught_by"]].value_counts().unstack(fill_value=0)
    print(caught.to_string())
    sys.exit(int(((table.caught_by == "") & (table.survives == "")).any()))


if __name__ == "__main__":
    main()
