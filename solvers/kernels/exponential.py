"""Exponentials that compilers turn into vector instructions, for use in numba kernels.

``e^x = 2^n e^r`` with ``n = round(x / log 2)``, ``r = x - n log 2`` (log 2 in two parts), and
``2^x = 2^n 2^r`` with ``n = round(x)``. The rest is ``e^r = 1 + r + r^2 q(r)``, q the polynomial
through Chebyshev's nodes whose error on ``|r| <= log(2) / 2`` is below rounding.
"""

import math
from decimal import Decimal
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic, overload
from numpy.polynomial import chebyshev
from scipy.special import hyp1f1

from .compiled import inlined_fused

_LOG_2 = Decimal(2).ln()
_MANTISSA = {types.float32: 23, types.float64: 52}


@intrinsic
def _power_of_two(typingctx: Any, shifted: Any) -> Any:
    """2^n, from a number whose lowest bits hold n plus the bias of the exponent."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        integer = ir.IntType(shifted.bitwidth)
        bits = builder.bitcast(arguments[0], integer)
        moved = builder.shl(bits, ir.Constant(integer, _MANTISSA[shifted]))
        return builder.bitcast(moved, arguments[0].type)

    return shifted(shifted), codegen


def _constants(real: Any, bias: int, kept: int) -> tuple[Any, ...]:
    """Return ``1 / log 2``, log 2 as a sum of two numbers, `magic` and the least x of exp."""
    high = math.floor(_LOG_2 * 2**kept) / 2**kept
    # Adding it puts round(x / log 2) + bias in the lowest bits.
    magic = 1.5 * 2.0 ** np.finfo(real).nmant + bias
    least = math.ceil(np.log(float(np.finfo(real).tiny)))
    values = (1 / math.log(2), high, float(_LOG_2 - Decimal(high)), magic, least)
    return tuple(real(value) for value in values)


_INVERSE_32, _HIGH_32, _LOW_32, _MAGIC_32, _LEAST_32 = _constants(np.float32, 127, 12)
_INVERSE_64, _HIGH_64, _LOW_64, _MAGIC_64, _LEAST_64 = _constants(np.float64, 1023, 32)

# The power of two whose exponent has no bits left: 0.
_VANISHED_32, _VANISHED_64 = np.float32(-127), np.float64(-1023)


def _terms(real: Any, degree: int, base: float) -> tuple[Any, ...]:
    """Return the coefficients of a polynomial in r near ``base^r``, for ``|r| <= log(2) / 2``."""
    half = math.log(2) / 2
    q = chebyshev.chebinterpolate(lambda t: hyp1f1(1, 3, half * t) / 2, degree - 2)
    terms = [1.0, 1.0, *(c / half**k for k, c in enumerate(chebyshev.cheb2poly(q)))]
    return tuple(real(c * math.log(base) ** k) for k, c in enumerate(terms))


_E_32, _E_64 = _terms(np.float32, 6, math.e), _terms(np.float64, 11, math.e)
_TWO_32, _TWO_64 = _terms(np.float32, 6, 2.0), _terms(np.float64, 11, 2.0)


# Only fused multiply-adds are allowed: reordering would undo the rounding by _MAGIC.
@inlined_fused
def _horner_32(c: Any, r: Any) -> Any:
    """Evaluate at r the polynomial with the coefficients c."""
    return c[0] + r * (c[1] + r * (c[2] + r * (c[3] + r * (c[4] + r * (c[5] + r * c[6])))))


@inlined_fused
def _horner_64(c: Any, r: Any) -> Any:
    """Evaluate at r the polynomial with the coefficients c."""
    p = c[7] + r * (c[8] + r * (c[9] + r * (c[10] + r * c[11])))
    p = c[3] + r * (c[4] + r * (c[5] + r * (c[6] + r * p)))
    return c[0] + r * (c[1] + r * (c[2] + r * p))


@inlined_fused
def _exp_32(x: Any) -> Any:
    """Return ``2^n e^r`` with ``x = n log 2 + r`` and a polynomial for ``e^r``."""
    clipped = max(x, _LEAST_32)
    shifted = clipped * _INVERSE_32 + _MAGIC_32
    n = shifted - _MAGIC_32
    p = _horner_32(_E_32, clipped - n * _HIGH_32 - n * _LOW_32)
    power: Any = _power_of_two(shifted)  # type: ignore[call-arg]
    return p * power if x > _LEAST_32 else np.float32(0)


@inlined_fused
def _exp_64(x: Any) -> Any:
    """Return ``2^n e^r`` with ``x = n log 2 + r`` and a polynomial for ``e^r``."""
    clipped = max(x, _LEAST_64)
    shifted = clipped * _INVERSE_64 + _MAGIC_64
    n = shifted - _MAGIC_64
    p = _horner_64(_E_64, clipped - n * _HIGH_64 - n * _LOW_64)
    power: Any = _power_of_two(shifted)  # type: ignore[call-arg]
    return p * power if x > _LEAST_64 else 0.0


@inlined_fused
def _exp2_32(x: Any) -> Any:
    """Return ``2^n 2^r`` with ``x = n + r`` and a polynomial for ``2^r``."""
    shifted = x + _MAGIC_32
    power: Any = _power_of_two(shifted)  # type: ignore[call-arg]
    return _horner_32(_TWO_32, x - (shifted - _MAGIC_32)) * power


@inlined_fused
def _exp2_64(x: Any) -> Any:
    """Return ``2^n 2^r`` with ``x = n + r`` and a polynomial for ``2^r``."""
    shifted = x + _MAGIC_64
    power: Any = _power_of_two(shifted)  # type: ignore[call-arg]
    return _horner_64(_TWO_64, x - (shifted - _MAGIC_64)) * power


@inlined_fused
def _exp2_to_zero_32(x: Any, terms: Any) -> Any:
    """Return 2^x as `_exp2_32` does, and 0 for x at or below `vanished`."""
    c, magic, vanished = terms
    clipped = max(vanished, x)
    shifted = clipped + magic
    power: Any = _power_of_two(shifted)  # type: ignore[call-arg]
    return _horner_32(c, clipped - (shifted - magic)) * power


@inlined_fused
def _exp2_to_zero_64(x: Any, terms: Any) -> Any:
    """Return 2^x as `_exp2_64` does, and 0 for x at or below `vanished`."""
    c, magic, vanished = terms
    clipped = max(vanished, x)
    shifted = clipped + magic
    power: Any = _power_of_two(shifted)  # type: ignore[call-arg]
    r = clipped - (shifted - magic)
    s = r * r
    odd = c[1] + s * (c[3] + s * (c[5] + s * (c[7] + s * (c[9] + s * c[11]))))
    even = c[0] + s * (c[2] + s * (c[4] + s * (c[6] + s * (c[8] + s * c[10]))))
    return (even + r * odd) * power


_EXP2_TERMS_32 = _TWO_32, _MAGIC_32, _VANISHED_32
_EXP2_TERMS_64 = _TWO_64, _MAGIC_64, _VANISHED_64


def exp2_terms(real: Any) -> tuple[Any, ...]:
    """Constants of `exp2_to_zero`, for a kernel to take as an argument."""
    return _EXP2_TERMS_32 if np.dtype(real) == np.float32 else _EXP2_TERMS_64


def exp(x: Any) -> Any:
    """``e^x`` for x <= 0 in float32 or float64, inside a numba kernel only.

    It is exact to two units in the last place. It is 0 for NaN, and for x <= -87 in float32 or
    x <= -708 in float64, where e^x is at or near the smallest normal number.
    """
    raise NotImplementedError("exp: runs inside numba kernels only")


@overload(exp)
def _exp(x):  # type: ignore[no-untyped-def]  # numba compares this signature with the kernels'
    return {types.float32: lambda x: _exp_32(x), types.float64: lambda x: _exp_64(x)}.get(x)


def exp2(x: Any) -> Any:
    """``2^x`` for |x| <= 126 in float32 or |x| <= 1022 in float64, inside a numba kernel only.

    It is exact to two units in the last place there; other x give meaningless results.
    """
    raise NotImplementedError("exp2: runs inside numba kernels only")


@overload(exp2)
def _exp2(x):  # type: ignore[no-untyped-def]  # numba compares this signature with the kernels'
    return {types.float32: lambda x: _exp2_32(x), types.float64: lambda x: _exp2_64(x)}.get(x)


def exp2_to_zero(x: Any, terms: Any) -> Any:
    """``2^x`` for x <= 126 in float32 or x <= 1022 in float64, inside a numba kernel only.

    It is exact to two units in the last place. It is 0 for x < -126.5 in float32 or x < -1022.5 in
    float64, where 2^x is below the smallest normal number. The `terms` come from `exp2_terms`, as
    an argument of the kernel. As such they stay in registers, while compilers would load constants
    again for each vector of AVX2.
    """
    raise NotImplementedError("exp2_to_zero: runs inside numba kernels only")


@overload(exp2_to_zero)
def _exp2_to_zero(x, terms):  # type: ignore[no-untyped-def]  # numba compares this signature with the kernels'
    return {
        types.float32: lambda x, terms: _exp2_to_zero_32(x, terms),
        types.float64: lambda x, terms: _exp2_to_zero_64(x, terms),
    }.get(x)
