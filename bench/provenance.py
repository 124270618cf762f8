"""What a run was computed with and on: versions, machine and instruction sets."""

import os
import platform
import re
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

from threadpoolctl import threadpool_info

from .. import __version__

# Of NumPy alone: other packages may bring their own later.
_BLAS = sorted(
    f"{library['internal_api']}: {library.get('architecture', 'this processor')}"
    for library in threadpool_info()
    if library["user_api"] == "blas"
)
_VECTORS = {"+avx512f": "AVX-512", "+avx2": "AVX2", "+avx": "AVX", "+sse2": "SSE2", "+neon": "NEON"}
_PACKAGES = ("numpy", "scipy", "scikit-learn", "numba", "cvxpy", "torch")


def provenance(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings of a run, with the versions and the machine it ran on."""
    torch = sys.modules.get("torch")
    of_torch = [f"torch: {torch.backends.cpu.get_cpu_capability()}"] if torch else []
    return {
        "settings": settings,
        "versions": versions(),
        "machine": f"{platform.system()} {platform.machine()}, {processor()}",
        "instructions": ", ".join([instructions(), *of_torch]),
    }


def versions() -> dict[str, str]:
    """Of Python, of this package and of those that it computes with."""
    own = {"python": platform.python_version(), "twinsolve": __version__}
    return own | {package: version(package) for package in _PACKAGES}


def processor() -> str:
    """Model and cores: timings of others are told apart by these and by `instructions`."""
    try:
        found = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    except OSError:
        found = None
    return f"{found[1] if found else platform.processor()}, {os.cpu_count()} cores"


def instructions() -> str:
    """Vector instructions that numba compiles for, and the kernels that BLAS chose."""
    from numba.core.registry import cpu_target

    _, compiled_for, features = cpu_target.target_context.codegen().magic_tuple()
    held = features.split(",")
    widest = next((name for flag, name in _VECTORS.items() if flag in held), "scalar")
    return ", ".join([f"numba: {widest} ({compiled_for})", *_BLAS])
