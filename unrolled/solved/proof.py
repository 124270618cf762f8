"""What is proved about the solutions of a call, and what is accepted."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, get_args

import numpy as np
import torch
from torch import Tensor

from ..attention import check_positive
from .implicit import Array, Inexact, Pull, solve_implicitly, tell

_KINK = 1e-9  # margin below which a solution counts as not differentiable


class SolvedRecord(NamedTuple):
    """What is proved about solutions, one number for each problem.

    Attributes
    ----------
    gap : Tensor of float64
        Duality gap of the solution in float64, on the scale that the function states.
    margin : Tensor of float64
        How far each problem is from a point where its solution is not differentiable, less a bound
        on rounding, as the function states; infinite where there is no such point.
    """

    gap: Tensor
    margin: Tensor


@dataclass(frozen=True)
class Standard:
    """What a function accepts of its solutions, and how it tells of others."""

    name: str
    tol: float
    inexact: Inexact
    cure: str = ""
    explain: Callable[[], str] = str  # says more where a solution is not differentiable

    def __post_init__(self) -> None:
        check_positive(self.tol, "tol")
        if self.inexact not in get_args(Inexact):
            raise ValueError(f"inexact: must be one of {get_args(Inexact)}, got {self.inexact!r}")

    def refuse(self, wrong: Array, what: str, worst: str) -> None:
        """Warn or raise if some problems are `wrong`, as `inexact` says."""
        if wrong.any():
            tell(self.inexact, f"{self.name}: {wrong.sum()} of {wrong.size} {what} ({worst})")

    def judge(self, gap: Array, margin: Array, with_gradient: bool) -> None:
        """Warn or raise if gaps are too large or, with gradients, margins too small."""
        what = f"solutions have a gap above tol={self.tol:.3g}"
        self.refuse(~(gap <= self.tol), what, f"largest {gap.max(initial=0):.3g}{self.cure}")
        kink = ~(margin > _KINK)
        if with_gradient and kink.any() and self.inexact != "ignore":
            what = "solutions are not proved to be differentiable; their gradient is one of several"
            self.refuse(kink, what, f"least margin {margin.min():.3g}{self.explain()}")

    def judge_gradients(self, error: Array) -> None:
        """Warn or raise if relative errors of gradients are too large."""
        what = f"gradients are not proved to be within tol={self.tol:.3g}"
        self.refuse(~(error <= self.tol), what, f"largest error {error.max(initial=0):.3g}")


Proved = tuple[Array, Pull, Array, Array]


def solve_certified(
    standard: Standard, problem: Callable[..., Proved], *inputs: Tensor
) -> tuple[Tensor, SolvedRecord]:
    """Solve as `solve_implicitly` does, and judge solutions and gradients by a standard.

    The problem also returns gaps and margins, and its pull-back ends in relative errors.
    """
    with_gradient = torch.is_grad_enabled() and any(x.requires_grad for x in inputs)
    record: list[Tensor] = []

    def solve(*arrays: Array) -> tuple[Array, Pull]:
        def pull_judged(w: Array) -> list[Array]:
            *gradients, error = pull(w)
            standard.judge_gradients(np.asarray(error))
            return gradients

        solution, pull, *numbers = problem(*arrays)
        gap, margin = map(np.asarray, numbers)  # NumPy makes scalars of those without axes
        standard.judge(gap, margin, with_gradient)
        record.extend(map(torch.from_numpy, (gap, margin)))
        return solution, pull_judged

    return solve_implicitly(standard.name, solve, *inputs), SolvedRecord(*record)
