"""What a command leaves on disk: the table, its settings, a summary and figures."""

import hashlib
import json
import os
import platform
import re
from collections.abc import Callable
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from threadpoolctl import threadpool_info

# Of NumPy alone: other packages may bring their own later.
_BLAS = sorted(
    {
        f"{library['internal_api']} for {library.get('architecture', 'this processor')}"
        for library in threadpool_info()
        if library["user_api"] == "blas"
    }
)
_PACKAGES = ("twinsolve", "numpy", "scipy", "scikit-learn", "numba", "cvxpy", "torch")


def provenance(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings of a run, with the versions and the machine it ran on."""
    return {
        "settings": settings,
        "versions": {"python": platform.python_version()}
        | {package: version(package) for package in _PACKAGES},
        "machine": f"{platform.system()} {platform.machine()}, {processor()}",
    }


def processor() -> str:
    """Model, cores and the kernels that BLAS chose: timings of others are told apart by these."""
    try:
        found = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    except OSError:
        found = None
    model = found[1] if found else platform.processor()
    return ", ".join([model, f"{os.cpu_count()} cores", *_BLAS])


def write_table(table: pd.DataFrame, directory: Path) -> None:
    """Write the rows to ``table.json``: a list of objects; numbers that are not finite are null."""
    directory.mkdir(parents=True, exist_ok=True)
    finite = table.replace([np.inf, -np.inf], np.nan).astype(object)
    rows = finite.where(finite.notna(), None).to_dict(orient="records")
    (directory / "table.json").write_text(json.dumps(rows, indent=1, allow_nan=False) + "\n")


@lru_cache(maxsize=1)
def source_hash() -> str:
    """Hash of the package's source files, by which results of another source are told apart."""
    root = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for folder in ("solvers", "unrolled", "datasets", "bench"):
        for path in sorted((root / folder).rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()


def resume_table(
    run: Callable[[], pd.DataFrame], key: dict[str, Any], directory: Path | None
) -> pd.DataFrame:
    """Rows of a run from `directory`, if one with this key is there; else run and keep them.

    The key says what decides the result: settings, seed and `source_hash`.
    """
    if directory is None:
        return run()
    path = directory / f"{_digest(key)}.json"
    if path.is_file():
        return pd.DataFrame(json.loads(path.read_text())["rows"])
    table = run()
    directory.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".part")
    unfinished.write_text(json.dumps({"key": key, "rows": table.to_dict(orient="records")}))
    unfinished.replace(path)
    return table


def resume_array(
    make: Callable[[], np.ndarray], key: dict[str, Any], directory: Path
) -> np.ndarray:
    """An array from `directory`, if one with this key is there; else make it and keep it."""
    path = directory / f"{_digest(key)}.npy"
    if not path.is_file():
        directory.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(f".{os.getpid()}.part")
        with unfinished.open("wb") as file:
            np.save(file, make())
        unfinished.replace(path)
    found: np.ndarray = np.load(path)
    return found


def _digest(key: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16]


def write_summary(title: str, lines: list[str], run: dict[str, Any], directory: Path) -> None:
    """Write ``settings.json`` and a Markdown summary."""
    (directory / "settings.json").write_text(json.dumps(run, indent=1) + "\n")
    versions = ", ".join(f"{name} {number}" for name, number in run["versions"].items())
    given = {k: v for k, v in run["settings"].items() if v is not None and v is not False}
    settings = ", ".join(f"{name}={value}" for name, value in given.items())
    machine = f"Run with {versions}, on {run['machine']}."
    text = [f"# {title}", "", *lines, "", f"Settings: {settings}.", "", machine]
    (directory / "summary.md").write_text("\n".join(text) + "\n")
