"""`twinsolve vectors`: inputs, outputs and gradients that kernels of others are held to."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .holding import hold as hold
    from .writing import write_vectors as write_vectors

_MODULES = {"hold": "holding", "write_vectors": "writing"}
__all__ = list(_MODULES)


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(f".{_MODULES[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
