"""Names of operators, for shells that cannot import the operators, which import shells' parts."""

from collections.abc import Callable
from difflib import get_close_matches

from .operator import Operator

Factory = Callable[[int, int], Operator]

FACTORIES: dict[str, Factory] = {}  # `named_operators` fills it


def operator_factory(name: str) -> Factory:
    """Return the factory of a named operator; it is called as ``factory(num_heads, head_dim)``."""
    if name not in FACTORIES:
        close = get_close_matches(str(name), sorted(FACTORIES), n=1)
        hint = f"; close is {close[0]}" if close else ""
        raise ValueError(
            f"operator: must be one of {', '.join(sorted(FACTORIES))}, got {name!r}{hint}"
        )
    return FACTORIES[name]
