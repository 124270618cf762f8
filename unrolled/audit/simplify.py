"""Python without what its constants decide: scripts keep what a broken law runs."""

from __future__ import annotations

import ast
import operator
from collections.abc import Mapping
from typing import Any

_COMPARE = {
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.In: lambda x, y: x in y,
    ast.NotIn: lambda x, y: x not in y,
    ast.Eq: operator.eq,
}


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
        _drop_arguments(tree)
        _inline(tree)
        tree = ast.fix_missing_locations(_Fold(known).visit(tree))
        _drop_functions(tree)
    return "\n\n".join(ast.unparse(node) for node in tree.body)


class _Fold(ast.NodeTransformer):
    """Replace what is known by its value, and choose the branches that it decides."""

    def __init__(self, known: Mapping[str, Any]) -> None:
        self.known = known

    def visit(self, node: ast.AST) -> Any:
        node = super().generic_visit(node)
        if isinstance(node, ast.expr) and ast.unparse(node) in self.known:
            return ast.parse(repr(self.known[ast.unparse(node)]), mode="eval").body
        handle = getattr(self, f"visit_{type(node).__name__}", None)
        return node if handle is None else handle(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        if ast.get_docstring(node) is not None:
            del node.body[0]
        ends = [i for i, x in enumerate(node.body) if isinstance(x, ast.Return)]
        node.body = node.body[: ends[0] + 1] if ends else node.body
        made = node.body[-2] if len(node.body) > 1 else None
        if isinstance(made, ast.Assign) and ast.unparse(node.body[-1]) == (
            f"return {ast.unparse(made.targets[0])}"
        ):
            node.body[-2:] = [ast.Return(made.value)]
        return node

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        compare = _COMPARE.get(type(node.ops[0]))
        try:
            sides = [ast.literal_eval(x) for x in (node.left, *node.comparators)]
        except ValueError:
            return node
        return node if compare is None else ast.Constant(compare(*sides))

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        neutral = isinstance(node.op, ast.And)
        left = [x for x in node.values if not _is(x, neutral)]
        if any(_is(x, not neutral) for x in left):
            return ast.Constant(not neutral)
        if len(left) < 2:
            return left[0] if left else ast.Constant(neutral)
        return ast.BoolOp(node.op, left)

    def visit_IfExp(self, node: ast.IfExp) -> ast.expr:
        if isinstance(node.test, ast.Constant):
            return node.body if node.test.value else node.orelse
        return node

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        if isinstance(node.op, ast.Not) and isinstance(node.operand, ast.Constant):
            return ast.Constant(not node.operand.value)
        return node

    def visit_Call(self, node: ast.Call) -> ast.expr:
        """Leave out ``**{}``, and for the model what is None."""
        to_model = isinstance(node.func, ast.Name) and node.func.id == "model"
        empty = [ast.unparse(x.value) == ("{}" if x.arg is None else "None") for x in node.keywords]
        words = zip(node.keywords, empty, strict=True)
        node.keywords = [x for x, none in words if not none or (x.arg and not to_model)]
        return node

    def visit_Try(self, node: ast.Try) -> Any:
        return node.body if _gives_up(node.handlers[0].body) else node

    def visit_If(self, node: ast.If) -> Any:
        if _gives_up(node.body) and not node.orelse:
            return None  # a broken law was applicable
        if isinstance(node.test, ast.Constant):
            return node.body if node.test.value else node.orelse
        return node


def _gives_up(body: list[ast.stmt]) -> bool:
    return isinstance(body[-1], ast.Raise) and "NotApplicable(" in ast.unparse(body[-1])


def _is(x: ast.expr, value: bool) -> bool:
    return isinstance(x, ast.Constant) and x.value is value


def _drop_arguments(tree: ast.Module) -> None:
    """Replace arguments by name that no call gives by their default."""
    functions = [x for x in tree.body if isinstance(x, ast.FunctionDef)]
    for function in functions[:-1]:
        calls: list[Any] = [x for x in ast.walk(tree) if _calls(x, function.name)]
        given = {word.arg for call in calls for word in call.keywords}
        given |= {x.id for x in ast.walk(function) if isinstance(x, ast.Name) and _stores(x)}
        if None in given or not calls:  # some come by **
            continue
        kept = []
        for name, value in zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True):
            if name.arg in given or not isinstance(value, ast.Constant):
                kept.append((name, value))
            else:
                _Fold({name.arg: value.value}).visit(ast.Module(function.body, []))
        function.args.kwonlyargs = [name for name, _ in kept]
        function.args.kw_defaults = [value for _, value in kept]


def _inline(tree: ast.Module) -> None:
    """Replace calls of functions that only return an expression by it."""
    for function in [x for x in tree.body[:-1] if isinstance(x, ast.FunctionDef)]:
        (returned, *more), names = function.body, [x.arg for x in function.args.args]
        plain = not more and not function.args.kwonlyargs and not function.args.kwarg
        if plain and isinstance(returned, ast.Return) and returned.value is not None:
            _Inline(function.name, names, ast.unparse(returned.value)).visit(tree)


class _Inline(ast.NodeTransformer):
    """Put an expression in place of calls with plain arguments."""

    def __init__(self, name: str, names: list[str], value: str) -> None:
        self.name, self.names, self.value = name, names, value

    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        plain = all(isinstance(x, ast.Name | ast.Attribute | ast.Constant) for x in node.args)
        if not _calls(node, self.name) or not plain or len(node.args) != len(self.names):
            return node
        given = dict(zip(self.names, map(ast.unparse, node.args), strict=True))
        return _Rename(given).visit(ast.parse(self.value, mode="eval").body)


class _Rename(ast.NodeTransformer):
    def __init__(self, given: Mapping[str, str]) -> None:
        self.given = given

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.parse(self.given.get(node.id, node.id), mode="eval").body


def _stores(name: ast.Name) -> bool:
    return isinstance(name.ctx, ast.Store)


def _calls(node: ast.AST, name: str) -> Any:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name


def _drop_functions(tree: ast.Module) -> None:
    """Leave out functions that no other names."""
    last = tree.body[-1]
    used = {
        x.id
        for function in tree.body
        for x in ast.walk(function)
        if isinstance(x, ast.Name) and x.id != getattr(function, "name", "")
    }
    tree.body = [x for x in tree.body if x is last or getattr(x, "name", "") in used]
