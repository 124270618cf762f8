"""The ISTA block: a feed-forward part that codes each token in a square dictionary."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..attention import check_count, check_positive


class ISTABlock(nn.Module):
    """ISTA block (CRATE): one step on the nonnegative code of each token, from the token itself.

    ::

        z = relu( x + step (x - x D) D^T - step lam / 2 )

    for tokens x (rows) and a square dictionary D (rows are atoms). It is one proximal step on
    ``|x - z D|^2 + lam sum z`` over ``z >= 0`` from z = x, as `solvers.ista` takes it. For
    ``step <= 1 / |D|_2^2`` the objective F is below that of any nonnegative code u by ::

        F(z) - F(u) <= (|u - x|^2 - |u - z|^2) / step

    At first ``|D|_2^2`` is near 8 for wide tokens, so that the default step is short enough.
    Training may leave that range. The tokens come out as codes: in a `Block`, leave out the
    connection around it (``feed_forward=ISTABlock, feed_forward_skip=False``), as CRATE does.

    Parameters
    ----------
    dim : int
        Width of the tokens, and number of atoms.
    step : float, default=0.1
        > 0: CRATE's eta.
    lam : float, default=0.2
        > 0: twice CRATE's lambda, whose objective is half of the one above.

    Attributes
    ----------
    dictionary : Parameter of shape (dim, dim)
        The transpose of CRATE's weight.

    Raises
    ------
    ValueError
        If a number is out of range, or tokens have another width.

    References
    ----------
    Yu et al., "White-box transformers via sparse rate reduction" (2023); EQUATIONS CR-6, SE-15n.

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled.models import Block
    >>> from twinsolve.unrolled.sparse_coding import ISTABlock
    >>> block = Block(8, 2, feed_forward=ISTABlock, feed_forward_skip=False)
    >>> bool((block(torch.randn(2, 5, 8)) >= 0).all())
    True
    """

    def __init__(
        self,
        dim: int,
        step: float = 0.1,
        lam: float = 0.2,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.dim = check_count(dim, "dim", 1)
        self.step, self.lam = check_positive(step, "step"), check_positive(lam, "lam")
        self.dictionary = nn.Parameter(torch.empty(dim, dim, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw a new dictionary, uniformly with the variance ``2 / dim``."""
        nn.init.kaiming_uniform_(self.dictionary)

    def forward(self, x: Tensor) -> Tensor:
        """Code tokens.

        Parameters
        ----------
        x : Tensor of shape (..., dim)

        Returns
        -------
        Tensor of shape (..., dim)
        """
        if x.ndim == 0 or x.shape[-1] != self.dim:
            raise ValueError(f"x: must have shape (..., {self.dim}), got {tuple(x.shape)}")
        residual = x - x @ self.dictionary
        return F.relu(x + self.step * residual @ self.dictionary.mT - self.step * self.lam / 2)

    def extra_repr(self) -> str:
        return f"dim={self.dim}, step={self.step:.4g}, lam={self.lam:.4g}"
