"""Attention layers beside the classical solvers that they unroll."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .unrolled.audit import audit as audit
    from .unrolled.twins import check as check
    from .unrolled.twins import compare as compare
    from .unrolled.twins import fit_origin as fit_origin

__version__ = "0.3.0.dev0"

_WINGS = ("bench", "datasets", "solvers", "unrolled")
_BRIDGE = dict.fromkeys(("check", "compare", "fit_origin"), "unrolled.twins")
_BRIDGE["audit"] = "unrolled.audit"
__all__ = [*_WINGS, *_BRIDGE]


def __getattr__(name: str) -> Any:
    if name in _WINGS:
        return importlib.import_module(f"{__name__}.{name}")
    if name in _BRIDGE:
        return getattr(importlib.import_module(f"{__name__}.{_BRIDGE[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
