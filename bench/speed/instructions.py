"""Hold a command to AVX2 on a processor that has more."""

import os
import sys
from typing import Any

import numpy as np
from llvmlite.binding import get_host_cpu_features

_EXTENSIONS: Any = np.show_config(mode="dicts")["SIMD Extensions"]
# In an order that holds where they are disabled, and so no longer found.
_BEYOND = sorted(
    name
    for kind in ("found", "not found")
    for name in _EXTENSIONS.get(kind, [])
    if "AVX512" in name or name == "X86_V4"
)
# Of numba, OpenBLAS, NumPy, MKL, oneDNN, torch and OpenCV, in that order.
_AVX2 = {
    "NUMBA_CPU_NAME": "haswell",
    "NUMBA_CPU_FEATURES": "+avx,+avx2,+bmi,+bmi2,+f16c,+fma,+lzcnt,+popcnt,+sse4.2",
    "OPENBLAS_CORETYPE": "Haswell",
    "NPY_DISABLE_CPU_FEATURES": " ".join(_BEYOND),
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "ATEN_CPU_CAPABILITY": "avx2",
    "OPENCV_CPU_DISABLE": "AVX512F,AVX512-COMMON,AVX512-SKX",
}


def hold_to(instructions: str | None) -> None:
    """Start the process anew where libraries would use more; they read it when they load.

    Raises
    ------
    ValueError
        If it is neither None nor ``avx2``, or the processor has no AVX2.
    """
    if instructions is None:
        return
    if instructions != "avx2":
        raise ValueError(f"instructions: must be avx2, got {instructions!r}")
    if not get_host_cpu_features().get("avx2"):
        raise ValueError("instructions: this processor has no AVX2")
    if any(os.environ.get(name) != value for name, value in _AVX2.items()):
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], os.environ | _AVX2)
