"""Where users import a name from: the shortest path that exports it."""

import importlib
import inspect
import pkgutil
from functools import cache
from types import ModuleType
from typing import Any

WINGS = ("twinsolve.solvers", "twinsolve.unrolled")
JUDGES = ("twinsolve.twins", "twinsolve.twins.audit", "twinsolve.twins.laws")
WHOLE = ("twinsolve.datasets", *JUDGES, "twinsolve.bench")  # a page each
_PUBLIC = ("twinsolve", *WINGS, "twinsolve.datasets", "twinsolve.twins")
_SHORTEST_FIRST = (*_PUBLIC, *WHOLE)


@cache
def families(wing: str) -> list[str]:
    """Families of a wing that have public names, folders and single files alike."""
    return [name for name in _modules_in(wing) if public_names(name)]


@cache
def public_names(module_name: str) -> dict[str, Any]:
    """Public classes and functions of a module, by their paths in it.

    These are the names in its `__all__`. A family without that list has for its public names what
    its files define and the wing exports, or what has an example.
    """
    module = importlib.import_module(module_name)
    if hasattr(module, "__all__"):
        names = {f"{module_name}.{name}": getattr(module, name) for name in module.__all__}
        return {path: thing for path, thing in names.items() if _is_documented(thing)}
    wing = importlib.import_module(module_name.rsplit(".", 1)[0])
    return {
        f"{file}.{name}": thing
        for file in (module_name, *_modules_in(module_name))
        for name, thing in vars(importlib.import_module(file)).items()
        if _is_documented(thing)
        and thing.__module__ == file
        and not name.startswith("_")
        and (name in getattr(wing, "__all__", ()) or "Examples\n---" in inspect.getdoc(thing))
    }


def public_path(thing: Any) -> str | None:
    """Import path of a class or function, None for what is not public."""
    return _paths().get(id(thing))


def promise(path: str) -> str:
    """What the page on research scripts promises of a name: "public" or "provisional"."""
    return "public" if path.rpartition(".")[0] in _PUBLIC else "provisional"


@cache
def _paths() -> dict[int, str]:
    paths: dict[int, str] = {}
    for module in (*_SHORTEST_FIRST, *(family for wing in WINGS for family in families(wing))):
        for path, thing in public_names(module).items():
            paths.setdefault(id(thing), path)
    return paths


def _modules_in(package: str) -> list[str]:
    path = getattr(importlib.import_module(package), "__path__", ())
    return sorted(f"{package}.{info.name}" for info in pkgutil.iter_modules(path))


def _is_documented(thing: Any) -> bool:
    is_code = callable(thing) and not isinstance(thing, ModuleType)
    return is_code and hasattr(thing, "__module__") and bool(inspect.getdoc(thing))
