"""Calls that ``torch.compile`` leaves as they are. Importing this module loads the compiler."""

from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

_P = ParamSpec("_P")
_T = TypeVar("_T")


@torch.compiler.disable(  # type: ignore[untyped-decorator]
    reason="the number of iterations depends on the data"
)
def run(function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
    """Call the function, outside of the compiled graph."""
    return function(*args, **kwargs)
