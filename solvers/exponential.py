"""An exponential that compilers turn into vector instructions, for use in numba kernels.

``e^x = 2^n p(r)`` with ``n = round(x / log 2)``, ``r = x - n log 2`` (log 2 in two parts), and p
the Taylor polynomial whose remainder on ``|r| <= log(2) / 2`` is below rounding.
"""

import math
from decimal import Decimal
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic, overload

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
    high = math.floor(_LOG_2 * 2**kept) / 2**kept
    # Adding the last but one puts round(x / log 2) + bias in the lowest bits.
    magic = 1.5 * 2.0 ** np.finfo(real).nmant + bias
    least = math.ceil(np.log(float(np.finfo(real).tiny)))
    values = (1 / math.log(2), high, float(_LOG_2 - Decimal(high)), magic, least)
    return tuple(real(value) for value in values)


_INVERSE_32, _HIGH_32, _LOW_32, _MAGIC_32, _LEAST_32 = _constants(np.float32, 127, 12)
_INVERSE_64, _HIGH_64, _LOW_64, _MAGIC_64, _LEAST_64 = _constants(np.float64, 1023, 32)
_TERMS_32 = tuple(np.float32(1 / math.factorial(k)) for k in range(8))
_TERMS_64 = tuple(1 / math.factorial(k) for k in range(14))


# Only contraction to fused multiply-adds: reordering would undo the rounding by _MAGIC.
@njit(fastmath={"contract"}, forceinline=True)
def _exp_32(x: Any) -> Any:
    clipped = max(x, _LEAST_32)
    shifted = clipped * _INVERSE_32 + _MAGIC_32
    n = shifted - _MAGIC_32
    r = clipped - n * _HIGH_32 - n * _LOW_32
    c = _TERMS_32
    p = c[0] + r * (
        c[1] + r * (c[2] + r * (c[3] + r * (c[4] + r * (c[5] + r * (c[6] + r * c[7])))))
    )
    power: Any = _power_of_two(shifted)  # type: ignore[call-arg]
    return p * power if x > _LEAST_32 else np.float32(0)


@njit(fastmath={"contract"}, forceinline=True)
def _exp_64(x: Any) -> Any:
    clipped = max(x, _LEAST_64)
    shifted = clipped * _INVERSE_64 + _MAGIC_64
    n = shifted - _MAGIC_64
    r = clipped - n * _HIGH_64 - n * _LOW_64
    c, r2 = _TERMS_64, r * r
    low = (c[0] + c[1] * r) + (c[2] + c[3] * r) * r2
    middle = (c[4] + c[5] * r) + (c[6] + c[7] * r) * r2
    high = (c[8] + c[9] * r) + (c[10] + c[11] * r) * r2
    p = low + r2 * r2 * (middle + r2 * r2 * (high + r2 * r2 * (c[12] + c[13] * r)))
    power: Any = _power_of_two(shifted)  # type: ignore[call-arg]
    return p * power if x > _LEAST_64 else 0.0


def exp(x: Any) -> Any:
    """``e^x`` for x <= 0 in float32 or float64, inside a numba kernel only.

    Right to two units in the last place; 0 for NaN, and for x <= -87 in float32 or x <= -708 in
    float64, where e^x is at or near the smallest normal number.
    """
    raise NotImplementedError("exp: runs inside numba kernels only")


@overload(exp)
def _exp(x):  # type: ignore[no-untyped-def]  # numba compares this signature with the kernels'
    return {types.float32: lambda x: _exp_32(x), types.float64: lambda x: _exp_64(x)}.get(x)
