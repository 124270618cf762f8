"""Labels in a user's own files: which array or column can hold them."""

import math
from pathlib import Path

import numpy as np

TARGET_NAMES = ("y", "target", "targets", "label", "labels", "class", "gnd", "gt", "s")
_KINDS = "biufUS"  # of NumPy: numbers but complex ones, and strings


def pick_labels(
    path: Path, named: list[tuple[str, np.ndarray]], shape: tuple[int, ...]
) -> tuple[int | None, str]:
    """Return the number of the only array that can hold the labels, or None and why, in words.

    `shape` is that of the points. As many labels as features count too, but last: the caller then
    advises to transpose.
    """
    why = [_why_no_labels(values, shape) for _, values in named]
    candidates = [number for number, reason in enumerate(why) if not reason]
    candidates = [
        number for number in candidates if named[number][1].size == shape[0]
    ] or candidates
    if len(candidates) > 1:
        words = " or ".join(f"target_key={named[number][0]}" for number in candidates)
        raise ValueError(f"target_key: {path} holds several that could be the labels; say {words}")
    reasons = (f"{name!r} {reason}" for (name, _), reason in zip(named, why, strict=True))
    return (
        (candidates[0], "") if candidates else (None, f" ({'; '.join(reasons)})" if named else "")
    )


def _why_no_labels(values: np.ndarray, shape: tuple[int, ...]) -> str:
    """Return why an array cannot hold one label for each point, or an empty string."""
    if not is_vector(values):
        return f"is no vector but of shape {values.shape}"
    if values.size not in shape:
        return f"has {values.size} entries for {shape[0]} points"
    if values.dtype.kind not in _KINDS:
        return f"holds {values.dtype}"
    finite = values.dtype.kind == "f" and np.isfinite(values).all()
    return "holds other than whole numbers" if finite and (values != np.rint(values)).any() else ""


def is_vector(values: np.ndarray) -> bool:
    """Whether at most one axis is longer than 1."""
    return max(values.shape, default=0) == math.prod(values.shape)


def count_labels(path: Path | str, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the different labels, sorted, and the labels counted from 0.

    Raises
    ------
    ValueError
        If a label is missing, or neither a finite number nor a word.
    """
    if labels.dtype.kind not in _KINDS:
        raise ValueError(f"{path}: labels must be numbers or strings, got {labels.dtype}")
    if labels.dtype.kind == "f" and not np.isfinite(labels).all():
        raise ValueError(f"{path}: holds NaN or infinite labels")
    if labels.dtype.kind in "US":
        labels = np.char.strip(labels)  # MATLAB fills words with spaces
        missing = np.array(["", "nan"]).astype(labels.dtype.kind)
        gaps = np.flatnonzero(np.isin(np.char.lower(labels), missing))
        if len(gaps):
            raise ValueError(
                f"{path}: the label of row {gaps[0]} is missing: fill it, or remove the row"
            )
    names, target = np.unique(labels, return_inverse=True)
    return names, target
