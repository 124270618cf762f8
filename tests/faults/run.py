"""Plant faults one at a time in a copy of the package, and see whether tests or the check fail.

`python tests/faults/run.py solvers unrolled/boosting` writes `tests/faults/table.csv`.
"""

from __future__ import annotations

import argparse
import ast
import csv
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory

from mutations import ROOT, Mutation, copy_package, sample_mutations

TABLE = Path(__file__).with_name("table.csv")
_LONGEST = 900  # seconds that tests or the check may take for a fault: no end is a failure too
_COLUMNS = ("file", "function", "kind", "before", "after", "caught_by")


def find_tests(file: str) -> list[str]:
    """Test files of a source file: of its family, and all of its wing that name what it defines."""
    wing, *_ = Path(file).parts
    families = _families_of(file)
    tree = ast.parse((ROOT / file).read_text())
    defined = [x.name for x in tree.body if isinstance(x, ast.FunctionDef | ast.ClassDef)]
    names = [name for name in defined if not name.startswith("_")]
    named = [rf"\b{re.escape(name)}\b" for name in names]
    pattern = re.compile("|".join([_imported(Path(file)), *named]))
    tests = sorted((ROOT / "tests" / wing).rglob("test_*.py"))
    prefixes = tuple(f"test_{family}" for family in families)
    own = [x for x in tests if families & set(x.parts) or x.stem.startswith(prefixes)]
    others = [x for x in tests if x not in own and pattern.search(x.read_text())]
    return [str(x.relative_to(ROOT)) for x in own + others]


def _imported(file: Path) -> str:
    """A pattern of what imports a module: its stem alone, such as "data", names others too."""
    return rf"\b{file.parent.name}(\.| import .*\b){file.stem}\b"


def _families_of(file: str) -> set[str]:
    """The family of a source file; of a kernel, those that import it."""
    wing, family, *_ = Path(file).with_suffix("").parts
    if family != "kernels":
        return {family}
    imported = re.compile(_imported(Path(file)))
    sources = (ROOT / wing).rglob("*.py")
    return {x.parent.name for x in sources if imported.search(x.read_text())}


def commands_for(file: str) -> Iterator[tuple[str, list[str]]]:
    """What may catch a fault of a file: its tests, then the check of the twins of its family."""
    options = ["-q", "-x", "-p", "no:cacheprovider", "-m", "not slow and not equations"]
    yield "tests", [sys.executable, "-P", "-m", "pytest", *options, *find_tests(file)]
    if file.startswith(("unrolled", "twins")):
        families = [x.stem for x in (ROOT / "solvers").iterdir()]
        family = Path(file).with_suffix("").parts[1]
        held = ["--family", family, "--quick"] if family in families else ["--data", "drawn"]
        check = "from twinsolve.bench.cli import main; main()"
        yield "check", [sys.executable, "-P", "-c", check, "check", *held]


def catch(file: str, mutation: Mutation | None = None) -> str:
    """What fails in a copy of the package with the fault, or none: "tests", "check" or nothing."""
    with TemporaryDirectory() as folder:
        package = copy_package(Path(folder) / "twinsolve", *_find_stale(file))
        path = package / file
        if mutation:
            path.write_text(mutation.apply(path.read_text()))
        settings = {"PYTHONPATH": folder, "OMP_NUM_THREADS": "1"}
        for name, command in commands_for(file):
            if _fails(command, package, settings):
                return name
    return ""


def _fails(command: list[str], package: Path, settings: dict[str, str]) -> bool:
    try:
        run = subprocess.run(
            command, cwd=package, env=os.environ | settings, timeout=_LONGEST,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return True
    return run.returncode != 0


def _find_stale(file: str) -> tuple[str, ...]:
    """Patterns of what numba has compiled, if the fault is in what it compiles.

    A compiled function holds those of other files that it calls, and its cache does not know.
    """
    return ("*.nbi", "*.nbc") if "njit" in (ROOT / file).read_text() else ()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("paths", nargs="+", help="files or folders of the package")
    parser.add_argument("--per-file", type=int, default=3, help="faults a file (default: 3)")
    parser.add_argument("--n-jobs", type=int, default=2, help="faults at a time (default: 2)")
    parser.add_argument("--table", type=Path, default=TABLE, help="written as results come")
    given = parser.parse_args()
    files = [f for path in given.paths for f in _files_below(ROOT / path)]
    planted = [
        m for f in files for m in sample_mutations(f, (ROOT / f).read_text(), given.per_file)
    ]
    with ThreadPoolExecutor(given.n_jobs) as pool:
        for file, failed in zip(files, pool.map(catch, files), strict=True):
            if failed:  # every fault of it would count as caught
                parser.error(f"{file}: its {failed} must pass in a copy without a fault")
    with given.table.open("w", newline="") as out, ThreadPoolExecutor(given.n_jobs) as pool:
        table = csv.DictWriter(out, _COLUMNS, extrasaction="ignore")
        table.writeheader()
        caught = pool.map(lambda m: catch(m.file, m), planted)
        for mutation, caught_by in zip(planted, caught, strict=True):
            table.writerow(asdict(mutation) | {"caught_by": caught_by})
            out.flush()
            print(caught_by or "NOT CAUGHT", mutation.file, mutation.function, mutation.kind)


def _files_below(path: Path) -> list[str]:
    files = [path] if path.is_file() else sorted(path.rglob("*.py"))
    return [str(f.relative_to(ROOT)) for f in files if f.name != "__init__.py"]


if __name__ == "__main__":
    main()
