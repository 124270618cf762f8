"""Ours on a problem in a process of its own: wall time and peak memory beyond the input."""

import json
import subprocess
import sys
import time
import warnings
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from threadpoolctl import threadpool_limits

from ...solvers import Solution
from .memory import reset_peak, resident
from .problems import SparseProblem

_WARM_UP = 64


def solve_alone(problem: SparseProblem, *, tol: float, n_jobs: int) -> dict[str, Any]:
    """Solve in a fresh process; returns ``seconds``, ``memory_mib`` and what `describe` says."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "problem.npz"
        arrays = {"Y": problem.Y, "lam": problem.lam}
        np.savez(path, **(arrays if problem.self_expression else arrays | {"D": problem.D}))  # type: ignore[arg-type]
        # -P: the present folder must not shadow what the child imports.
        command = [sys.executable, "-P", "-m", __name__, str(path), str(tol), str(n_jobs)]
        run = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(run.stdout)


def describe(problem: SparseProblem, solution: Solution) -> dict[str, float]:
    """Certificate, non-zeros and products with all atoms; the latter two are means over rows."""
    return {
        "gap": float(problem.gap(solution.coef, np.arange(len(problem.Y))).max()),
        "nonzeros": solution.coef.nnz / len(problem.Y),
        "passes": float(np.asarray(solution.n_passes).mean()),
    }


def _read(path: Path) -> SparseProblem:
    with np.load(path) as stored:
        Y = stored["Y"]
        return SparseProblem(Y, stored.get("D", Y), stored["lam"])


def _main(path: str, tol: str, n_jobs: str) -> None:
    problem = _read(Path(path))
    with threadpool_limits(int(n_jobs)), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        problem.first(_WARM_UP).solve(tol=float(tol), n_jobs=int(n_jobs))
        before = resident("VmRSS") if reset_peak() else np.nan
        start = time.perf_counter()
        solution = problem.solve(tol=float(tol), n_jobs=int(n_jobs))
        seconds = time.perf_counter() - start
        memory = resident("VmHWM") - before
        facts = {"seconds": seconds, "memory_mib": memory} | describe(problem, solution)
    print(json.dumps(facts))


if __name__ == "__main__":
    _main(*sys.argv[1:])
