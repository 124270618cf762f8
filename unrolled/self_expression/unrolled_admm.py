"""Unrolled ADMM for self-expression: each iteration is ridge attention and a threshold."""

from typing import Any

import torch
from torch import Tensor, nn

from ..attention import Positive, check_count, check_positive, map_query_blocks, without_autocast
from ..sparse_coding import SparsePenalty, lam_max_of
from .keys import check_pair, own_keys

_RELAXATION = 1.6


class UnrolledADMM(nn.Module):
    """Elastic net self-expression by unrolled ADMM, for keys that are nearly parallel.

    From ``C = U = 0``, each iteration is ridge attention of the residual and a threshold ::

        V = B + (Q - B K) (K^T K + beta/2 I)^-1 K^T,     B = C - U
        V <- 1.6 V - 0.6 C
        C <- S_{l_i / beta}( V + U ) / (1 + l_i (1 - r) / (r beta)),   then diag(C) <- 0
        U <- U + V - C

    with ``l_i = 2 lam max_{j != i} |q_i . k_j|`` and ``beta = 2 lam mean_j |k_j|^2 / threshold``.
    It converges to the minimum of ::

        |Q - C K|_F^2 + sum_i l_i / r (r |c_i|_1 + (1 - r)/2 |c_i|^2),     r = l1_ratio

    that is to `solvers.ElasticNetSubspaceClustering` at ``gamma = 1 / lam``. On images, where the
    steps of ISTA are short, ten iterations do what hundreds of `UnrolledSelfExpression` do, and
    each costs as much. Rows are taken in blocks, recomputed in the backward pass, so that beside
    the coefficients memory is O(block * n_keys).

    Parameters
    ----------
    n_iter : int
        Number of iterations >= 1; the attribute may be changed later.
    lam : float
        Penalty in (0, 1), relative to the one that makes a row zero.
    l1_ratio : float, default=0.9
        r in (0, 1].
    threshold : float, default=0.05
        The threshold of ADMM for unit keys, > 0. It decides the way to the solution, not the
        solution; coefficients of that size are found fastest.

    Attributes
    ----------
    lam, threshold : Positive
        Learnable.

    Raises
    ------
    ValueError
        If an argument is out of range, queries and keys differ in width, keys or their products are
        not finite, or `lam` is so small that rounding makes the ridge system singular.

    References
    ----------
    EQUATIONS CL-1, CL-2, CL-5 (paper form); "Attention: Self-Expression Is All You Need" unrolls
    ISTA, SE-15.

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled import UnrolledADMM
    >>> X = torch.tensor([[1.0, 0.0], [2.0, 0.0], [0.0, 3.0]])
    >>> UnrolledADMM(50, lam=0.1, l1_ratio=1.0)(X).detach().round(decimals=2).abs()
    tensor([[0.0000, 0.4500, 0.0000],
            [1.8000, 0.0000, 0.0000],
            [0.0000, 0.0000, 0.0000]])
    """

    def __init__(
        self,
        n_iter: int,
        lam: float,
        *,
        l1_ratio: float = 0.9,
        threshold: float = 0.05,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        factory: dict[str, Any] = {"learnable": True, "device": device, "dtype": dtype}
        self.n_iter = check_count(n_iter, "n_iter", 1)
        if check_positive(lam, "lam") >= 1:
            raise ValueError(f"lam: must be in (0, 1), or all coefficients are zero; got {lam!r}")
        self.l1_ratio = check_positive(l1_ratio, "l1_ratio")
        if self.l1_ratio > 1:
            raise ValueError(f"l1_ratio: must be in (0, 1], got {l1_ratio!r}")
        self.lam = Positive(lam, name="lam", **factory)
        self.threshold = Positive(threshold, name="threshold", **factory)

    def reset_parameters(self) -> None:
        """Return penalty and threshold to their values at construction."""
        self.lam.reset_parameters()
        self.threshold.reset_parameters()

    def forward(self, queries: Tensor, keys: Tensor | None = None) -> Tensor:
        """Coefficients of each query in the keys.

        Parameters
        ----------
        queries : Tensor of shape (..., n_queries, d)
        keys : Tensor of shape (..., n_keys, d), optional
            None takes the queries themselves, each without itself.

        Returns
        -------
        Tensor of shape (..., n_queries, n_keys)
            bfloat16 and float16 iterate in float32.
        """
        other = check_pair(queries, keys)
        if not queries.is_floating_point():
            raise ValueError(f"queries: must be of a floating dtype, got {queries.dtype}")
        wide = torch.promote_types(queries.dtype, torch.float32)
        q, k = queries.to(wide), other.to(wide)
        with without_autocast(q):
            if k.shape[-2] == 0:
                return (q @ k.mT).to(queries.dtype)
            lam = self.lam().to(wide)
            squares = k.square().sum(-1).mean(-1)[..., None, None]
            beta = 2 * lam * squares / self.threshold().to(wide)
            beta = beta.clamp(min=torch.finfo(wide).tiny)
            inverse = _invert_regularized(k, beta / 2, "queries" if keys is None else "keys")
            own = torch.arange(k.shape[-2], device=k.device) if keys is None else None

            def block(rows: Tensor, start: int) -> Tensor:
                products, hidden = rows @ k.mT, own_keys(own, start, rows, k)
                penalties = lam * lam_max_of(products, hidden) / self.l1_ratio
                penalty = SparsePenalty(penalties, self.l1_ratio, hidden=hidden)
                codes = dual = torch.zeros_like(products)
                for _ in range(self.n_iter):
                    target = codes - dual
                    ridge = target + (rows - target @ k) @ inverse @ k.mT
                    relaxed = _RELAXATION * ridge + (1 - _RELAXATION) * codes + dual
                    codes = penalty.prox(relaxed, 2 / beta)
                    dual = relaxed - codes
                return codes.to(queries.dtype)

            return map_query_blocks(block, q)

    def extra_repr(self) -> str:
        return f"n_iter={self.n_iter}, l1_ratio={self.l1_ratio:.4g}"


def _invert_regularized(k: Tensor, ridge: Tensor, name: str) -> Tensor:
    """Return ``(k^T k + ridge I)^-1``, computed in float64; errors call the keys `name`."""
    k, identity = k.double(), torch.eye(k.shape[-1], dtype=torch.float64, device=k.device)
    gram = k.mT @ k + ridge.double() * identity
    try:
        factor = torch.linalg.cholesky(gram)
    except torch.linalg.LinAlgError as error:
        if bool(gram.isfinite().all()):
            raise ValueError(
                f"lam: is too small for these {name}, the ridge {float(ridge.detach().min()):.3g} "
                "is lost in rounding; increase lam or decrease threshold"
            ) from error
        raise ValueError(f"{name}: entries and their products must be finite") from error
    return torch.cholesky_inverse(factor).to(ridge.dtype)
