"""Python without what its constants decide: scripts keep what a broken law runs."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any


def simplify(source: str, known: Mapping[str, Any]) -> str:
    """The functions of a source without docstrings, arguments that no call gives, and dead code.

    Parameters
    ----------
    source : str
        Functions of one another, the last of which is called from outside.
    known : mapping of str to Any
        Values of expressions, such as ``{"model.source is None": True}``.
    """
    tree, before = ast.parse(source), ""
    while ast.unparse(tree) != before:
        before = ast.unparse(tree)
        for function in tree.body[:-1]:
            if isinstance(function, ast.FunctionDef):
                _drop_arguments(function, tree)
                _Inline(function).visit(tree)
        tree = ast.fix_missing_locations(_Fold(known).visit(tree))
        used = {x.id for x in ast.walk(tree) if isinstance(x, ast.Name)}
        last = tree.body[-1]
        tree.body = [x for x in tree.body if x is last or getattr(x, "name", "") in used]
    return "\n\n".join(map(ast.unparse, tree.body))


class _Fold(ast.NodeTransformer):
    """Replace what is known by its value, and choose the branches that it decides."""

    def __init__(self, known: Mapping[str, Any]) -> None:
        self.known = known

    def visit(self, node: ast.AST) -> Any:
        node = super().generic_visit(node)
        if isinstance(node, ast.expr) and ast.unparse(node) in self.known:
            return _parse(repr(self.known[ast.unparse(node)]))
        if isinstance(node, ast.Compare | ast.BoolOp | ast.UnaryOp):
            return _compute(node)
        if isinstance(node, ast.If | ast.IfExp) and isinstance(node.test, ast.Constant):
            return node.body if node.test.value else node.orelse
        if isinstance(node, ast.If) and _gives_up(node.body):
            return None  # a broken law was applicable
        if isinstance(node, ast.Try) and _gives_up(node.handlers[0].body):
            return node.body
        if isinstance(node, ast.Call):
            of_model = isinstance(node.func, ast.Name) and node.func.id == "model"
            drop = {(None, "{}")} | (
                {(x.arg, "None") for x in node.keywords} if of_model else set()
            )
            node.keywords = [x for x in node.keywords if (x.arg, ast.unparse(x.value)) not in drop]
        return _shorten(node) if isinstance(node, ast.FunctionDef) else node


def _parse(text: str) -> ast.expr:
    """Return the syntax tree of an expression."""
    return ast.parse(text, mode="eval").body


def _compute(node: ast.expr) -> ast.expr:
    """Return the value of an expression of constants; other expressions as they are."""
    try:
        return _parse(repr(eval(ast.unparse(node), {"__builtins__": {}})))
    except Exception:  # names, most often
        return node


def _gives_up(body: list[ast.stmt]) -> bool:
    """Whether a body ends by raising NotApplicable."""
    return isinstance(body[-1], ast.Raise) and "NotApplicable(" in ast.unparse(body[-1])


def _shorten(node: ast.FunctionDef) -> ast.FunctionDef:
    """Drop the docstring, what follows a return, and the name of what is returned at once."""
    body = node.body[ast.get_docstring(node) is not None :]
    ends = [i for i, x in enumerate(body) if isinstance(x, ast.Return)]
    body = body[: ends[0] + 1] if ends else body
    assignment, last = body[-2] if len(body) > 1 else None, ast.unparse(body[-1])
    if (
        isinstance(assignment, ast.Assign)
        and last == f"return {ast.unparse(assignment.targets[0])}"
    ):
        body[-2:] = [ast.Return(assignment.value)]
    node.body = body
    return node


def _drop_arguments(function: ast.FunctionDef, tree: ast.Module) -> None:
    """Replace keyword arguments that no call gives, and that stay the same, by their defaults."""
    calls = [x for x in ast.walk(tree) if isinstance(x, ast.Call)]
    given_names = {y.arg for x in calls if ast.unparse(x.func) == function.name for y in x.keywords}
    names = [x for x in ast.walk(function) if isinstance(x, ast.Name)]
    given_names |= {x.id for x in names if isinstance(x.ctx, ast.Store)}
    args, kept = function.args, []
    for name, value in zip(args.kwonlyargs, args.kw_defaults, strict=True):
        if None in given_names or name.arg in given_names or not isinstance(value, ast.Constant):
            kept.append((name, value))
        else:
            _Rename({name.arg: ast.unparse(value)}).visit(function)
    args.kwonlyargs, args.kw_defaults = [x for x, _ in kept], [x for _, x in kept]


class _Inline(ast.NodeTransformer):
    """Replace calls of a function that only returns, with plain arguments, by what it returns."""

    def __init__(self, function: ast.FunctionDef) -> None:
        args, returned = function.args, function.body[0]
        plain = not (args.kwonlyargs or args.kwarg) and ast.unparse(returned).startswith("return ")
        self.name = function.name if plain else ""
        self.names, self.value = [x.arg for x in args.args], ast.unparse(returned)

    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        plain = all(isinstance(x, ast.Name | ast.Attribute | ast.Constant) for x in node.args)
        if ast.unparse(node.func) != self.name or not plain or len(node.args) != len(self.names):
            return node
        values = dict(zip(self.names, map(ast.unparse, node.args), strict=True))
        renamed: ast.expr = _Rename(values).visit(_parse(self.value.removeprefix("return ")))
        return renamed


class _Rename(ast.NodeTransformer):
    """Replace names by expressions."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self.given = given

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return _parse(self.given[node.id]) if node.id in self.given else node
