"""Peak resident memory of this process, on Linux."""

import ctypes
import re
from pathlib import Path

import numpy as np


def resident(field: str) -> float:
    """A field of the process status in MiB, such as VmRSS or VmHWM (the peak); NaN elsewhere."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return np.nan
    found = re.search(rf"{field}:\s+(\d+) kB", status)
    return int(found[1]) / 1024 if found else np.nan


def reset_peak() -> bool:
    """Have VmHWM start again from the present size."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def release() -> None:
    """Have the C library give freed memory back, so that what is taken next counts anew."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim:
        trim(0)
