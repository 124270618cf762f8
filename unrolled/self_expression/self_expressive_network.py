"""Self-expressive network: coefficients from products of learned queries and keys."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from ..attention import Positive, check_count, check_positive, recomputed, without_autocast
from ..block_size import block_size
from ..sparse_coding import soft_threshold

if TYPE_CHECKING:
    from scipy.sparse import csr_array

_BLOCK = 1024


class SelfExpressiveNetwork(nn.Module):
    """Self-expressive network (SENet): learned queries and keys whose products are coefficients.

    ::

        Q = f(X),  K = g(X),   C = S_b(Q K^T) / width   with zero diagonal

    for perceptrons f and g with ReLU, and tanh at the output, and a learned threshold b. Trained on
    the elastic net of self-expression, for each token ::

        gamma/2 |x_i - c_i X|^2 + r |c_i|_1 + (1 - r)/2 |c_i|^2,     r = l1_ratio

    This is gamma/2 times the objective of `solvers.sparse_self_expression` at ``lam = 2 / gamma``
    and the same `l1_ratio`, so the certified optimum there bounds the loss from below. All pairs
    are visited in blocks of queries against blocks of keys, recomputed in the backward pass: the
    n_queries x n_keys matrix is never held, and memory is O(n (d + width) + block^2).

    Parameters
    ----------
    in_features : int
        Width d of the tokens.
    hidden_features : sequence of int, default=(1024, 1024, 1024)
        Hidden widths of both perceptrons.
    width : int, default=1024
        Width of queries and keys.
    gamma : float, default=200.0
        Weight > 0 of the reconstruction.
    l1_ratio : float, default=0.9
        r in (0, 1].
    threshold : float, default=0.01
        Initial b > 0. Small, as a network whose products are all below it gets no gradient.

    Attributes
    ----------
    query, key : Sequential
        f and g.
    threshold : Positive
        b.

    Raises
    ------
    ValueError
        If an argument is out of range, or tokens have another width.

    References
    ----------
    Zhang et al., "Learning a self-expressive network for subspace clustering" (2021);
    EQUATIONS CL-11, CL-2.

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled import SelfExpressiveNetwork
    >>> X = torch.randn(40, 6)
    >>> network = SelfExpressiveNetwork(6, hidden_features=(32,), width=16)
    >>> network.loss(X, rows=torch.arange(8)).backward()
    >>> network.coefficients(X).shape, network.coefficients(torch.randn(3, 6), X).shape
    ((40, 40), (3, 40))
    """

    def __init__(
        self,
        in_features: int,
        *,
        hidden_features: Sequence[int] = (1024, 1024, 1024),
        width: int = 1024,
        gamma: float = 200.0,
        l1_ratio: float = 0.9,
        threshold: float = 0.01,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        self.in_features = check_count(in_features, "in_features", 1)
        self.width = check_count(width, "width", 1)
        self.gamma = check_positive(gamma, "gamma")
        self.l1_ratio = check_positive(l1_ratio, "l1_ratio")
        if self.l1_ratio > 1:
            raise ValueError(f"l1_ratio: must be in (0, 1], got {l1_ratio!r}")
        hidden = [check_count(size, "hidden_features", 1) for size in hidden_features]
        self.query, self.key = (
            _make_perceptron([in_features, *hidden, width], factory) for _ in "qk"
        )
        self.threshold = Positive(threshold, name="threshold", learnable=True, **factory)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw both perceptrons anew (He for ReLU, Glorot for tanh, biases zero), and reset b."""
        for perceptron in (self.query, self.key):
            *hidden, last = (layer for layer in perceptron if isinstance(layer, nn.Linear))
            for layer in hidden:
                nn.init.kaiming_uniform_(layer.weight, nonlinearity="relu")
            nn.init.xavier_uniform_(last.weight)
            for layer in (*hidden, last):
                nn.init.zeros_(layer.bias)
        self.threshold.reset_parameters()

    def forward(self, queries: Tensor, keys: Tensor | None = None) -> Tensor:
        """Reconstruct each query from the keys, ``C keys``.

        Parameters
        ----------
        queries : Tensor of shape (n_queries, d)
        keys : Tensor of shape (n_keys, d), optional
            None takes the queries themselves, each without itself.

        Returns
        -------
        Tensor of shape (n_queries, d)
        """
        points, own_index = self._match_points(queries, keys)
        return self._express(queries, points, own_index)[0].to(queries.dtype)

    def objective(self, X: Tensor, rows: Tensor | None = None) -> Tensor:
        """Loss of each token, expressed by all others.

        Parameters
        ----------
        X : Tensor of shape (n_tokens, d)
        rows : Tensor, optional
            Tokens whose loss is returned, as indices or a mask, such as a batch. None is all.

        Returns
        -------
        Tensor of shape (n_rows,)
        """
        own_index = self._match_points(X, None)[1]
        own_index = own_index if rows is None else own_index[rows]
        reconstruction, l1, l2 = self._express(X[own_index], X, own_index)
        penalty = self.l1_ratio * l1 + (1 - self.l1_ratio) / 2 * l2
        return self.gamma / 2 * (X[own_index] - reconstruction).square().sum(-1) + penalty

    def loss(self, X: Tensor, rows: Tensor | None = None) -> Tensor:
        """Mean of the `objective`, over all tokens or a batch of them in all of X."""
        return self.objective(X, rows).mean()

    @torch.no_grad()
    def coefficients(self, queries: Tensor, keys: Tensor | None = None) -> "csr_array":
        """Sparse matrix of the coefficients C of queries in the keys, for pictures and clustering.

        Parameters
        ----------
        queries : Tensor of shape (n_queries, d)
        keys : Tensor of shape (n_keys, d), optional
            None takes the queries themselves, each without itself.

        Returns
        -------
        csr_array of shape (n_queries, n_keys)
            On the CPU, float32 or float64. It holds all coefficients that are not zero.
        """
        from scipy.sparse import block_array, csr_array

        points, own_index = self._match_points(queries, keys)
        K, rows = self._project(self.key, points), []
        b = self.threshold().to(K.dtype)
        for start, Q in _split_blocks(self._project(self.query, queries)):
            own_block = None if own_index is None else own_index[start : start + len(Q)]
            blocks = [
                self._coefficients(Q, key_block, b, own_block, at)
                for at, key_block in _split_blocks(K)
            ]
            rows.append([csr_array(block.cpu().numpy()) for block in blocks])
        return block_array(rows, format="csr")

    def _match_points(self, queries: Tensor, keys: Tensor | None) -> tuple[Tensor, Any]:
        """Return keys and None or, without keys, the queries and each one's index among them."""
        for name, points in (("queries", queries), ("keys", keys)):
            if points is not None and (points.ndim != 2 or points.shape[1] != self.in_features):
                raise ValueError(
                    f"{name}: must be (n_points, {self.in_features}), got {tuple(points.shape)}"
                )
        if keys is not None:
            return keys, None
        return queries, torch.arange(len(queries), device=queries.device)

    def _express(self, queries: Tensor, keys: Tensor, own: Tensor | None) -> tuple[Tensor, ...]:
        """Return each query's reconstruction, and its sums of absolute and squared coefficients."""
        Q, K = self._project(self.query, queries), self._project(self.key, keys)
        keys = keys.to(K.dtype)

        threshold = self.threshold().to(K.dtype)

        def part(Q: Tensor, K: Tensor, points: Tensor, own: Tensor | None, at: int) -> Any:
            with without_autocast(Q):
                C = self._coefficients(Q, K, threshold, own, at)
                return C @ points, C.abs().sum(-1), C.square().sum(-1)

        sums, n_blocks = [], len(_split_blocks(Q)) * len(_split_blocks(K))
        for start, rows in _split_blocks(Q):
            own_block = None if own is None else own[start : start + len(rows)]
            parts = [
                _recompute_blocks(
                    part, n_blocks, rows, key_block, keys[at : at + len(key_block)], own_block, at
                )
                for at, key_block in _split_blocks(K)
            ]
            sums.append([sum(terms[1:], terms[0]) for terms in zip(*parts, strict=True)])
        return tuple(torch.cat(blocks) for blocks in zip(*sums, strict=True))

    def _coefficients(
        self, Q: Tensor, K: Tensor, threshold: Tensor, own: Tensor | None, at: int
    ) -> Tensor:
        """Return a block of C for keys from index `at` on; `own` is each query's key, excluded."""
        C = soft_threshold(Q @ K.mT, threshold) / self.width
        if own is None:
            return C
        return C.masked_fill(own[:, None] == torch.arange(at, at + len(K), device=C.device), 0)

    def _project(self, perceptron: nn.Module, points: Tensor) -> Tensor:
        """Return queries or keys: the perceptron's outputs, in float32 at least."""
        blocks = _split_blocks(points)
        project = partial(functional_call, perceptron, dict(perceptron.named_parameters()))
        projected = torch.cat([_recompute_blocks(project, len(blocks), part) for _, part in blocks])
        return projected.to(torch.promote_types(projected.dtype, torch.float32))

    def extra_repr(self) -> str:
        return f"width={self.width}, gamma={self.gamma:.4g}, l1_ratio={self.l1_ratio:.4g}"


def _make_perceptron(sizes: list[int], factory: dict[str, Any]) -> nn.Sequential:
    """Make a perceptron with these widths, ReLU between its layers and tanh at the end."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        layers += [nn.Linear(inputs, outputs, **factory), nn.ReLU()]
    return nn.Sequential(*layers[:-1], nn.Tanh())


def _split_blocks(x: Tensor) -> list[tuple[int, Tensor]]:
    """Split into blocks of rows, each with the index of its first row."""
    size = block_size(_BLOCK)
    return [(i * size, rows) for i, rows in enumerate(x.split(size))]


def _recompute_blocks(function: Callable[..., Any], n_blocks: int, *arguments: Any) -> Any:
    """Call a function; if there are several blocks, the backward pass calls it again."""
    return recomputed(function, *arguments) if n_blocks > 1 else function(*arguments)
