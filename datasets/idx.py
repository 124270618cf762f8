"""IDX files, the format of MNIST and of the data sets in its form."""

import gzip
import math
import struct
from pathlib import Path

import numpy as np

from .files import naming

_DTYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


def read_idx(path: Path) -> np.ndarray:
    """Read an IDX file, plain or with the suffix .gz.

    The file holds two zero bytes, the code of the type, the number of dimensions, each dimension
    as a big-endian 32-bit integer, and the entries in row-major order. Nothing follows them.

    Raises
    ------
    ValueError
        If the file has another form; the message names it.
    """
    with naming(path, "gzip"):
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] not in _DTYPES:
        raise ValueError(f"{path}: is no IDX file: it starts with {content[:4].hex(' ')}")
    dtype, ndim = np.dtype(_DTYPES[content[2]]), content[3]
    start = 4 + 4 * ndim
    if len(content) < start:
        raise ValueError(f"{path}: truncated within the header")
    shape = struct.unpack(f">{ndim}I", content[4:start])
    expected = start + math.prod(shape) * dtype.itemsize
    if len(content) != expected:
        raise ValueError(
            f"{path}: truncated or corrupted: shape {shape} needs {expected} bytes, "
            f"got {len(content)}"
        )
    values = np.frombuffer(content, dtype=dtype, offset=start)
    return values.reshape(shape).astype(dtype.newbyteorder("="))
