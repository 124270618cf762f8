"""Hashes of the source that decides a result, as parts of the keys of kept results."""

import ast
import inspect
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import joblib

from .provenance import versions

_PACKAGE = Path(__file__).parents[1]
_NAME = __name__.partition(".")[0]
_WINGS = tuple(_PACKAGE / wing for wing in ("solvers", "unrolled", "twins", "datasets", "bench"))
_DATA = (".npz", ".safetensors", ".toml")  # weights and settings decide results too


def code(*modules: str) -> dict[str, Any]:
    """The common part of all keys: a hash of source, and versions of libraries.

    The source is that of `imported_files`; without modules, or if one is not of the package, it is
    the whole package.
    """
    whole = not modules or not all(map(in_package, modules))
    source = _hash_package() if whole else _hash_imports(modules)
    return {"source": source, "versions": versions()}


def _hash_package() -> str:
    return source_hash(*_WINGS, suffixes=(".py", *_DATA))


@lru_cache(maxsize=8)
def source_hash(*folders: Path, suffixes: tuple[str, ...] = (".py",)) -> str:
    """Hash of the source files below some folders."""
    return _hash_files(path for x in folders for path in x.rglob("*") if path.suffix in suffixes)


@lru_cache(maxsize=32)
def _hash_imports(modules: tuple[str, ...]) -> str:
    return _hash_files(imported_files(*modules))


def _hash_files(paths: Iterable[Path]) -> str:
    return joblib.hash([(path.name, path.read_bytes()) for path in sorted(paths)])


def imported_files(*modules: str) -> set[Path]:
    """Files of modules of the package and of those that they import, with data in their folders.

    Imports inside functions count, and so do names of modules in strings, such as
    ``"twinsolve.solvers:SparseSubspaceClustering"``. Of a package around a module its own file
    counts, and not what it imports.
    """
    todo, found = list(modules), {}
    while todo:
        name = todo.pop()
        path = _find_file(name)
        if path is not None and name not in found:
            found[name] = path
            todo += _read_imports(name, path)
    around = {
        ".".join(parts[:n])
        for parts in (name.split(".") for name in found)
        for n in range(1, len(parts))
    }
    found |= {name: path for name in around if (path := _find_file(name)) is not None}
    folders = {path.parent for path in found.values()} - {_PACKAGE}
    data = {path for x in folders for path in x.rglob("*") if path.suffix in _DATA}
    return {*found.values(), *data}


def in_package(module: str) -> bool:
    """Whether there is a module of that name in the package."""
    return _find_file(module) is not None


def _find_file(module: str) -> Path | None:
    """The file of a module of the package; None for others."""
    first, *rest = module.split(".")
    place = _PACKAGE.joinpath(*rest)
    files = [place / "__init__.py", *([place.with_suffix(".py")] if rest else [])]
    return next(filter(Path.is_file, files), None) if first == _NAME else None


def _read_imports(module: str, path: Path) -> Iterator[str]:
    """Names of what a module's code imports, which may be modules or things in modules."""
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in _walk_code(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) + 1 - node.level]
            base = ".".join([*(above if node.level else []), *filter(None, [node.module])])
            yield from (base, *(f"{base}.{alias.name}" for alias in node.names))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from re.findall(rf"^{_NAME}(?:\.\w+)+(?=$|:\w+$)", node.value)


def _walk_code(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes but those that only type checkers read."""
    yield node
    for child in ast.iter_child_nodes(node):
        if not (isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"):
            yield from _walk_code(child)


def file_hash(path: str | Path | None) -> str | None:
    """Hash of a file; None if there is no such file."""
    if path is None or not Path(path).is_file():
        return None
    return joblib.hash(Path(path).read_bytes())


def source_of(thing: Any) -> str | None:
    """Hash of a user's function, class or object, as a key of its kept results.

    It covers the source file, the whole package, which the file may import, and what the thing
    holds: arguments of a partial function, defaults and enclosed variables of a function, the
    object of a method, attributes of an object. It is None without a source file.

    Raises
    ------
    ValueError
        If something that the thing holds cannot be pickled.
    """
    inner = thing
    while isinstance(inner, partial):
        inner = inner.func
    path = _find_source(inner)
    if path is None:
        return None
    known = [] if any(map(path.is_relative_to, _WINGS)) else [_hash_package()]
    return joblib.hash([*known, _describe(thing, ())])


def _find_source(thing: Any) -> Path | None:
    """The file where a function, or the class of an object, is defined."""
    if not (isinstance(thing, type) or inspect.isroutine(thing)):
        thing = type(thing)
    if isinstance(thing, type):  # in a script, only the functions of a class know the file
        thing = next(filter(inspect.isfunction, vars(thing).values()), thing)
    try:
        path = Path(inspect.getfile(thing))
    except (OSError, TypeError):  # built-in things have no file
        return None
    return path if path.is_file() else None


def _describe(thing: Any, around: tuple[int, ...]) -> Any:
    """Names and hashes of a thing and of what it holds; `around` has the ids of its holders."""
    if isinstance(thing, str):
        return thing
    if id(thing) in around:
        return "itself"
    around = (*around, id(thing))
    held: tuple[Any, ...] = ()
    if isinstance(thing, list | tuple):
        return [_describe(x, around) for x in thing]
    if isinstance(thing, dict):
        return [(name, _describe(x, around)) for name, x in thing.items()]
    if isinstance(thing, partial):
        held = thing.func, thing.args, thing.keywords
    elif inspect.ismethod(thing):
        held = thing.__func__, thing.__self__
    elif inspect.isfunction(thing):
        held = list(_read_cells(thing)), thing.__defaults__, thing.__kwdefaults__
    elif not isinstance(thing, type):
        held = (_read_object(thing),)
    name = getattr(thing, "__qualname__", type(thing).__qualname__)
    return [name, file_hash(_find_source(thing)), *(_describe(x, around) for x in held)]


def _read_cells(function: Any) -> Iterator[Any]:
    """Enclosed variables of a function."""
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # of an empty cell
            yield cell.cell_contents


def _read_object(thing: Any) -> Any:
    """A hash of an object, or its attributes if it cannot be pickled."""
    try:
        return joblib.hash(thing)
    except Exception as error:  # pickling may raise anything
        if _find_source(thing) is None:
            raise ValueError(
                f"a function or object of yours holds a {type(thing).__name__}, which cannot be "
                "pickled: its kept results could not be told from those of another"
            ) from error
    return thing.__getstate__()
