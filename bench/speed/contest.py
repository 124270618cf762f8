"""Contests of `twinsolve speed`: in each case, entrants take turns on the same input."""

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from importlib.metadata import packages_distributions, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pandas as pd
from llvmlite.binding import get_host_cpu_features

from ... import __version__
from ..jobs import resume_table
from ..provenance import instructions, processor
from ..sources import code
from ..timing import Progress, in_turns, measured, seconds_of, threads, timing

_EXTENSIONS: Any = np.show_config(mode="dicts")["SIMD Extensions"]
# Sorted, as disabled extensions move to "not found" and must not change the order.
_BEYOND = sorted(
    name
    for kind in ("found", "not found")
    for name in _EXTENSIONS.get(kind, [])
    if "AVX512" in name or name == "X86_V4"
)
# Variables of numba, OpenBLAS, NumPy, MKL, oneDNN, torch and OpenCV, in that order.
_AVX2 = {
    "NUMBA_CPU_NAME": "haswell",
    "NUMBA_CPU_FEATURES": "+avx,+avx2,+bmi,+bmi2,+f16c,+fma,+lzcnt,+popcnt,+sse4.2",
    "OPENBLAS_CORETYPE": "Haswell",
    "NPY_DISABLE_CPU_FEATURES": " ".join(_BEYOND),
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "ATEN_CPU_CAPABILITY": "avx2",
    "OPENCV_CPU_DISABLE": "AVX512F,AVX512-COMMON,AVX512-SKX",
}


def hold_to(instructions: str | None) -> None:
    """Restart the process with variables that limit libraries to AVX2 instructions.

    Raises
    ------
    ValueError
        If `instructions` is neither None nor ``avx2``, or the processor has no AVX2.
    """
    if instructions is None:
        return
    if instructions != "avx2":
        raise ValueError(f"instructions: must be avx2, got {instructions!r}")
    if not get_host_cpu_features().get("avx2"):
        raise ValueError("instructions: this processor has no AVX2")
    if any(os.environ.get(name) != value for name, value in _AVX2.items()):
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], os.environ | _AVX2)


OURS = "twinsolve"
_T = TypeVar("_T")


class Entrant:
    """A participant of a contest: `run` is timed, `prepare` is not.

    The time of a run is divided by `count`. A row of the table begins with the `labels`. An entrant
    with a `note` has dropped out; the note says why.
    """

    labels: Mapping[str, Any] = {}
    count = 1
    n_jobs = 1
    note = ""

    def prepare(self) -> None:
        """Compile everything that `run` needs."""
        self.run()

    def run(self) -> None:
        raise NotImplementedError

    def facts(self) -> dict[str, Any]:
        """Further cells of the row, on the result of the last run."""
        return {}

    def prepare_on_its_threads(self) -> None:
        if not self.note:
            with threads(self.n_jobs):
                self.prepare()

    def milliseconds(self) -> float:
        """Time of a run, divided by `count`; NaN if the entrant has dropped out."""
        if self.note:
            return np.nan
        with threads(self.n_jobs):
            return 1000 * seconds_of(self.run) / self.count


def compete(
    entrants: Sequence[Entrant],
    rounds: int,
    progress: Progress | None = None,
    *,
    memory: bool = False,
) -> list[dict[str, Any]]:
    """A row for each entrant: labels, facts, and times beside the first entrant's as in `timing`.

    With `memory`, the peak memory of the first entrant is measured too.
    """
    peak: dict[str, float] = {}
    first = [lambda: peak.update(memory_mib=alone(entrants[0])["memory_mib"])] if memory else []
    ms = in_turns(
        [entrant.milliseconds for entrant in entrants],
        rounds,
        before=[*first, *(entrant.prepare_on_its_threads for entrant in entrants)],
        progress=progress,
    )
    rows = [
        {**e.labels, "note": e.note} | ({} if e.note else timing(own, ms[0]) | e.facts())
        for own, e in zip(ms, entrants, strict=True)
    ]
    return [rows[0] | peak, *rows[1:]]


def alone(entrant: Entrant) -> dict[str, Any]:
    """Run an entrant once in a fresh process; its row has ``memory_mib`` beyond the input."""
    # -P: the current folder must not shadow modules that the child imports.
    command = [sys.executable, "-P", "-m", __name__]
    run = subprocess.run(command, input=pickle.dumps(entrant), stdout=subprocess.PIPE, check=True)
    return json.loads(run.stdout)


def _main() -> None:
    entrant: Entrant = pickle.load(sys.stdin.buffer)
    with threads(entrant.n_jobs):
        entrant.prepare()
        seconds, memory = measured(partial(seconds_of, entrant.run))
    ms = 1000 * seconds / entrant.count
    row = {**entrant.labels, "ms": ms, "memory_mib": memory, "note": ""} | entrant.facts()
    print(json.dumps(row))


@dataclass(frozen=True)
class Rounds:
    """Options of all cases: rounds, threads, seed, folder of finished cases, progress."""

    rounds: int
    n_jobs: int
    seed: int
    directory: Path | None
    progress: Progress | None

    def __post_init__(self) -> None:
        if min(self.rounds, self.n_jobs) < 1 or self.seed < 0:
            given = f"{self.rounds}, {self.n_jobs} and {self.seed}"
            raise ValueError(f"rounds, n_jobs: must be >= 1 and seed >= 0, got {given}")


def run_cases(
    command: str,
    cases: Mapping[str, _T],
    run: Callable[[_T], list[dict[str, Any]]],
    options: Rounds,
    *,
    peers: Mapping[str, str | None],
    columns: list[str],
) -> pd.DataFrame:
    """The rows of all cases; the row of a case without data says so in its note.

    The key of a kept case is command, name, versions of the peers and of our libraries, rounds,
    threads, seed, source, processor and instruction sets.
    """
    if not cases:
        raise ValueError("cases: must name at least one")
    key: dict[str, Any] = {
        "command": command,
        "peers": peers,
        "rounds": options.rounds,
        "n_jobs": options.n_jobs,
        "seed": options.seed,
        "machine": processor(),
        "instructions": instructions(),
        **code(),
    }

    def rows_of(name: str) -> pd.DataFrame:
        return pd.DataFrame([{"case": name} | row for row in run(cases[name])])

    tables = []
    for name in cases:
        own = key | {"case": name}
        try:
            tables.append(resume_table(partial(rows_of, name), own, options.directory))
        except FileNotFoundError as error:
            tables.append(pd.DataFrame([{"case": name, "note": str(error)}]))
    return pd.concat(tables, ignore_index=True).reindex(columns=columns)


def chosen(names: Iterable[str] | None, known: Mapping[str, _T], argument: str) -> dict[str, _T]:
    """The items of `known` by `names`, in that order; None is all but those on request."""
    if names is None:
        return {name: x for name, x in known.items() if not getattr(x, "alone", False)}
    names = list(names)
    if unknown := set(names) - set(known):
        raise ValueError(f"{argument}: must be among {list(known)}, got {sorted(unknown)}")
    return {name: known[name] for name in names}


def installed(module: str) -> str | None:
    """Version of the distribution with that module; None if it is not installed."""
    if module == OURS:  # runs without being installed
        return __version__
    if find_spec(module) is None:
        return None
    return version(_distributions()[module][0])


@cache
def _distributions() -> Mapping[str, list[str]]:
    return packages_distributions()


if __name__ == "__main__":
    _main()
