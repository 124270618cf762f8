"""Mistakes that could be in a source file: small changes of its syntax tree, one at a time."""

from __future__ import annotations

import ast
import random
import shutil
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
_FOLDERS = ("bench", "datasets", "solvers", "studies", "twins", "unrolled", "tests")
_SWAPPED: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult,
    ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip
_CASTS = ("double", "float", "to", "astype")
_CHOICES = ("where", "masked_fill")
# What no computation depends on: messages, texts, types.
_SKIPPED = (ast.Raise, ast.JoinedStr, ast.AnnAssign, ast.Import, ast.ImportFrom)
_SKIPPED_NAMES = ("extra_repr", "__repr__", "__str__")


@dataclass(frozen=True)
class Mutation:
    """A change of one place in a file.

    Attributes
    ----------
    kind : str
        Name of a function of this module below, in words.
    file, function : str
        Where it is: a path below the package, and a qualified name.
    start, end : int
        The place, in bytes of the source.
    before, after : str
    """

    kind: str
    file: str
    function: str
    start: int
    end: int
    before: str
    after: str

    def apply(self, source: str) -> str:
        """The source with the change."""
        raw = source.encode()
        return (raw[: self.start] + self.after.encode() + raw[self.end :]).decode()


def flip_comparison(node: ast.AST) -> ast.AST | None:
    """``<`` to ``<=``, ``==`` to ``!=``."""
    if not isinstance(node, ast.Compare) or type(node.ops[0]) not in _SWAPPED:
        return None
    return _changed(node, ops=[_SWAPPED[type(node.ops[0])](), *node.ops[1:]])


def swap_operator(node: ast.AST) -> ast.AST | None:
    """``+`` to ``-``, ``*`` to ``/``, ``&`` to ``|``, ``and`` to ``or``."""
    if not isinstance(node, ast.BinOp | ast.BoolOp) or type(node.op) not in _SWAPPED:
        return None
    return _changed(node, op=_SWAPPED[type(node.op)]())


def change_number(node: ast.AST) -> ast.AST | None:
    """A real number 1.5 times as large, an integer one more."""
    if not isinstance(node, ast.Constant) or type(node.value) not in (int, float):
        return None
    return ast.Constant(node.value + 1 if isinstance(node.value, int) else 1.5 * node.value)


def ignore_option(node: ast.AST) -> ast.AST | None:
    """A call without its last keyword argument, such as a mask."""
    if not isinstance(node, ast.Call) or not node.keywords or node.keywords[-1].arg is None:
        return None
    return _changed(node, keywords=node.keywords[:-1])


def use_first_head(node: ast.AST) -> ast.AST | None:
    """The parameter of the first head for all: ``self.lam()`` to ``self.lam().flatten()[0]``."""
    if not isinstance(node, ast.Call) or node.args or node.keywords:
        return None
    if not (isinstance(node.func, ast.Attribute) and ast.unparse(node.func.value) == "self"):
        return None
    return ast.parse(f"{ast.unparse(node)}.flatten()[0]", mode="eval").body


def negate_condition(node: ast.AST) -> ast.AST | None:
    """The other branch of an if."""
    if not isinstance(node, ast.If | ast.IfExp | ast.While):
        return None
    return ast.UnaryOp(ast.Not(), node.test)


def drop_statement(node: ast.AST) -> ast.AST | None:
    """``x += y`` and ``x = f(x)`` left out."""
    if isinstance(node, ast.AugAssign):
        return ast.Pass()
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
        names = {n.id for n in ast.walk(node.value) if isinstance(n, ast.Name)}
        return ast.Pass() if node.targets[0].id in names else None
    return None


def drop_transpose(node: ast.AST) -> ast.AST | None:
    """``x.mT`` to ``x``."""
    return node.value if isinstance(node, ast.Attribute) and node.attr in ("T", "mT") else None


def drop_cast(node: ast.AST) -> ast.AST | None:
    """``x.double()`` to ``x``."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.value if node.func.attr in _CASTS else None
    return None


def drop_choice(node: ast.AST) -> ast.AST | None:
    """``where(c, a, b)`` to ``a``, ``x.masked_fill(c, a)`` to ``x``."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
        return None
    if node.func.attr not in _CHOICES or len(node.args) < 2:
        return None
    return node.args[1] if node.func.attr == "where" else node.func.value


_KINDS: tuple[Callable[[ast.AST], ast.AST | None], ...] = (
    flip_comparison, swap_operator, change_number, ignore_option, use_first_head,
    negate_condition, drop_statement, drop_transpose, drop_cast, drop_choice,
)  # fmt: skip


def mutations_of(file: str, source: str) -> list[Mutation]:
    """Every mutation of a file, in the order of its kinds."""
    starts = [0]
    for line in source.encode().splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    found = []
    for function, node in _walk(ast.parse(source), ""):
        for kind in _KINDS:
            if (replacement := kind(node)) is None:
                continue
            place: Any = node.test if kind is negate_condition else node  # type: ignore[attr-defined]
            start = starts[place.lineno - 1] + place.col_offset
            end = starts[place.end_lineno - 1] + place.end_col_offset
            before, after = source.encode()[start:end].decode(), ast.unparse(replacement)
            after = after if isinstance(replacement, ast.Pass) else f"({after})"
            name = kind.__name__.replace("_", " ")
            found.append(Mutation(name, file, function, start, end, before, after))
    return found


def sample_mutations(file: str, source: str, count: int) -> list[Mutation]:
    """At most `count` mutations of a file, the same in every run, of as many kinds as it has."""
    by_kind: dict[str, list[Mutation]] = {}
    for mutation in mutations_of(file, source):
        by_kind.setdefault(mutation.kind, []).append(mutation)
    rng = random.Random(file)
    kinds = [rng.sample(group, len(group)) for group in by_kind.values()]
    rng.shuffle(kinds)
    turns = chain.from_iterable(zip_longest(*kinds))
    return [mutation for mutation in turns if mutation is not None][:count]


def _changed(node: ast.AST, **fields: Any) -> ast.AST:
    copy = deepcopy(node)
    for name, value in fields.items():
        setattr(copy, name, value)
    return copy


def _walk(node: ast.AST, function: str) -> Iterator[tuple[str, ast.AST]]:
    """Statements and expressions that compute something, with the function that they are in."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.ClassDef):
            if child.name not in _SKIPPED_NAMES:
                name = f"{function}.{child.name}".lstrip(".")
                for statement in child.body:
                    yield from _within(statement, name)
        elif function or isinstance(child, ast.Assign):
            yield from _within(child, function)


def _within(node: ast.AST, function: str) -> Iterator[tuple[str, ast.AST]]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        yield from _walk(ast.Module([node], []), function)
    elif not isinstance(node, _SKIPPED):
        yield function, node
        yield from _walk(node, function)


def copy_package(package: Path, *left_out: str) -> Path:
    """Copy the package, without files of these patterns, to where a fault may be planted."""
    for name in _FOLDERS:
        shutil.copytree(ROOT / name, package / name, ignore=shutil.ignore_patterns(*left_out))
    for path in (*ROOT.glob("*.py"), ROOT / "setup.cfg"):
        shutil.copy2(path, package / path.name)
    return package
