"""Elements of arrays that share no memory, for loops in numba kernels.

LLVM vectorises a loop that writes arrays only if it sees that these overlap with no other array of
the loop, and gives up beyond eight comparisons. Here the caller promises it: within a kernel, what
`read` reads is never what `add` adds to, nor are sums of different names the same memory.
"""

from typing import Any

from numba import types
from numba.core import cgutils
from numba.core.errors import RequireLiteralValue
from numba.extending import intrinsic

_SUMS = "first", "second", "third", "fourth"


@intrinsic
def read(typingctx: Any, array: Any, index: Any) -> Any:
    """``array[index]``."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        loaded = builder.load(_pointer(context, builder, array, arguments))
        loaded.set_metadata("noalias", _scopes(builder.module, *_SUMS))
        return loaded

    return array.dtype(array, types.intp), codegen


@intrinsic
def add(typingctx: Any, array: Any, index: Any, term: Any, name: Any) -> Any:
    """``array[index] += term``; the name is a literal number, 0 to 3."""
    if not isinstance(name, types.IntegerLiteral):
        raise RequireLiteralValue("name")
    others = [other for k, other in enumerate(_SUMS) if k != name.literal_value]

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = _pointer(context, builder, array, arguments)
        loaded = builder.load(pointer)
        stored = builder.store(builder.fadd(loaded, arguments[2], flags=["contract"]), pointer)
        for access in (loaded, stored):
            access.set_metadata("noalias", _scopes(builder.module, *others))
            access.set_metadata("alias.scope", _scopes(builder.module, _SUMS[name.literal_value]))
        return context.get_dummy_value()

    return types.void(array, types.intp, array.dtype, name), codegen


def _pointer(context: Any, builder: Any, array: Any, arguments: Any) -> Any:
    view = context.make_array(array)(context, builder, arguments[0])
    return cgutils.get_item_pointer(context, builder, array, view, [arguments[1]])


def _scopes(module: Any, *names: str) -> Any:
    domain = module.add_metadata(["twinsolve"])
    return module.add_metadata([module.add_metadata([name, domain]) for name in names])
