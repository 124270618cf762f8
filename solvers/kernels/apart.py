"""Access to elements of arrays that share no memory, for loops in numba kernels.

LLVM vectorises a loop that writes to arrays only if it can see that they overlap with no other
array of the loop; it gives up beyond eight comparisons. Here the caller promises this: within a
kernel, `read` never reads memory that `put` or `add` writes, and writes of different names never go
to the same memory. Elements are addressed by tuples of indices: a slice would be a
reference-counted object, which costs about as much as a short loop.
"""

from collections.abc import Callable
from typing import Any

from numba import types
from numba.core import cgutils
from numba.core.errors import RequireLiteralValue
from numba.extending import intrinsic

_WRITES = tuple(f"write {k}" for k in range(5))
# Kernels call the returned function without the first argument.
_untyped: Callable[[Callable[..., Any]], Any] = intrinsic


@_untyped
def read(typingctx: Any, array: Any, index: Any) -> Any:
    """``array[index]``."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        loaded = builder.load(_pointer(context, builder, array, index, arguments))
        loaded.set_metadata("noalias", _scopes(builder.module, *_WRITES))
        return loaded

    return array.dtype(array, index), codegen


@_untyped
def put(typingctx: Any, array: Any, index: Any, value: Any, name: Any) -> Any:
    """``array[index] = value``; `name` is a literal, 0 to 4, that marks the memory written."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = _pointer(context, builder, array, index, arguments)
        _mark(builder, name, builder.store(arguments[2], pointer))
        return context.get_dummy_value()

    return types.void(array, index, array.dtype, _literal(name)), codegen


@_untyped
def add(typingctx: Any, array: Any, index: Any, term: Any, name: Any) -> Any:
    """``array[index] += term``; `name` is a literal, 0 to 4, that marks the memory written."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = _pointer(context, builder, array, index, arguments)
        loaded = builder.load(pointer)
        total = builder.fadd(loaded, arguments[2], flags=["contract"])
        _mark(builder, name, loaded, builder.store(total, pointer))
        return context.get_dummy_value()

    return types.void(array, index, array.dtype, _literal(name)), codegen


def _literal(name: Any) -> Any:
    if not isinstance(name, types.IntegerLiteral):
        raise RequireLiteralValue("name")
    return name


def _pointer(context: Any, builder: Any, array: Any, index: Any, arguments: Any) -> Any:
    view = context.make_array(array)(context, builder, arguments[0])
    indices = cgutils.unpack_tuple(builder, arguments[1], len(index))
    return cgutils.get_item_pointer(context, builder, array, view, indices)


def _mark(builder: Any, name: Any, *accesses: Any) -> None:
    """Tell LLVM that these accesses share memory only with accesses of the same name."""
    own = _WRITES[name.literal_value]
    for access in accesses:
        others = (other for other in _WRITES if other != own)
        access.set_metadata("noalias", _scopes(builder.module, *others))
        access.set_metadata("alias.scope", _scopes(builder.module, own))


def _scopes(module: Any, *names: str) -> Any:
    domain = module.add_metadata(["twinsolve"])
    return module.add_metadata([module.add_metadata([name, domain]) for name in names])
