"""Decorators for numba kernels, which differ in the changes allowed to floating-point arithmetic.

Machine code is cached on disk, except for inlined functions, and runs without the interpreter's
lock.
"""

from typing import Any

from numba import njit

_FUSED = {"contract"}
# Sums may have any order, as vector instructions need; NaN and infinity stay possible.
_REORDERED = {"contract", "reassoc", "nsz"}

jit = njit(nogil=True, cache=True)
jit_fused = njit(nogil=True, cache=True, fastmath=_FUSED)
jit_reordered = njit(nogil=True, cache=True, fastmath=_REORDERED)
inlined_fused = njit(fastmath=_FUSED, forceinline=True)
inlined_reordered = njit(fastmath=_REORDERED, forceinline=True)


def _count_references(counted: bool) -> Any:
    runtime: dict[str, Any] = {"_nrt": counted}
    return njit(nogil=True, cache=True, fastmath=_REORDERED, **runtime)


# For functions that make no arrays: references to the arrays of named tuples are not counted, as
# that takes longer than many a loop. What they call is compiled like them, unless it is counted.
# They call no methods of arrays, which make arrays and compile only if some other code did before.
jit_uncounted, jit_counted = map(_count_references, (False, True))
