"""Layer parameters as the plain numbers that solvers take."""

from ..attention import Positive


def head_value(parameter: Positive, head: int) -> float:
    """The parameter's value for one head, as the layer itself computes it."""
    values = parameter().detach().double().flatten()
    return float(values[head if len(values) > 1 else 0])
