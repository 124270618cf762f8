"""One step of matching pursuit as a mixture of experts with signed codes, one expert chosen."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..attention import Positive


class PursuitStep(nn.Module):
    """A mixture of experts of one atom each, one of which takes its part from the residual.

    The router sends a residual x to the expert with the largest ``|x . r_j|``, whose code has
    either sign ::

        z = max(1 - t / |x . r_j|, 0) (x . a_j),     x <- x - z p_j

    At first ``r_j = a_j = p_j`` is an atom d_j: a step of matching pursuit with the soft threshold
    t, and where ``|d_j| = 1`` the coordinate descent step of ``|x - c D|^2 + 2 t |c|_1`` on a code
    c that is zero at j. The gate is what the router learns by.

    Parameters
    ----------
    dictionary : Tensor of shape (n_atoms, d)
    threshold : float
        t > 0 at first.

    Attributes
    ----------
    router, analysis, synthesis : Parameter of shape (n_atoms, d)
        Rows are r_j, a_j and p_j.
    threshold : Positive

    References
    ----------
    Mallat and Zhang (1993), Shazeer et al. (2017); EQUATIONS IF-32, IF-33, IF-KSVD.

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled.sparse_coding.pursuit_step import PursuitStep
    >>> residual, atoms, codes = PursuitStep(torch.eye(2), 1.0)(torch.tensor([[0.5, -3.0]]))
    >>> residual.detach(), atoms, codes.detach()
    (tensor([[ 0.5000, -1.0000]]), tensor([1]), tensor([-2.0000]))
    """

    def __init__(self, dictionary: Tensor, threshold: float) -> None:
        super().__init__()
        self.router = nn.Parameter(dictionary.clone())
        self.analysis = nn.Parameter(dictionary.clone())
        self.synthesis = nn.Parameter(dictionary.clone())
        self.threshold = Positive(
            threshold,
            name="threshold",
            learnable=True,
            device=dictionary.device,
            dtype=dictionary.dtype,
        )

    def forward(self, residual: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """What is left of signals of shape (n_signals, d), the atoms chosen, and their codes."""
        router, analysis, synthesis, threshold = (
            x.to(residual.dtype)
            for x in (self.router, self.analysis, self.synthesis, self.threshold())
        )
        with torch.no_grad():
            atoms = (residual @ router.mT).abs().argmax(dim=1)
        score, code = (
            (residual * F.embedding(atoms, rows)).sum(dim=1) for rows in (router, analysis)
        )
        code = code * (1 - threshold / torch.maximum(score.abs(), threshold))
        return residual - code[:, None] * F.embedding(atoms, synthesis), atoms, code
