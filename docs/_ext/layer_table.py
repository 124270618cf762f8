"""The directive `layer-table`: which solver and which paper stand behind each layer.

Its rows are the catalogue of twins at the start of the build.
"""

import functools
import inspect
import re
from collections.abc import Iterable, Iterator
from itertools import groupby
from types import CodeType, FunctionType
from typing import Any

from docutils import nodes
from public_names import public_path
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from sphinx.util.i18n import format_date

import twinsolve
from twinsolve.solvers.sparse_coding import lam_max, lasso_objective
from twinsolve.twins import Twin, catalogue, exact_twin

_TWINS = sorted(catalogue(), key=lambda twin: twin.family)  # before examples register their own
_HEAD = "| layer | solver | relation | equation | paper |\n|---|---|---|---|---|\n"


class LayerTable(SphinxDirective):
    """A dated table for each family."""

    def run(self) -> list[nodes.Node]:
        """Called by Sphinx."""
        self.env.note_reread()  # the catalogue may differ where the page does not
        sections = [
            self._section(family, list(members))
            for family, members in groupby(_TWINS, key=lambda twin: twin.family)
        ]
        return [*self.parse_text_to_nodes(self._date(len(_TWINS))), *sections]

    def _section(self, family: str, twins: list[Twin]) -> nodes.section:
        title = family.replace("_", " ").capitalize()
        table = self.parse_text_to_nodes(_HEAD + _rows(twins))
        return nodes.section("", nodes.title("", title), *table, ids=[nodes.make_id(family)])

    def _date(self, count: int) -> str:
        today = format_date("%Y-%m-%d", language=self.config.language)
        return f"**{today}**, version {twinsolve.__version__}, {count} twins.\n"


def _rows(twins: Iterable[Twin]) -> str:
    """One row for each layer, solver and paper; relations and equations of these together."""
    merged: dict[tuple[str, str, str], list[Twin]] = {}
    for twin in twins:
        key = (_link(twin.layer), _solver(twin), twin.source)
        merged.setdefault(key, []).append(twin)
    return "\n".join(
        f"| {layer} | {solver} | {_joined(_relation(t) for t in group)} "
        f"| {_joined(t.equation for t in group)} | {paper} |"
        for (layer, solver, paper), group in merged.items()
    )


def _joined(words: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(words))


def _relation(twin: Twin) -> str:
    """The name of its class in words: "fixed point limit"."""
    return re.sub(r"(?<!^)(?=[A-Z])", " ", type(twin.relation).__name__).lower()


def _link(thing: Any) -> str:
    path = public_path(thing)
    return f"{{py:obj}}`~{path}`" if path else f"`{thing.__name__}`"


def _solver(twin: Twin) -> str:
    """What a twin calls of the solvers' public functions, found in the code that it runs."""
    called = list(_called(twin.solve, set()))
    solvers = [f for f in called if _is_solver(f) and f not in (lam_max, lasso_objective)]
    if solvers:
        return _joined(map(_link, solvers))
    return "that of its base or parts" if exact_twin in called else "its formula in NumPy"


def _is_solver(function: Any) -> bool:
    return function.__module__.startswith("twinsolve.solvers.") and bool(public_path(function))


def _called(function: Any, seen: set[int]) -> Iterator[Any]:
    """Functions of the package that a function of the twins refers to, through all of these."""
    if isinstance(function, functools.partial):
        function = function.func
    module = getattr(function, "__module__", None) or ""
    if id(function) in seen or not module.startswith("twinsolve."):
        return
    seen.add(id(function))
    yield function
    if inspect.isfunction(function) and module.startswith("twinsolve.twins."):
        for thing in _referred(function):
            yield from _called(thing, seen)


def _referred(function: FunctionType) -> Iterator[Any]:
    for name in _names(function.__code__):
        if name in function.__globals__:
            yield function.__globals__[name]
    for cell in function.__closure__ or ():
        yield cell.cell_contents


def _names(code: CodeType) -> Iterator[str]:
    """Names of a function's code, comprehensions and inner functions included."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    app.add_directive("layer-table", LayerTable)
    return {"parallel_read_safe": True}
