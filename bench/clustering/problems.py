"""A clustering problem, and the part of it that a name asks for."""

import re
from dataclasses import dataclass, replace
from math import comb
from typing import Any

import numpy as np

from ...solvers.inputs import Array
from ...validation import check_integer

_RANGE = re.compile(r"(\d+)(?:-(\d+))?")


@dataclass(frozen=True, eq=False)
class Problem:
    """Points with the labels of their clusters; label -1 marks outliers.

    X is a csr_array if the points are sparse and large.

    `rows` are the numbers of the points in the whole data set, from 0.
    """

    name: str
    trial: str
    X: Any
    labels: Array
    n_clusters: int
    rows: Array
    images: Array | None = None

    @property
    def labelled(self) -> bool:
        return bool((self.labels >= 0).any())


def problem_of(
    X: Any, labels: Array, images: Array | None = None, n_clusters: int | None = None
) -> Problem:
    """A problem with `n_clusters`, or else as many clusters as there are labels."""
    n_clusters = n_clusters or len(np.unique(labels[labels >= 0]))
    return Problem("", "", X, labels, n_clusters, np.arange(X.shape[0]), images)


def take_part(
    problem: Problem,
    seed: int,
    draw: int,
    n_clusters: int | None = None,
    classes: Any = None,
    n_classes: Any = None,
    n_points: Any = None,
) -> Problem:
    """Named classes, `n_classes` random ones of these, and `n_points` random points of these.

    The part has `n_clusters`, or else as many as it has labels.
    """
    rows = np.arange(problem.X.shape[0])
    if classes is not None or n_classes is not None:
        kept = _named_classes(problem, classes)
        if n_classes is not None:
            n_classes = check_integer(n_classes, "n_classes", minimum=1, maximum=len(kept))
            kept = kept[_pick(len(kept), n_classes, seed, draw)]
        rows = np.flatnonzero(np.isin(problem.labels, kept))
    if n_points is not None:
        n_points = check_integer(n_points, "n_points", minimum=1, maximum=len(rows))
        rng = np.random.default_rng([seed, draw])
        rows = np.sort(rng.choice(rows, n_points, replace=False))
    images = None if problem.images is None else problem.images[rows]
    known = None if problem.labelled else problem.n_clusters
    found = problem_of(problem.X[rows], problem.labels[rows], images, n_clusters or known)
    return replace(found, rows=problem.rows[rows])


def _pick(n: int, size: int, seed: int, draw: int) -> list[int]:
    """Pick number `draw` among random picks of `size` of `n`; no two picks are the same."""
    if draw >= comb(n, size):
        raise ValueError(f"n_classes: there are {comb(n, size)} picks of {size} of {n} classes")
    rng = np.random.default_rng(seed)
    picks: dict[tuple[int, ...], None] = {}
    while len(picks) <= draw:
        picks[tuple(sorted(rng.choice(n, size, replace=False).tolist()))] = None
    return list(list(picks)[draw])


def _named_classes(problem: Problem, classes: Any) -> Array:
    """The labels that are FIRST to LAST in order, or the one of a number, from 1; None is all."""
    known = np.unique(problem.labels[problem.labels >= 0])
    if not len(known):
        raise ValueError("classes, n_classes: there are no labels to tell classes by")
    if classes is None:
        return known
    said = _RANGE.fullmatch(str(classes))
    first, last = (int(said[1]), int(said[2] or said[1])) if said else (0, 0)
    if not 1 <= first <= last <= len(known):
        raise ValueError(f"classes: must be FIRST-LAST or one of 1-{len(known)}, got {classes!r}")
    return known[first - 1 : last]
