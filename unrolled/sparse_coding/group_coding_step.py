"""A step of ISTA whose thresholds attend to the codes of similar patches."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .coding_step import CodingStep
from .similar_patches import Similar


class GroupCodingStep(CodingStep):
    """One step of ISTA in which an atom's energy in similar patches decides what is kept.

    With ``z = C + s (Y - C D) A^T`` of `CodingStep` and S_i the patches similar to patch i ::

        e_ij = (1 - b_j) z_ij^2 + b_j mean_{l in S_i} z_lj^2
        c_ij = z_ij max(1 - t_j / sqrt(e_ij), 0)

    where negative e_ij count as zero. At first ``b = 0``, which is `CodingStep`; ``b = 1`` is the
    proximal step of the group Lasso, where the sets S_i are groups that do not overlap.

    Parameters
    ----------
    *args, **kwargs
        Those of `CodingStep`.

    Attributes
    ----------
    sharing : Parameter of shape (n_atoms,)
        b.

    References
    ----------
    Lecouat, Ponce and Mairal (2020), Fully Trainable and Interpretable Non-Local Sparse Models for
    Image Restoration, section 3.2, whose groups have sums of squares.

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled.sparse_coding.group_coding_step import GroupCodingStep
    >>> from twinsolve.unrolled.sparse_coding.similar_patches import Similar
    >>> coding = GroupCodingStep(torch.eye(1), lam=2.0, step=1.0)
    >>> both = Similar.of(torch.tensor([[0, 1], [0, 1]]))
    >>> (coding(torch.tensor([[3.0], [0.5]]), both) * coding.threshold()).detach().flatten()
    tensor([2.0000, 0.0000])
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.sharing = nn.Parameter(torch.zeros_like(self.log_threshold))

    def forward(  # type: ignore[override]
        self,
        signals: Tensor,
        similar: Similar,
        codes: Tensor | None = None,
        unit: Tensor | None = None,
    ) -> Tensor:
        """One step from given codes, or from zero, as that of `CodingStep`.

        Parameters
        ----------
        signals : Tensor of shape (n_signals, d)
        similar : Similar
        codes : Tensor of shape (n_signals, n_atoms), optional
        unit : Tensor of shape (n_atoms,), optional

        Returns
        -------
        Tensor of shape (n_signals, n_atoms)
        """
        z = self.unshrunk(signals, codes, unit)
        squares, share = z.square(), self.sharing.to(z.dtype)
        energy = torch.addcmul(
            (1 - share) * squares, share / similar.n_similar, similar.sums(squares)
        )
        # Nothing is kept of energies of up to 1: thresholds are the unit.
        return z * (1 - F.threshold(energy, 1.0, 1.0).rsqrt())
