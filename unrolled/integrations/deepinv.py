"""Starts of deepinv's unfolded networks."""

import math
from collections.abc import Callable
from typing import Any

from torch import Tensor

from ..solved import solved_lasso
from ..sparse_coding.patches import average_patches, check_patched, patch_rows, split_means


def deepinv_start(
    dictionary: Tensor, *, lam: Tensor | float, n_jobs: int | None = None
) -> Callable[[Tensor, Any], tuple[Tensor, Tensor]]:
    """A start for the unfolded networks of deepinv: images denoised by solved sparse codes.

    deepinv starts at ``A^T y``, for noise alone the noisy image. Here the means of the channels are
    taken off all patches of it; each patch is replaced by what its Lasso makes of it, and patches
    that overlap are averaged. Pass the start as `custom_init` or `init`. A dictionary that requires
    a gradient is trained with the network.

    Parameters
    ----------
    dictionary : Tensor of shape (n_atoms, channels * patch_size^2)
        For square patches, as `twinsolve.unrolled.sparse_coding.patches.patch_rows` makes them.
    lam : float or Tensor
        Penalty > 0, as in `solved_lasso`.
    n_jobs : int, optional
        Number of threads.

    Returns
    -------
    callable
        ``start(y, physics)`` returns the pair of primal and auxiliary start, both the image.

    Raises
    ------
    ValueError
        By the start, if atoms are no square patches of the channels of the image, or images are
        smaller than a patch.

    References
    ----------
    EQUATIONS IF-KSVD, IG-1.

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled.integrations import deepinv_start
    >>> from twinsolve.unrolled.sparse_coding.patches import cosine_dictionary
    >>> start = deepinv_start(cosine_dictionary(8, 11), lam=75 / 255)
    >>> import deepinv  # doctest: +SKIP
    >>> network = deepinv.optim.PGD(unfold=True, custom_init=start, ...)  # doctest: +SKIP
    """

    def start(y: Tensor, physics: Any) -> tuple[Tensor, Tensor]:
        noisy = physics.A_adjoint(y)
        channels = noisy.shape[1]
        size = math.isqrt(dictionary.shape[1] // channels)
        if channels * size**2 != dictionary.shape[1]:
            raise ValueError(
                f"dictionary: atoms must be square patches of {channels} channels, got "
                f"{dictionary.shape[1]} features"
            )
        check_patched(noisy, channels, size)
        signals, means = split_means(patch_rows(noisy, size), channels)
        codes = solved_lasso(signals, dictionary, lam=lam, n_jobs=n_jobs)
        image = average_patches(means + codes @ dictionary, noisy.shape)
        return image, image

    return start
