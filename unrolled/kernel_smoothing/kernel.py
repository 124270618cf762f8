"""Kernel smoothing with any positive kernel, and with one that is a product of features."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from ..attention import Call, Operator, Positive, SoftmaxSmoother, map_query_blocks
from .laplace import laplace_attention
from .linear import linear_attention
from .logits import block_softmax, distances, gaussian_logits, visible_products

LogKernel = Callable[[Tensor, Tensor], Tensor]


_LOG_KERNELS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "exponential": lambda q, k, s: (q / s) @ (k / s).mT,
    "gaussian": gaussian_logits,
    "laplace": lambda q, k, s: distances(q, k) * (-1 / s),
}


class Kernel(SoftmaxSmoother):
    """Nadaraya-Watson regression of the values with any positive kernel.

    ``A_ij = K(q_i / s, k_j / s) / sum_l K(q_i / s, k_l / s)`` with the bandwidth s and

    ===========  =====================
    exponential  ``exp(q . k)``
    gaussian     ``exp(-|q - k|^2 / 2)``
    laplace      ``exp(-|q - k|)``
    ===========  =====================

    The matrix is built explicitly, in blocks of queries that are recomputed in the backward pass:
    quadratic time, linear memory. On the CPU the Laplace kernel of float32 tokens takes distances
    from products in float64. `Gaussian` and `Softmax` are fused forms of two of these kernels, and
    `FeatureKernel` serves kernels that are products of features in linear time.

    Parameters
    ----------
    kernel : {"exponential", "gaussian", "laplace"} or callable
        A callable takes queries (..., n_queries, d) and keys (..., n_keys, d), already divided by
        the bandwidth and in float32 at least, and gives the logarithms of the weights, of shape
        (..., n_queries, n_keys). It is called on blocks of queries, so rows must be separate.
        Division rounds: of tokens x far from the origin, the callable gets differences that are off
        by up to ``eps |x| / s``. A bandwidth of 1 or another power of two rounds nothing. The
        kernels with names take differences first.
    bandwidth : float
        s > 0. At ``head_dim ** 0.25`` the exponential kernel is scaled dot-product attention.
    num_heads : int, optional
        One bandwidth a head instead of one for all.
    learnable : bool, default=False
        Train the bandwidth (its logarithm).

    Raises
    ------
    ValueError
        If there is no kernel of that name, a callable gives another shape, or `bandwidth` is not
        positive.

    References
    ----------
    EQUATIONS SE-5, QK-kernel. "exp(-dist^2)" covers the Laplace kernel only with
    ``dist^2 = |q - k|`` (erratum E3-n).

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled import Kernel
    >>> q, k = torch.tensor([[0.0]]), torch.tensor([[0.0], [1.0]])
    >>> student = Kernel(lambda q, k: -torch.log1p(torch.cdist(q, k) ** 2), 1.0)
    >>> student.matrix(q, k)
    tensor([[0.6667, 0.3333]])
    """

    def __init__(
        self,
        kernel: str | LogKernel,
        bandwidth: float,
        *,
        num_heads: int | None = None,
        learnable: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if not callable(kernel) and kernel not in _LOG_KERNELS:
            known = ", ".join(_LOG_KERNELS)
            raise ValueError(f"kernel: must be a callable or one of {known}, got {kernel!r}")
        self.kernel = kernel
        self.bandwidth = Positive(
            bandwidth,
            name="bandwidth",
            num_heads=num_heads,
            learnable=learnable,
            device=device,
            dtype=dtype,
        )

    def logits(self, call: Call) -> Tensor:
        return self._logits(*self._widen(call))

    def _widen(self, call: Call) -> tuple[Tensor, Tensor, Tensor]:
        wide = torch.promote_types(call.q.dtype, torch.float32)
        return call.q.to(wide), call.k.to(wide), self.bandwidth().to(wide)

    def _logits(self, q: Tensor, k: Tensor, bandwidth: Tensor) -> Tensor:
        """Return the logarithms of the kernel, after a check of their shape."""
        if callable(self.kernel):
            logits = self.kernel(q / bandwidth, k / bandwidth)
        else:
            logits = _LOG_KERNELS[self.kernel](q, k, bandwidth)
        if logits.shape[-2:] != (q.shape[-2], k.shape[-2]):
            raise ValueError(
                f"kernel: must give logarithms of shape (..., {q.shape[-2]}, {k.shape[-2]}), got "
                f"{tuple(logits.shape)}"
            )
        return logits

    def attend(self, call: Call) -> Tensor:
        (q, k, bandwidth), v = self._widen(call), call.v
        if self.kernel == "laplace":
            out = laplace_attention(q, k, v, bandwidth, mask=call.mask, is_causal=call.is_causal)
            if out is not None:
                return out

        def block(rows: Tensor, start: int) -> Tensor:
            visible = call.pairs_of(rows, start)
            return block_softmax(self._logits(rows, k, bandwidth), visible).to(v.dtype) @ v

        return map_query_blocks(block, q)

    def extra_repr(self) -> str:
        return f"kernel={self.kernel!r}"


FeatureMap = Callable[[Tensor], Tensor]


def elu_features(x: Tensor) -> Tensor:
    """``elu(x) + 1``: ``x + 1`` above zero, ``exp(x)`` below, without loss of digits."""
    return x.relu() + x.clamp(max=0).exp()


class FeatureKernel(Operator):
    """Kernel smoothing with the kernel ``phi(q) . phi(k)``, in linear time.

    ::

        A_ij = phi(q_i) . phi(k_j) / sum_l phi(q_i) . phi(k_l)

    Rows sum to one and entries are nonnegative, as phi is. Time and memory are linear in the number
    of tokens, under causal masks and hidden keys as well; masks that differ from query to query
    take blocks of queries, in quadratic time. Hidden keys are absent from both sums; a row in which
    all weights are zero gives zeros. `Kernel` serves kernels without such features.

    Parameters
    ----------
    feature_map : callable, optional
        Maps (..., n_tokens, d) to nonnegative features (..., n_tokens, m), token by token. Its
        input is float32 at least or, if it is a module with parameters, of their dtype. None is
        ``elu(x) + 1``.

    Raises
    ------
    ValueError
        If `feature_map` is not callable, or a mask holds a finite bias.

    References
    ----------
    Katharopoulos et al., "Transformers are RNNs" (2020); EQUATIONS QK-kernel, SE-5, FF-11.

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled.kernel_smoothing import FeatureKernel
    >>> q, k = torch.tensor([[0.0]]), torch.tensor([[2.0], [0.0]])
    >>> FeatureKernel().matrix(q, k)
    tensor([[0.7500, 0.2500]])
    """

    row_stochastic = True
    nonnegative = True

    def __init__(self, feature_map: FeatureMap | None = None) -> None:
        super().__init__()
        if feature_map is not None and not callable(feature_map):
            raise ValueError(f"feature_map: must be callable or None, got {feature_map!r}")
        self.feature_map = feature_map

    def attend(self, call: Call) -> Tensor:
        out_type, wide = call.v.dtype, torch.promote_types(call.v.dtype, torch.float32)
        call = call.hiding("FeatureKernel")
        q, k, v = self._compute_features(call.q), self._compute_features(call.k), call.v.to(wide)
        with_mass = torch.cat([v, v.new_ones(*v.shape[:-1], 1)], dim=-1)
        if call.mask is None or call.mask.shape[-2] == 1:
            k = k if call.mask is None else torch.where(call.mask.mT, k, 0)
            sums = linear_attention(q, k, with_mass, is_causal=call.is_causal)
            return _divide(sums[..., :-1], sums[..., -1:]).to(out_type)

        def block(rows: Tensor, start: int) -> Tensor:
            sums = visible_products(rows, k, call.pairs_of(rows, start)) @ with_mass
            return _divide(sums[..., :-1], sums[..., -1:])

        return map_query_blocks(block, q).to(out_type)

    def coefficients(self, call: Call) -> Tensor:
        q, k, visible = call.q, call.k, call.hiding("FeatureKernel").pairs()
        weights = visible_products(self._compute_features(q), self._compute_features(k), visible)
        return _divide(weights, weights.sum(dim=-1, keepdim=True)).to(q.dtype)

    def _compute_features(self, x: Tensor) -> Tensor:
        """Return features in float32 at least, so that small ones and their gradients are kept."""
        wide = torch.promote_types(x.dtype, torch.float32)
        if self.feature_map is None:
            return elu_features(x.to(wide))
        parameters = (
            self.feature_map.parameters() if isinstance(self.feature_map, nn.Module) else ()
        )
        dtype = next((p.dtype for p in parameters), wide)
        return self.feature_map(x.to(dtype)).to(wide)


def _divide(sums: Tensor, mass: Tensor) -> Tensor:
    """``sums / mass``, and 0 where the mass is 0."""
    empty = mass == 0
    return torch.where(empty, 0, sums / torch.where(empty, 1, mass))
