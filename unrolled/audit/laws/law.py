"""What a law of networks is, and the list of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from torch import Tensor

Pair = tuple[Tensor, Tensor]
Measured = tuple[Tensor, Tensor, Tensor]  # and the noise, relative to the largest expected entry
EXACT = "nothing is computed"
HALF = "the error is a share"
HALF_OF_FLOAT32 = "half the digits of float32"
FACTOR = 10  # of a tolerance to the noise: the largest of three, none of which is near 0 by chance


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
        is the noise that it measured, from which the tolerance then comes.
    needs : tuple of str
        What the law needs of a model, of `Model.offers`.
    tolerance : float, optional
        Of the largest difference over the largest expected entry; by default the model's own
        rounding decides. Where noise is measured it is the most that is allowed.
    why : str
        Where the tolerance comes from.
    cases : tuple of tuple
        The further arguments of each check. The worst verdict is that of the law, so that an error
        in one case hides no fault in another.
    seeded : bool
        Whether every call draws the same random numbers.
    """

    name: str
    statement: str
    check: Callable[..., Pair | Measured]
    needs: tuple[str, ...]
    tolerance: float | None
    why: str
    cases: tuple[tuple[Any, ...], ...] = ((),)
    seeded: bool = True


LAWS: list[NetworkLaw] = []
Check = TypeVar("Check", bound=Callable[..., "Pair | Measured"])


def network_law(
    *needs: str,
    tolerance: float | None = None,
    why: str = "",
    cases: Iterable[Any] | None = None,
    seeded: bool = True,
) -> Callable[[Check], Check]:
    """Add a function to `LAWS`; its docstring is the statement. Each case is one more argument."""
    given = ((),) if cases is None else tuple((case,) for case in cases)

    def add(check: Check) -> Check:
        name = check.__name__.replace("_", " ")
        LAWS.append(
            NetworkLaw(name, str(check.__doc__), check, needs, tolerance, why, given, seeded)
        )
        return check

    return add
