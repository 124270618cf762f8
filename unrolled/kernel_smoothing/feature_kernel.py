"""Normalised linear attention: kernel smoothing with a kernel that is a product of features."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from ..attention import (
    Call,
    Operator,
    map_query_blocks,
)
from .linear import linear_attention
from .query_blocks import visible_products

FeatureMap = Callable[[Tensor], Tensor]


def elu_features(x: Tensor) -> Tensor:
    """``elu(x) + 1``: ``x + 1`` above zero and ``exp(x)`` below, with all its digits there."""
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
        Maps (..., n_tokens, d) to nonnegative features (..., n_tokens, m), token by token. It is
        given float32 at least or, if it is a module with parameters, their dtype. None is
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
        q, k, v = self._features(call.q), self._features(call.k), call.v.to(wide)
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
        weights = visible_products(self._features(q), self._features(k), visible)
        return _divide(weights, weights.sum(dim=-1, keepdim=True)).to(q.dtype)

    def _features(self, x: Tensor) -> Tensor:
        """Features in float32 at least, in which small ones and their gradients are kept."""
        wide = torch.promote_types(x.dtype, torch.float32)
        if self.feature_map is None:
            return elu_features(x.to(wide))
        parameters = (
            self.feature_map.parameters() if isinstance(self.feature_map, nn.Module) else ()
        )
        dtype = next((p.dtype for p in parameters), wide)
        return self.feature_map(x.to(dtype)).to(wide)


def _divide(sums: Tensor, mass: Tensor) -> Tensor:
    """Quotients, zero where the mass is."""
    empty = mass == 0
    return torch.where(empty, 0, sums / torch.where(empty, 1, mass))
