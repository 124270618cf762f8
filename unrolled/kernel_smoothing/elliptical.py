"""Elliptical attention: a diagonal metric between queries and keys."""

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from ..attention import (
    Call,
    Operator,
    causal_mask,
    combine_masks,
    drop_hidden,
    fused_attention,
    hidden_by,
    masked_softmax,
    own_copy,
    query_offset,
    without_autocast,
)


def elliptical_weights(
    values: Tensor,
    previous_values: Tensor,
    *,
    visible: Tensor | None = None,
    is_causal: bool = False,
) -> Tensor:
    """Metric that weighs features by how much they change from one layer to the next.

    ``M_d = mean_n |v_nd - v'_nd|``, divided by its maximum; all ones where nothing changes. The
    mean is over the keys that a query sees. The step between layers, by which the paper divides,
    cancels.

    Parameters
    ----------
    values, previous_values : Tensor of shape (..., n_keys, d)
    visible : bool Tensor broadcastable to (..., n_queries, n_keys), optional
        None is all keys.
    is_causal : bool, default=False
        Row i is the metric over the keys 0 to i; `visible` must then be None.

    Returns
    -------
    Tensor of shape (..., 1 or n_queries, d)
        In [0, 1]; n_queries is that of `visible`, or n_keys if causal.

    References
    ----------
    EQUATIONS IF-31.

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled.kernel_smoothing import elliptical_weights
    >>> elliptical_weights(torch.tensor([[1.0, 2.0]]), torch.tensor([[0.0, 4.0]]))
    tensor([[0.5000, 1.0000]])
    """
    wide = torch.promote_types(values.dtype, torch.float32)
    changes = (values.to(wide) - previous_values.to(wide)).abs()
    # Sums serve as well as means: the number of tokens cancels.
    if is_causal:
        sums = changes.cumsum(dim=-2)
    elif visible is None:
        sums = changes.sum(dim=-2, keepdim=True)
    else:
        visible = visible.expand(*visible.shape[:-1], changes.shape[-2])
        with without_autocast(changes):
            sums = visible.to(wide) @ drop_hidden(changes, visible)
    largest = sums.amax(dim=-1, keepdim=True)
    unchanged = largest == 0
    return torch.where(unchanged, 1, sums / torch.where(unchanged, 1, largest)).to(values.dtype)


class Elliptical(Operator):
    """Elliptical attention: ``l_ij = q_i M k_j^T / sqrt(d)`` with M diagonal, >= 0.

    Keys with equal weights lie on hyper-ellipsoids instead of spheres: where keys have equal norms
    in it, M is a Mahalanobis metric. Computed as plain attention on queries ``q_i M``.

    By default M is estimated, without parameters, from the values of this layer and of the one
    before: ``M_d = mean_n |v_nd - v'_nd|``, divided by its maximum (`elliptical_weights`). In the
    first layer M = I. Each head has its own metric. The mean is over the keys that a query may see,
    so that hidden tokens do not leak through it: with a causal mask it is over the query's prefix,
    and each query has a metric of its own.

    Parameters
    ----------
    metric : array-like of shape (d,) or (num_heads, d), optional
        A fixed diagonal of M, >= 0, instead of the estimate.

    Raises
    ------
    ValueError
        If the metric is negative or not finite, or metric or the context's values do not fit.

    References
    ----------
    Nielsen et al., "Elliptical attention" (2024); EQUATIONS IF-31.

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled import Context, Elliptical
    >>> q, v = torch.randn(1, 2, 5, 8), torch.randn(1, 2, 5, 8)
    >>> Elliptical()(q, q, v, context=Context(values=v, previous_values=v / 2)).shape
    torch.Size([1, 2, 5, 8])
    """

    row_stochastic = True
    nonnegative = True
    additive_masks = True

    def __init__(self, metric: ArrayLike | None = None) -> None:
        super().__init__()
        self.metric = None if metric is None else _check_metric(metric)
        self.needs = ("values", "previous_values") if metric is None else ()

    def attend(self, call: Call) -> Tensor:
        q, k, v, mask, is_causal, _ = call
        metric = self.metric_for(call)
        return fused_attention((q * metric).to(q.dtype), k, v, mask=mask, is_causal=is_causal)

    def coefficients(self, call: Call) -> Tensor:
        metric = self.metric_for(call).expand(call.q.shape)
        q, k = call.q.to(metric.dtype), call.k.to(metric.dtype)
        logits = torch.einsum("...id,...id,...jd->...ij", q, metric, k) / q.shape[-1] ** 0.5
        return masked_softmax(logits, call.pairs()).to(call.q.dtype)

    def metric_for(self, call: Call) -> Tensor:
        """Return the diagonal in use, (..., 1 or n_queries, d), in float32 at least."""
        q, k, _, mask, is_causal, context = call
        q = q.to(torch.promote_types(q.dtype, torch.float32))
        if self.metric is not None:
            return _fit_metric(self.metric, q)
        if context is None or context.values is None or context.previous_values is None:
            return q.new_ones(1, q.shape[-1])
        values, previous = context.values.to(q.dtype), context.previous_values.to(q.dtype)
        for name, x in (("values", values), ("previous_values", previous)):
            if x.shape[-2:] != k.shape[-2:]:
                raise ValueError(
                    f"context.{name}: must be of {k.shape[-2]} tokens and the keys' width "
                    f"{k.shape[-1]}, got {tuple(x.shape)}"
                )
        if mask is None:
            metric = elliptical_weights(values, previous, is_causal=is_causal)
            return metric[..., query_offset(q, k) :, :] if is_causal else metric
        visible = ~hidden_by(mask)
        visible = combine_masks(visible, causal_mask(q, k)) if is_causal else visible
        return elliptical_weights(values, previous, visible=visible)

    def extra_repr(self) -> str:
        return "" if self.metric is None else f"metric of shape {tuple(self.metric.shape)}"


def _check_metric(metric: ArrayLike) -> Tensor:
    checked = own_copy(metric, torch.float64)
    if checked.ndim not in (1, 2) or not bool((checked.isfinite() & (checked >= 0)).all()):
        raise ValueError(
            "metric: must be finite and >= 0, of shape (d,) or (num_heads, d), got shape "
            f"{tuple(checked.shape)}"
        )
    return checked


def _fit_metric(metric: Tensor, q: Tensor) -> Tensor:
    """Return the metric in the dtype of q and in a shape that multiplies its heads."""
    full_shape = (q.shape[-3] if q.ndim > 2 else 1, q.shape[-1])
    if metric.shape != full_shape and metric.shape != full_shape[1:]:
        raise ValueError(
            f"metric: must be of shape {full_shape[1:]} or {full_shape} for q of shape "
            f"{tuple(q.shape)}, got {tuple(metric.shape)}"
        )
    rows = metric if metric.ndim == 1 or q.ndim == 2 else metric[:, None]
    return rows.to(q)
