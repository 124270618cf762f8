"""Decorators for numba kernels, by what may be done to their floating-point arithmetic.

Machine code is kept on disk, except for what is inlined, and runs without the interpreter's lock.
"""

from numba import njit

_FUSED = {"contract"}
# Sums in any order, as vector instructions need; nothing is assumed about NaN or infinity.
_REORDERED = {"contract", "reassoc", "nsz"}

jit = njit(nogil=True, cache=True)
jit_fused = njit(nogil=True, cache=True, fastmath=_FUSED)
jit_reordered = njit(nogil=True, cache=True, fastmath=_REORDERED)
inlined_fused = njit(fastmath=_FUSED, forceinline=True)
inlined_reordered = njit(fastmath=_REORDERED, forceinline=True)
