"""What a call does where torch traces it: compiled, exported or transformed."""

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor

_P = ParamSpec("_P")
_T = TypeVar("_T")


def is_transformed() -> bool:
    """Whether a transform of ``torch.func``, or forward-mode differentiation, is running."""
    forward_mode = torch.autograd.forward_ad._current_level >= 0
    return forward_mode or torch._C._are_functorch_transforms_active()


def has_no_values(x: Tensor) -> bool:
    """Whether values of x cannot be read: compiled, exported or on the meta device."""
    return torch.compiler.is_compiling() or x.is_meta


def has_static_value(n: int) -> bool:
    """Whether a length is known: always outside of tracing, else if no call may change it.

    PyTorch's function of this name loads SymPy, so it is imported only where torch traces.
    """
    if not (torch.compiler.is_compiling() or isinstance(n, torch.SymInt)):
        return True
    from torch.fx.experimental.symbolic_shapes import has_static_value

    return has_static_value(n)


def untraced(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """Decorate a function that compiled programs call uncompiled; full-graph compilation fails.

    ``torch.compiler.disable`` does so too, but it loads the compiler, which takes as long as torch.
    """

    @wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        if not torch.compiler.is_compiling():
            return function(*args, **kwargs)
        from .uncompiled import run

        return run(function, *args, **kwargs)

    return call
