"""What a command leaves on disk: the table, its settings, a summary and figures."""

import ast
import hashlib
import json
import os
import platform
import re
import sys
from collections.abc import Callable
from functools import lru_cache
from importlib.metadata import version
from io import BytesIO
from pathlib import Path
from typing import Any
from uuid import uuid4
from zipfile import BadZipFile

import numpy as np
import pandas as pd
from threadpoolctl import threadpool_info

from .. import __version__

# Of NumPy alone: other packages may bring their own later.
_BLAS = sorted(
    {
        f"{library['internal_api']}: {library.get('architecture', 'this processor')}"
        for library in threadpool_info()
        if library["user_api"] == "blas"
    }
)
_VECTORS = {"+avx512f": "AVX-512", "+avx2": "AVX2", "+avx": "AVX", "+sse2": "SSE2", "+neon": "NEON"}
_PACKAGES = ("numpy", "scipy", "scikit-learn", "numba", "cvxpy", "torch")
_NOT_KEPT = (FileNotFoundError, ValueError, LookupError, EOFError, BadZipFile)  # or is damaged
Part = tuple[dict[str, Any], dict[str, np.ndarray]]  # a row, and arrays that belong to it


def provenance(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings of a run, with the versions and the machine it ran on."""
    return {
        "settings": settings,
        "versions": _versions(),
        "machine": f"{platform.system()} {platform.machine()}, {processor()}",
        "instructions": ", ".join([instructions(), *_of_torch()]),
    }


def _versions() -> dict[str, str]:
    own = {"python": platform.python_version(), "twinsolve": __version__}
    return own | {package: version(package) for package in _PACKAGES}


def processor() -> str:
    """Model and cores: timings of others are told apart by these and by `instructions`."""
    try:
        found = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    except OSError:
        found = None
    model = found[1] if found else platform.processor()
    return f"{model}, {os.cpu_count()} cores"


def instructions() -> str:
    """Vector instructions that numba compiles for, and the kernels that BLAS chose."""
    from numba.core.registry import cpu_target

    _, processor_compiled_for, features = cpu_target.target_context.codegen().magic_tuple()
    widest = next(
        (name for flag, name in _VECTORS.items() if flag in features.split(",")), "scalar"
    )
    return ", ".join([f"numba: {widest} ({processor_compiled_for})", *_BLAS])


def _of_torch() -> list[str]:
    if "torch" not in sys.modules:
        return []
    return [f"torch: {sys.modules['torch'].backends.cpu.get_cpu_capability()}"]


def write_table(table: pd.DataFrame, directory: Path) -> None:
    """Write the rows to ``table.json``: a list of objects; numbers that are not finite are null."""
    directory.mkdir(parents=True, exist_ok=True)
    finite = table.replace([np.inf, -np.inf], np.nan).astype(object)
    rows = finite.where(finite.notna(), None).to_dict(orient="records")
    (directory / "table.json").write_text(json.dumps(rows, indent=1, allow_nan=False) + "\n")


def code() -> dict[str, Any]:
    """What every key of kept results has: the source, and versions of what it is built on."""
    return {"source": source_hash(), "versions": _versions()}


@lru_cache(maxsize=1)
def source_hash() -> str:
    """Hash of the package's code, without docstrings and comments, which decide no result."""
    root = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for folder in ("solvers", "unrolled", "datasets", "bench"):
        for path in sorted((root / folder).rglob("*.py")):
            digest.update(code_of_text(path.read_text()).encode())
    return digest.hexdigest()


def code_of_text(source: str) -> str:
    """What a source file does: its syntax tree without docstrings."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and _is_text(body[0]):
            body[0] = ast.Pass()
    return ast.dump(tree)


def _is_text(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )


def resume_table(
    run: Callable[[], pd.DataFrame], key: dict[str, Any], directory: Path | None
) -> pd.DataFrame:
    """Rows of a run from `directory`, if one with this key is there whole; else run and keep them.

    The key says what decides the result: settings, seed and `code`.
    """
    if directory is None:
        return run()
    path = directory / f"{_digest(key)}.json"
    if (kept := _read_rows(path)) is not None:
        return kept
    table = run()
    rows = json.dumps({"key": key, "rows": table.to_dict(orient="records")})
    _write_whole(path, rows.encode())
    return table


def _read_rows(path: Path) -> pd.DataFrame | None:
    try:
        return pd.DataFrame(json.loads(path.read_text())["rows"])
    except _NOT_KEPT:
        return None


def resume_parts(
    make: Callable[[], list[Part]], key: dict[str, Any], directory: Path | None
) -> list[Part]:
    """Rows with arrays from `directory`, if some with this key are there whole; else make them.

    They are kept, and the key is, as in `resume_table`.
    """
    if directory is None:
        return make()
    path = directory / f"{_digest(key)}.npz"
    if (kept := _read_parts(path)) is not None:
        return kept
    parts = make()
    arrays = {
        f"{number}/{name}": array
        for number, (_, own) in enumerate(parts)
        for name, array in own.items()
    }
    content = BytesIO()
    np.savez(content, rows=json.dumps([row for row, _ in parts]), **arrays)  # type: ignore[arg-type]
    _write_whole(path, content.getvalue())
    content.seek(0)
    return _parts_of(content)


def _read_parts(path: Path) -> list[Part] | None:
    try:
        return _parts_of(path)
    except _NOT_KEPT:
        return None


def _parts_of(content: Path | BytesIO) -> list[Part]:
    with np.load(content, allow_pickle=False) as kept:
        parts: list[Part] = [(row, {}) for row in json.loads(str(kept["rows"]))]
        for place in set(kept.files) - {"rows"}:
            number, _, name = place.partition("/")
            parts[int(number)][1][name] = kept[place]
    return parts


def _write_whole(path: Path, content: bytes) -> None:
    """Whole or not at all: under a name first that no other process or thread writes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(f".{uuid4().hex}.part")
    try:
        unfinished.write_bytes(content)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def _digest(key: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16]


def write_summary(title: str, lines: list[str], run: dict[str, Any], directory: Path) -> None:
    """Write ``settings.json`` and a Markdown summary."""
    (directory / "settings.json").write_text(json.dumps(run, indent=1) + "\n")
    versions = ", ".join(f"{name} {number}" for name, number in run["versions"].items())
    given = {k: v for k, v in run["settings"].items() if v is not None and v is not False}
    settings = ", ".join(f"{name}={value}" for name, value in given.items())
    machine = f"Run with {versions}, on {run['machine']}."
    vectors = f"Instruction sets: {run['instructions']}."
    text = [f"# {title}", "", *lines, "", f"Settings: {settings}.", "", machine, "", vectors]
    (directory / "summary.md").write_text("\n".join(text) + "\n")
