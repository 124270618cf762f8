"""Inequalities that bound a layer: their entries, by how much they fail, and how tight they are."""

import numpy as np
from numpy.typing import ArrayLike


class Inequalities:
    """Entries ``lhs <= rhs``, each judged by ``(lhs - rhs) / scale``.

    Examples
    --------
    >>> from twinsolve.unrolled.twins import Inequalities
    >>> sides = Inequalities()
    >>> sides.at_most([1.0, -2.0], [2.0, -1.0])
    >>> sides.attained(3.0, 4.0, share=0.5)
    >>> sides.excess(), sides.tightness()
    (0.0, 0.75)
    >>> sides.at_most(-1.0, -2.0)
    >>> sides.excess()
    0.5
    """

    def __init__(self) -> None:
        self._excesses: list[np.ndarray] = []
        self._ratios: list[np.ndarray] = []

    def at_most(self, lhs: ArrayLike, rhs: ArrayLike, *, scale: ArrayLike | None = None) -> None:
        """Add ``lhs <= rhs``.

        Parameters
        ----------
        lhs, rhs : array-like
            Of shapes that broadcast.
        scale : array-like, optional
            Size of the numbers that both sides are rounded from; ``max(|lhs|, |rhs|)`` by default.
        """
        found, bound = np.asarray(lhs, dtype=np.float64), np.asarray(rhs, dtype=np.float64)
        size = self._add(found, bound, scale)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            self._ratios.append(np.ravel(np.where(bound > 1e-4 * size, found / bound, 0.0)))

    def attained(
        self,
        lhs: ArrayLike,
        rhs: ArrayLike,
        *,
        share: ArrayLike = 1.0,
        scale: ArrayLike | None = None,
    ) -> None:
        """Add ``share rhs <= lhs <= rhs``: an extremal case, in which the proof has equality.

        Parameters
        ----------
        lhs, rhs, scale : array-like
            As in `at_most`.
        share : array-like, default=1.0
            Which share of the bound is provably reached.
        """
        self.at_most(lhs, rhs, scale=scale)
        self._add(np.asarray(share) * np.asarray(rhs), np.asarray(lhs, dtype=np.float64), scale)

    def _add(self, lhs: np.ndarray, rhs: np.ndarray, scale: ArrayLike | None) -> np.ndarray:
        size = np.maximum(np.abs(lhs), np.abs(rhs)) if scale is None else np.asarray(scale)
        with np.errstate(invalid="ignore", over="ignore"):  # infinity minus infinity: NaN, a fault
            excess = (lhs - rhs) / np.maximum(size, np.finfo(np.float64).tiny)
        self._excesses.append(np.ravel(np.maximum(excess, 0.0)))
        return size

    def excess(self) -> float:
        """Largest ``max(0, lhs - rhs) / scale`` of all entries; NaN if one is."""
        return float(np.max(np.concatenate(self._excesses)))

    def tightness(self) -> float:
        """Largest ``lhs / rhs`` of the entries with a right side over 1e-4 of the scale.

        1 where a bound is reached; below that share rounding decides.
        """
        return float(np.max(np.concatenate(self._ratios)))
