"""Versions, commit, machine and instruction sets of a run."""

import os
import platform
import re
import shlex
import subprocess
import sys
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

from threadpoolctl import threadpool_info

from .. import __version__

# The BLAS of NumPy; packages that are imported later may load others.
_BLAS = sorted(
    f"{library['internal_api']}: {library.get('architecture', 'this processor')}"
    for library in threadpool_info()
    if library["user_api"] == "blas"
)
_VECTORS = {"+avx512f": "AVX-512", "+avx2": "AVX2", "+avx": "AVX", "+sse2": "SSE2", "+neon": "NEON"}
_ROOT = Path(__file__).parents[1]
_PACKAGES = ("numpy", "scipy", "scikit-learn", "numba", "cvxpy", "torch")


def provenance(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings of a run, with the command line, versions, commit, machine with GPU, and vectors.

    The command line comes with the folder in which it was typed, as its paths may be relative.
    """
    torch = sys.modules.get("torch")
    of_torch = [f"torch: {torch.backends.cpu.get_cpu_capability()}"] if torch else []
    used = torch is not None and torch.cuda.is_initialized()
    device = f", {torch.cuda.get_device_name()}" if torch and used else ""
    return {
        **({"command": typed, "typed_in": os.getcwd()} if (typed := command()) else {}),
        "settings": settings,
        "versions": versions(),
        **({"commit": found} if (found := commit()) else {}),
        "machine": f"{platform.system()} {platform.machine()}, {processor()}{device}",
        "instructions": ", ".join([instructions(), *of_torch]),
    }


def command() -> str | None:
    """The command line, of the command `twinsolve`; None if something else runs."""
    called, *words = sys.argv
    return shlex.join(["twinsolve", *words]) if Path(called).stem == "twinsolve" else None


def versions() -> dict[str, str]:
    """Versions of Python, of this package and of the packages that compute."""
    own = {"python": platform.python_version(), "twinsolve": __version__}
    return own | {package: version(package) for package in _PACKAGES}


def commit() -> str | None:
    """The commit of the checkout that runs, or of which a release was built; None if unknown.

    It ends with -dirty where files of the checkout have changed since.
    """
    if (_ROOT / ".git").exists():
        command = ["git", "-C", str(_ROOT), "describe", "--always", "--dirty", "--exclude=*"]
        with suppress(OSError, subprocess.CalledProcessError):
            return subprocess.check_output([*command, "--abbrev=40"], text=True).strip()
    built = _ROOT / "commit"
    return built.read_text().strip() if built.exists() else None


def processor() -> str:
    """Model and number of cores, which with `instructions` tell timings of machines apart."""
    try:
        found = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    except OSError:
        found = None
    return f"{found[1] if found else platform.processor()}, {os.cpu_count()} cores"


def instructions() -> str:
    """Vector instructions that numba compiles for, and kernels that BLAS uses."""
    from numba.core.registry import cpu_target

    _, compiled_for, features = cpu_target.target_context.codegen().magic_tuple()
    held = features.split(",")
    widest = next((name for flag, name in _VECTORS.items() if flag in held), "scalar")
    return ", ".join([f"numba: {widest} ({compiled_for})", *_BLAS])
