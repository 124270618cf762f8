"""What a wing offers: the names of its root and those of its families."""

import importlib
import pkgutil
from typing import Any


def public(wing: str) -> dict[str, Any]:
    """Each name that the root of a wing or one of its families exports, and what it names."""
    root = importlib.import_module(f"twinsolve.{wing}")
    families = [
        importlib.import_module(info.name)
        for info in pkgutil.iter_modules(root.__path__, f"{root.__name__}.")
        if info.name.rsplit(".")[-1] != "oracles"
    ]
    return {
        name: getattr(module, name)
        for module in (root, *families)
        for name in getattr(module, "__all__", ())
    }
