"""Deep self-expression: layers, each with a metric learned from its residuals."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..attention import check_count, check_positive
from .unrolled_admm import UnrolledADMM


class DeepSelfExpression(nn.Module):
    """Layers of unrolled self-expression of learned features, for subspaces and curved manifolds.

    Tokens of unit norm pass through `n_layers` blocks, and are then expressed by each other ::

        C_l = express_l(Z),   Y = norm(Z W_l),   Z <- norm((1 - mixing) Y + mixing C_l Y)
        C = express(Z)

    A block is a transformer's: attention whose matrix is self-expression (`UnrolledADMM`), a
    learned projection W_l, a residual connection and normalised tokens. Attention moves tokens
    along their subspace or manifold. The projection is learned by maximum likelihood: residuals
    are taken as normal with covariance ``(W_l W_l^T)^-1``, so that directions in which tokens do
    not explain each other count less ::

        loss_l = (|(Z - C_l Z) W_l|_F^2 / n + rho t |W_l|_F^2) / (2 d) - log|det W_l| / d

    with t the mean eigenvalue of the residuals' covariance M and rho = `shrinkage`. Given C_l, it
    is least at ``W_l = (M + rho t I)^(-1/2)``, which `fit_projections` sets, layer by layer.
    Without layers, or at the initial ``W_l = I`` without mixing, it is `UnrolledADMM`.

    Parameters
    ----------
    in_features : int
        Width d of the tokens.
    n_layers : int, default=2
        Number of blocks >= 0 before the last self-expression.
    mixing : float, default=0.3
        In [0, 1].
    shrinkage : float, default=0.1
        rho > 0: weight of the prior of the projections.
    n_iter, lam, l1_ratio, threshold
        As in `UnrolledADMM`, of each self-expression; by default 10, 0.02, 0.9 and 0.05.

    Attributes
    ----------
    express : ModuleList of UnrolledADMM
        One for each block, and the last.
    projections : ParameterList
        W_l of each block, of shape (d, d); the identity at first.

    Raises
    ------
    ValueError
        If an argument is out of range, or tokens have another width.

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
        """Coefficients of each query in the keys, by the last layer.

        Parameters
        ----------
        queries : Tensor of shape (n_queries, d)
        keys : Tensor of shape (n_keys, d), optional
            None takes the queries themselves, each without itself. Keys pass through the layers
            expressed by each other, queries expressed by them.

        Returns
        -------
        Tensor of shape (n_queries, n_keys)
        """
        z = self._unit_tokens(queries, "queries")
        if keys is None:
            for block in range(self.n_layers):
                z = self._block(block, z)[0]
            return self._coefficients(self.n_layers, z)
        k = self._unit_tokens(keys, "keys")
        for block in range(self.n_layers):
            C = self._coefficients(block, z, k)
            y = self._project(block, z)
            k, projected = self._block(block, k)
            z = self._mix(y, C @ projected)
        return self._coefficients(self.n_layers, z, k)

    def losses(self, X: Tensor) -> Tensor:
        """Loss of the projection of each layer, differentiable in all parameters.

        Parameters
        ----------
        X : Tensor of shape (n_tokens, d)

        Returns
        -------
        Tensor of shape (n_layers,)
        """
        z, found = self._unit_tokens(X, "X"), []
        for block in range(self.n_layers):
            residual = z - self._coefficients(block, z) @ z
            found.append(self._loss(block, _covariance(residual)))
            z = self._block(block, z)[0]
        return torch.stack(found) if found else X.new_zeros(0)

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
        z, found = self._unit_tokens(X, "X"), []
        for block, projection in enumerate(self.projections):
            C = self._coefficients(block, z)
            covariance = _covariance(z - C @ z)
            if covariance.diagonal().sum() > 0:
                projection.copy_(self._best_projection(covariance))
            found.append(float(self._loss(block, covariance)))
            z = self._block(block, z, C)[0]
        return found

    def _block(self, block: int, z: Tensor, C: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Tokens after a block, and what its attention carried: the projected tokens."""
        C = self._coefficients(block, z) if C is None else C
        y = self._project(block, z)
        return self._mix(y, C @ y), y

    def _coefficients(self, block: int, queries: Tensor, keys: Tensor | None = None) -> Tensor:
        C: Tensor = self.express[block](queries, keys)
        return C

    def _project(self, block: int, z: Tensor) -> Tensor:
        return F.normalize(z @ self.projections[block], dim=-1)

    def _mix(self, y: Tensor, attended: Tensor) -> Tensor:
        return F.normalize((1 - self.mixing) * y + self.mixing * attended, dim=-1)

    def _loss(self, block: int, covariance: Tensor) -> Tensor:
        """In float64; `covariance` is that of the residuals, and W_l is symmetric or not."""
        W, d = self.projections[block].double(), self.in_features
        quadratic = (W * (self._shrunk(covariance) @ W)).sum() / 2
        return (quadratic - torch.linalg.slogdet(W).logabsdet) / d

    def _best_projection(self, covariance: Tensor) -> Tensor:
        values, vectors = torch.linalg.eigh(self._shrunk(covariance))
        return (vectors * values.rsqrt()) @ vectors.mT

    def _shrunk(self, covariance: Tensor) -> Tensor:
        mean = covariance.diagonal().mean()
        unit = torch.eye(self.in_features, dtype=covariance.dtype, device=covariance.device)
        return covariance + self.shrinkage * mean * unit

    def _unit_tokens(self, x: Tensor, name: str) -> Tensor:
        if x.ndim != 2 or x.shape[-1] != self.in_features or not x.is_floating_point():
            raise ValueError(
                f"{name}: must be (n_tokens, {self.in_features}) of a floating dtype, got "
                f"{tuple(x.shape)} of {x.dtype}"
            )
        return F.normalize(x, dim=-1)

    def extra_repr(self) -> str:
        return f"mixing={self.mixing:.4g}, shrinkage={self.shrinkage:.4g}"


def _covariance(residual: Tensor) -> Tensor:
    residual = residual.double()
    return residual.mT @ residual / len(residual)
