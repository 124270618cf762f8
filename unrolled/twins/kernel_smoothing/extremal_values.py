"""Values and tokens at which the bounds of smoothers are equalities."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from ....solvers import split_frequencies
from ....solvers.spectral_filtering import high_frequency_gain
from ..heads import as_array
from ..inequalities import Inequalities
from ..registry import Array

N_EXTREMAL = 64
"""Tokens of an extremal case: so few that all eigenvectors cost nothing."""


def attain_gain(
    sides: Inequalities,
    smooth: Callable[[Tensor], Tensor],
    matrices: Sequence[Array],
    like: Tensor,
    factors: Sequence[float] | None = None,
) -> None:
    """``<y, HC[A z]> = factor |H A H|_2`` of each head, along singular vectors y and z of H A H.

    The layer smooths values of shape (heads, n_keys, 1); no more than rounding of A z counts.
    """
    pairs = [_sharpest(A) for A in matrices]
    z = torch.from_numpy(np.stack([z for _, z in pairs])).to(like.dtype)
    smoothed = as_array(smooth(z))
    for head, ((y, _), A) in enumerate(zip(pairs, matrices, strict=True)):
        factor = 1.0 if factors is None else factors[head]
        gain = high_frequency_gain(A)
        found = float((y * split_frequencies(smoothed[head])[1]).sum())
        sides.attained(
            np.sign(factor) * found, abs(factor) * gain, scale=max(1.0, gain) * max(1, abs(factor))
        )


def _sharpest(A: Array) -> tuple[Array, Array]:
    """Unit vectors with ``y^T H A H z = |H A H|_2``, as columns."""
    left, _, right = np.linalg.svd(split_frequencies(A)[1])
    return left[:, :1], right[:1].T


def opposite_tokens(x: Tensor) -> Tensor:
    """The first token of each head, and its negative: logits of size alpha, of either sign."""
    return torch.stack([x[:, 0], -x[:, 0]], dim=1)


def opposite_values(like: Tensor) -> Tensor:
    """Values 1 and -1 of two tokens, for each head."""
    return torch.tensor([[1.0], [-1.0]], dtype=like.dtype).expand(len(like), 2, 1)


def diffusion_modes(K: Array) -> tuple[Array, Array, Array]:
    """Eigenvalues of ``A = D^-1 K``, ascending, its eigenvectors E, and the degrees d.

    K is symmetric, so that ``E^T D E = I``.
    """
    d = K.sum(axis=1)
    roots = np.sqrt(d)
    mu, W = np.linalg.eigh(K / np.outer(roots, roots))
    return mu, W / roots[:, None], d
