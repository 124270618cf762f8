"""Attention layers beside the classical solvers that they unroll."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .twins import check as check
    from .twins import compare as compare
    from .twins import fit_origin as fit_origin
    from .twins.audit import audit as audit

__version__ = "0.3.0.dev0"

_WINGS = ("bench", "datasets", "solvers", "twins", "unrolled")
_BRIDGE = dict.fromkeys(("check", "compare", "fit_origin"), "twins")
_BRIDGE["audit"] = "twins.audit"
__all__ = [*_WINGS, *_BRIDGE]


def __getattr__(name: str) -> Any:
    if name in _WINGS:
        return importlib.import_module(f"{__name__}.{name}")
    if name in _BRIDGE:
        return getattr(importlib.import_module(f"{__name__}.{_BRIDGE[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
