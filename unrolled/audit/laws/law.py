"""What a law of networks is, and the list of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from ..model import Model

Pair = tuple[Tensor, Tensor]
EXACT = "nothing is computed"
HALF = "the error is a share"
HALF_OF_FLOAT32 = "half the digits of float32"
DIFFERENCES = "float32 inside moves differences by up to 1 %"


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
        ``check(model, inputs)`` returns what was found and what was expected.
    needs : tuple of str
        What the law needs of a model, of `Model.offers`.
    tolerance : float, optional
        Of the largest difference over the largest expected entry; by default the model's own
        rounding decides.
    why : str
        Where the tolerance comes from.
    """

    name: str
    statement: str
    check: Callable[[Model, Tensor], Pair]
    needs: tuple[str, ...]
    tolerance: float | None
    why: str


LAWS: list[NetworkLaw] = []


def network_law(
    *needs: str, tolerance: float | None = None, why: str = ""
) -> Callable[[Callable[[Model, Tensor], Pair]], Callable[[Model, Tensor], Pair]]:
    """Add a function to `LAWS`; its docstring is the statement."""

    def add(check: Callable[[Model, Tensor], Pair]) -> Callable[[Model, Tensor], Pair]:
        name = check.__name__.replace("_", " ")
        LAWS.append(NetworkLaw(name, str(check.__doc__), check, needs, tolerance, why))
        return check

    return add
