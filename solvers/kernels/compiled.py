"""Decorators for numba kernels, which differ in the changes allowed to floating-point arithmetic.

Machine code is cached on disk, except for inlined functions, and runs without the interpreter's
lock. Where no folder for it can be written, every process compiles anew.
"""

from collections.abc import Callable
from typing import Any

from numba import njit

_FUSED = {"contract"}
# Sums may have any order, as vector instructions need; NaN and infinity stay possible.
_REORDERED = {"contract", "reassoc", "nsz"}


def _kernel(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """The decorator for these options of numba, with a cache where numba finds a place for one."""

    def compiled(function: Callable[..., Any]) -> Any:
        try:
            return njit(nogil=True, cache=True, **options)(function)
        except RuntimeError:  # beside the module, in the user's folder, in NUMBA_CACHE_DIR: none
            return njit(nogil=True, **options)(function)

    return compiled


jit = _kernel()
jit_fused = _kernel(fastmath=_FUSED)
jit_reordered = _kernel(fastmath=_REORDERED)
inlined_fused = njit(fastmath=_FUSED, forceinline=True)
inlined_reordered = njit(fastmath=_REORDERED, forceinline=True)

# For functions that make no arrays: references to the arrays of named tuples are not counted, as
# that takes longer than many a loop. What they call is compiled like them, unless it is counted.
# They call no methods of arrays, which make arrays and compile only if some other code did before.
jit_uncounted, jit_counted = (_kernel(fastmath=_REORDERED, _nrt=nrt) for nrt in (False, True))
