"""Decorators for numba kernels, which differ in the changes allowed to floating-point arithmetic.

Machine code is cached on disk, except for inlined functions, and runs without the interpreter's
lock.
"""

from numba import njit

_FUSED = {"contract"}
# Sums may have any order, as vector instructions need; NaN and infinity stay possible.
_REORDERED = {"contract", "reassoc", "nsz"}

jit = njit(nogil=True, cache=True)
jit_fused = njit(nogil=True, cache=True, fastmath=_FUSED)
jit_reordered = njit(nogil=True, cache=True, fastmath=_REORDERED, _nrt=True)
# For functions that make no arrays: references to those of named tuples are not counted, as that
# takes longer than many a loop. A function for which this is not said does as its caller.
jit_uncounted = njit(nogil=True, cache=True, fastmath=_REORDERED, _nrt=False)
inlined_fused = njit(fastmath=_FUSED, forceinline=True)
inlined_reordered = njit(fastmath=_REORDERED, forceinline=True)
