"""What a law of networks is, and the list of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from torch import Tensor

Pair = tuple[Tensor, Tensor]
Measured = tuple[Tensor, Tensor, Tensor]  # and differences of all sizes
EXACT = "nothing is computed"
HALF = "the error is a share"


class NotApplicable(Exception):
    """Raised by a law that a network turns out not to promise."""


@dataclass(frozen=True)
class NetworkLaw:
    """A law of networks.

    Attributes
    ----------
    name : str
    statement : str
        What holds, in a sentence.
    check : callable
        ``check(model, inputs, *case)`` returns what was found and what was expected. A third tensor
        has all differences, from whose noise the tolerance then comes.
    needs : tuple of str
        What the law needs of a model, of `Model.offers`.
    tolerance : float, optional
        Of the largest difference over the largest expected entry; by default the model's own
        rounding decides. Where noise is measured, a network that needs more cannot be judged.
    why : str
        Where the tolerance comes from.
    cases : tuple of tuple
        The further arguments of each check. The worst verdict is that of the law, so that an error
        in one case hides no fault in another.
    seeded : bool
        Whether every call draws the same random numbers.
    growth : float
        Without a tolerance, how many times that of the model is allowed.
    grad : bool
        Whether calls record what gradients need.
    exact : bool
        Whether the network and its inputs are in float64.
    """

    name: str
    statement: str
    check: Callable[..., Pair | Measured]
    needs: tuple[str, ...]
    tolerance: float | None
    why: str
    cases: tuple[tuple[Any, ...], ...] = ((),)
    seeded: bool = True
    growth: float = 1
    grad: bool = False
    exact: bool = False


LAWS: list[NetworkLaw] = []
Check = TypeVar("Check", bound=Callable[..., "Pair | Measured"])


def network_law(
    *needs: str,
    tolerance: float | None = None,
    why: str = "",
    cases: Iterable[Any] | None = None,
    seeded: bool = True,
    growth: float = 1,
    grad: bool = False,
    exact: bool = False,
) -> Callable[[Check], Check]:
    """Add a function to `LAWS`; its docstring is the statement. Each case is one more argument."""
    case_tuples = ((),) if cases is None else tuple((case,) for case in cases)

    def add(check: Check) -> Check:
        name, said = check.__name__.replace("_", " "), str(check.__doc__)
        how = (needs, tolerance, why, case_tuples, seeded, growth, grad, exact)
        LAWS.append(NetworkLaw(name, said, check, *how))
        return check

    return add
