"""Results folders that the commands wrote: where they are, and what they hold."""

import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from ...datasets.files import naming
from ..clustering.matrix_files import DrawnMatrices, read_matrices
from ..tables import read_table

_SETTINGS, _SUMMARY, _METRICS = "settings.json", "summary.md", "metrics.jsonl"
_CHOICE = "choice.json"
_OWN = re.compile(r"(labels|candidates)(-\d+)?\.csv")  # tables that no summary names
_CHOSEN = ("method", "settings", "affinity", "n_clusters", "score", "agreement", "rule", "warning")


@dataclass(frozen=True, eq=False)
class Run:
    """What a results folder holds.

    `record` is what settings.json says: settings, versions, command and machine. `text` is the
    summary in Markdown. `tables` are those that the summary names but does not show; `rows` are the
    tables of single runs, of which charts are drawn.
    """

    folder: Path
    title: str
    record: dict[str, Any]
    text: str
    tables: dict[str, pd.DataFrame] = field(default_factory=dict)
    rows: dict[str, pd.DataFrame] = field(default_factory=dict)
    matrices: dict[str, DrawnMatrices] = field(default_factory=dict)


def read_runs(places: Sequence[Path]) -> list[Run]:
    """Read every results folder at or below these folders; those in folders `runs` are left out.

    Raises
    ------
    FileNotFoundError
        If a place is no folder, or holds no results.
    ValueError
        If a file is damaged; the message names it.
    """
    found: dict[Path, Run] = {}
    for place in places:
        if not place.is_dir():
            raise FileNotFoundError(f"{place}: is not a folder")
        here = [run for folder in _walk(place) if (run := _read_run(folder))]
        if not here:
            raise FileNotFoundError(
                f"{place}: holds no results; a command of twinsolve leaves {_SETTINGS} with "
                f"{_SUMMARY} or {_METRICS}, or {_CHOICE}, in its folder"
            )
        found |= {run.folder.resolve(): run for run in here}
    return list(found.values())


def _walk(place: Path) -> Iterator[Path]:
    for folder, below, _ in os.walk(place):
        below[:] = sorted(name for name in below if name != "runs" and name[0] != ".")
        yield Path(folder)


def _read_run(folder: Path) -> Run | None:
    files = {path.name for path in folder.iterdir()}
    if _CHOICE in files:
        choice = _read_json(folder / _CHOICE)
        return _make_run(folder, "twinsolve cluster --auto", choice["run"], _describe(choice))
    if {_SETTINGS, _SUMMARY} <= files:
        title, _, text = (folder / _SUMMARY).read_text().partition("\n")
        return _make_run(folder, title.lstrip("# "), _read_json(folder / _SETTINGS), text)
    if {_SETTINGS, _METRICS} <= files:
        with naming(folder / _METRICS, "file of metrics"):
            steps = {_METRICS: pd.read_json(folder / _METRICS, lines=True).astype(str)}
        return Run(folder, "Training run", _read_json(folder / _SETTINGS), "", tables=steps)
    return None


def _make_run(folder: Path, title: str, record: dict[str, Any], text: str) -> Run:
    files = sorted(folder.iterdir())
    named = {*re.findall(r"[\w-]+\.csv", text), *(f.name for f in files if _OWN.fullmatch(f.name))}
    tables = {file.name: _read_csv(file) for file in files if file.name in named}
    rows = {
        file.name: _read_rows(file) for file in files if re.search(r"\.json(\.gz)?$", file.name)
    }
    if (candidates := folder / "candidates.csv").is_file():
        rows[candidates.name] = pd.read_csv(candidates)
    matrices = {file.name: read_matrices(file) for file in files if file.suffix == ".npz"}
    known = {name: table for name, table in rows.items() if table is not None}
    return Run(folder, title, record, text, tables, known, matrices)


def _describe(choice: dict[str, Any]) -> str:
    """The choice of ``twinsolve cluster --auto`` in Markdown."""
    said = {name: choice[name] for name in _CHOSEN if choice.get(name)}
    if isinstance(settings := said.get("settings"), dict):
        said["settings"] = ", ".join(f"{name}={value}" for name, value in settings.items())
    lines = [
        f"- {name}: {format(value, '.3f') if isinstance(value, float) else value}"
        for name, value in said.items()
    ]
    return "\n".join([f"Clusters of {choice['data']}, {choice['features']}:", "", *lines])


def _read_json(path: Path) -> dict[str, Any]:
    with naming(path, "file of settings of twinsolve"):
        content: dict[str, Any] = json.loads(path.read_text())
        {"settings", "versions"} <= content.keys() or content["run"]["settings"]
        return content


def _read_csv(path: Path) -> pd.DataFrame:
    with naming(path, "table"):
        return pd.read_csv(path, dtype=str, keep_default_na=False)


def _read_rows(path: Path) -> pd.DataFrame | None:
    if path.name in (_SETTINGS, _CHOICE):
        return None
    with naming(path, "table of twinsolve"):
        return read_table(path)
