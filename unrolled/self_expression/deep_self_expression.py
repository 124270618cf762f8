"""Deep self-expression: layers of several heads, with a metric learned from residuals."""

from collections.abc import Iterable, Iterator
from functools import reduce
from typing import Any

import torch
from torch import Tensor, nn

from ..attention import check_count, check_positive, without_autocast
from .unrolled_admm import UnrolledADMM

_SMALLEST = 1e-12  # norm of a row that is divided by it


class DeepSelfExpression(nn.Module):
    """Layers and heads of unrolled self-expression of learned features, also for curved manifolds.

    Tokens pass through `n_layers` blocks of H = `num_heads` heads, and are then expressed by each
    other. With Z_h the columns h, h + H, ... of Z, each row of unit norm in each head ::

        C_lh = express_l(Z_h),   Y = norm(Z W_l) = Y_1 + ... + Y_H
        Z <- norm((1 - mixing) Y + mixing sum_h C_lh Y_h),     C = mean_h express(Z_h)

    where norm gives each row unit norm in each head, and Y_h is the part of Y that Z_h makes. A
    block is a transformer's: multi-head attention whose matrices are self-expression
    (`UnrolledADMM`), a learned projection W_l of the heads side by side, a residual connection and
    normalised tokens. Attention moves tokens along their subspace or manifold. The projection is
    learned by maximum likelihood: residuals ``R = [Z_1 - C_l1 Z_1, ..., Z_H - C_lH Z_H]`` are taken
    as normal with covariance ``(W_l W_l^T)^-1``, so that directions in which tokens do not explain
    each other count less ::

        loss_l = (|R W_l|_F^2 / n + rho t |W_l|_F^2) / (2 d) - log|det W_l| / d

    with t the mean eigenvalue of the residuals' covariance M and rho = `shrinkage`. Given R, it
    is least at ``W_l = (M + rho t I)^(-1/2) O`` for every orthogonal O, which `fit_projections`
    sets layer by layer; its condition is at most ``sqrt(1 + d / rho)`` in any depth. The likelihood
    does not determine O, but heads depend on it. O holds the eigenvectors of M in the order of
    their eigenvalues: as heads take every H-th column, each gets directions of all scales. For one
    head O does not matter and is the identity. Without layers, or at the initial ``W_l = I``
    without mixing, one head is `UnrolledADMM`.

    Parameters
    ----------
    in_features : int
        Width d of the tokens.
    n_layers : int, default=2
        Number of blocks >= 0 before the last self-expression.
    num_heads : int, default=1
        H in [1, d]. A head has d / H columns, rounded up or down. In the first block they are
        columns of the tokens as given: order these by scale, as principal components are. Each head
        has to tell subspaces apart by its own columns, so narrow tokens need a single head.
    mixing : float, default=0.3
        In [0, 1].
    shrinkage : float, default=0.1
        rho > 0: weight of the prior of the projections.
    n_iter, lam, l1_ratio, threshold
        As in `UnrolledADMM`, of each self-expression; by default 10, 0.02, 0.9 and 0.05.

    Attributes
    ----------
    express : ModuleList of UnrolledADMM
        One for each block, and the last; heads share it.
    projections : ParameterList
        W_l of each block, of shape (d, d); the identity at first.

    Raises
    ------
    ValueError
        If an argument is out of range, or tokens have another width or are not finite.

    References
    ----------
    "Attention: Self-Expression Is All You Need", section 5 (stacked layers for nonlinear
    manifolds); EQUATIONS SE-12, CL-2, CL-5.

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled import DeepSelfExpression
    >>> X = torch.randn(40, 6)
    >>> model = DeepSelfExpression(6, n_layers=2)
    >>> losses = model.fit_projections(X)
    >>> len(losses), model(X).shape, model(torch.randn(3, 6), X).shape
    (2, torch.Size([40, 40]), torch.Size([3, 40]))
    """

    def __init__(
        self,
        in_features: int,
        n_layers: int = 2,
        *,
        num_heads: int = 1,
        mixing: float = 0.3,
        shrinkage: float = 0.1,
        n_iter: int = 10,
        lam: float = 0.02,
        l1_ratio: float = 0.9,
        threshold: float = 0.05,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        self.in_features = check_count(in_features, "in_features", 1)
        self.n_layers = check_count(n_layers, "n_layers", 0)
        self.num_heads = check_count(num_heads, "num_heads", 1)
        if num_heads > in_features:
            raise ValueError(f"num_heads: must be at most {in_features} features, got {num_heads}")
        self.mixing = check_positive(mixing, "mixing", allow_zero=True)
        if self.mixing > 1:
            raise ValueError(f"mixing: must be in [0, 1], got {mixing!r}")
        self.shrinkage = check_positive(shrinkage, "shrinkage")
        self.express = nn.ModuleList(
            UnrolledADMM(n_iter, lam, l1_ratio=l1_ratio, threshold=threshold, **factory)
            for _ in range(n_layers + 1)
        )
        self.projections = nn.ParameterList(
            torch.empty(in_features, in_features, **factory) for _ in range(n_layers)
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Return projections to the identity, and self-expressions to their initial values."""
        for projection in self.projections:
            nn.init.eye_(projection)
        for express in self.express:
            assert isinstance(express, UnrolledADMM)
            express.reset_parameters()

    def forward(self, queries: Tensor, keys: Tensor | None = None) -> Tensor:
        """Coefficients of each query in the keys, by the last layer: the mean over its heads.

        Parameters
        ----------
        queries : Tensor of shape (n_queries, d)
        keys : Tensor of shape (n_keys, d), optional
            None takes the queries themselves, each without itself. Keys pass through the layers
            expressed by each other, queries expressed by them.

        Returns
        -------
        Tensor of shape (n_queries, n_keys)
            bfloat16 and float16 are computed in float32.
        """
        z = self._prepare_tokens(queries, "queries")
        k = None if keys is None else self._prepare_tokens(keys, "keys").to(z.dtype)
        with without_autocast(z):
            for block in range(self.n_layers):
                next_keys = None if k is None else self._apply_block(block, k)
                z, k = self._apply_block(block, z, k), next_keys
            C = reduce(torch.add, self._express_heads(self.n_layers, z, k)) / self.num_heads
        return C.to(queries.dtype)

    def losses(self, X: Tensor) -> Tensor:
        """Return the loss of each layer's projection, differentiable in all parameters."""
        z, losses = self._prepare_tokens(X, "X"), []
        for block in range(self.n_layers):
            C = list(self._express_heads(block, z))
            losses.append(self._compute_loss(block, self._residual_covariance(z, C)))
            z = self._apply_block(block, z, C=C)
        return torch.stack(losses) if losses else X.new_zeros(0)

    @torch.no_grad()
    def fit_projections(self, X: Tensor) -> list[float]:
        """Set each projection to the minimum of its loss, from the first layer to the last.

        Parameters
        ----------
        X : Tensor of shape (n_tokens, d)

        Returns
        -------
        list of float
            The loss of each layer. A layer without residuals keeps its projection.
        """
        z, losses = self._prepare_tokens(X, "X"), []
        for block, projection in enumerate(self.projections):
            C = list(self._express_heads(block, z))
            covariance = self._residual_covariance(z, C)
            if covariance.diagonal().sum() > 0:
                projection.copy_(self._best_projection(covariance))
            losses.append(float(self._compute_loss(block, covariance)))
            z = self._apply_block(block, z, C=C)
        return losses

    def _apply_block(
        self, block: int, z: Tensor, k: Tensor | None = None, C: Iterable[Tensor] | None = None
    ) -> Tensor:
        """Return the tokens after a block; the keys k express them, by default the tokens z."""
        C = self._express_heads(block, z, k) if C is None else C
        k, W = z if k is None else k, self.projections[block].to(z.dtype)
        scale = self._norms_in_heads(k @ W)
        attended = sum(
            c @ (k[:, h] @ W[h] / scale) for h, c in zip(self._columns_of_heads, C, strict=True)
        )
        y = self._normalize(z @ W)
        return self._normalize((1 - self.mixing) * y + self.mixing * attended)

    def _express_heads(self, block: int, z: Tensor, k: Tensor | None = None) -> Iterator[Tensor]:
        """Yield the coefficients of each head, of z in k or in each other."""
        for h in self._columns_of_heads:
            yield self.express[block](z[:, h], None if k is None else k[:, h])

    @property
    def _columns_of_heads(self) -> list[slice]:
        """The columns of each head: every num_heads-th one."""
        return [slice(head, None, self.num_heads) for head in range(self.num_heads)]

    def _normalize(self, z: Tensor) -> Tensor:
        """Scale tokens to unit norm in each head."""
        return z / self._norms_in_heads(z)

    def _norms_in_heads(self, z: Tensor) -> Tensor:
        """Return, for each entry, the norm of its row within its head: (n_tokens, d)."""
        norms = torch.stack(
            [torch.linalg.vector_norm(z[:, h], dim=-1) for h in self._columns_of_heads], -1
        )
        norms = norms.clamp(min=_SMALLEST)
        return norms.repeat(1, -(-self.in_features // self.num_heads))[:, : self.in_features]

    def _residual_covariance(self, z: Tensor, C: Iterable[Tensor]) -> Tensor:
        """Return the covariance of the residuals, in float64."""
        residual = torch.empty_like(z, dtype=torch.float64)
        for h, c in zip(self._columns_of_heads, C, strict=True):
            residual[:, h] = (z[:, h] - c @ z[:, h]).double()
        return residual.mT @ residual / len(residual)

    def _compute_loss(self, block: int, covariance: Tensor) -> Tensor:
        """Return the loss of the projection W_l, which need not be symmetric."""
        W, d = self.projections[block].double(), self.in_features
        quadratic = (W * (self._shrink_covariance(covariance) @ W)).sum() / 2
        return (quadratic - torch.linalg.slogdet(W).logabsdet) / d

    def _best_projection(self, covariance: Tensor) -> Tensor:
        """Return the W_l of least loss for this covariance of the residuals."""
        values, vectors = torch.linalg.eigh(self._shrink_covariance(covariance))
        W = vectors * values.rsqrt()
        return W @ vectors.mT if self.num_heads == 1 else W

    def _shrink_covariance(self, covariance: Tensor) -> Tensor:
        """Return ``M + rho t I``, with t the mean of the diagonal of M and rho the shrinkage."""
        mean = covariance.diagonal().mean()
        unit = torch.eye(self.in_features, dtype=covariance.dtype, device=covariance.device)
        return covariance + self.shrinkage * mean * unit

    def _prepare_tokens(self, x: Tensor, name: str) -> Tensor:
        """Return tokens of unit norm in each head, in float32 at least."""
        if x.ndim != 2 or x.shape[-1] != self.in_features or not x.is_floating_point():
            raise ValueError(
                f"{name}: must be (n_tokens, {self.in_features}) of a floating dtype, got "
                f"{tuple(x.shape)} of {x.dtype}"
            )
        return self._normalize(x.to(torch.promote_types(x.dtype, torch.float32)))

    def extra_repr(self) -> str:
        return (
            f"in_features={self.in_features}, num_heads={self.num_heads}, "
            f"mixing={self.mixing:.4g}, shrinkage={self.shrinkage:.4g}"
        )
