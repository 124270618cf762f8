"""Gaussian-kernel attention."""

import torch
from torch import Tensor

from ..attention import (
    Call,
    Positive,
    SoftmaxSmoother,
    blocked_attention,
    blocks_serve,
    causal_mask,
    combine_masks,
    drop_hidden,
    explicit_mask,
    fused_attention,
    hidden_by,
    map_query_blocks,
    mask_rows,
    masked_softmax,
    of_common_batch,
    query_offset,
    without_autocast,
)
from .logits import gaussian_logits, key_nearest_zero, squared_distances

_CENTRE_SAMPLE = 16
# Of larger ones between tokens over the bandwidth, rounding moves logits by some 1e-4 and more.
_LARGEST_PRODUCT = {torch.float64: 2.0**33, torch.float32: 2.0**12}  # in 16 bits 2**8


def gaussian_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    bandwidth: float | Tensor,
    mask: Tensor | None = None,
    is_causal: bool = False,
) -> Tensor:
    """Attention with logits ``-|q_i - k_j|^2 / (2 bandwidth^2)``, without building them.

    The query norm cancels in the softmax; the key norm is one more feature of the dot product:
    ``q' = [q, 0, 1]``, ``k' = [k, 1, -k.k / 2]`` at scale ``1 / bandwidth^2``. The zero has the
    gradient of ``-q.q / 2``, which does not cancel where weights are rounded. Both are first
    centred at the median of some keys, which changes no distance but keeps float32 exact far from
    the origin.
    Every row must see these keys: under a causal mask they are the first 16, and rows that do not
    see all of them are computed from differences. Under masks that differ from query to query, or a
    mask beside the causal one, no centre serves all rows. Logits are then computed in float64,
    which takes up to three times the time of the fused kernel.

    Where visible tokens lie so far apart that rounding of these products would count, the CPU takes
    differences in float64, in some five times the time. A GPU, compiled code and `torch.func` do
    not look at the tokens. There logits keep an error of ``eps (r / bandwidth)^2``, with the
    largest distance r from the centre, and eps of float64 under the masks above, else of q.

    Parameters
    ----------
    q : Tensor of shape (..., n_queries, d)
    k : Tensor of shape (..., n_keys, d)
    v : Tensor of shape (..., n_keys, e)
    bandwidth : float or Tensor broadcastable to (..., 1, d)
        The s of ``exp(-r^2 / (2 s^2))``, > 0; it may differ from feature to feature.
    mask : Tensor broadcastable to (..., n_queries, n_keys), optional
        As in ``scaled_dot_product_attention``; a row without visible keys gives zeros.
    is_causal : bool, default=False

    Returns
    -------
    Tensor of shape (..., n_queries, e)

    References
    ----------
    EQUATIONS SE-6, FF-4.

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled.kernel_smoothing import gaussian_attention
    >>> q, k = torch.tensor([[0.5]]), torch.tensor([[0.0], [1.0]])
    >>> gaussian_attention(q, k, torch.tensor([[2.0], [4.0]]), bandwidth=1.0)
    tensor([[3.]])
    """
    q, k, v = of_common_batch(mask, q, k, v)
    with without_autocast(q):
        if mask is not None and (is_causal or mask.shape[-2] > 1):
            return _attend_rows_apart(q, k, v, bandwidth, mask, is_causal)
        if is_causal:
            return _attend_causally(q, k, v, bandwidth)
        return _attend_centred(q, k, v, _find_centre(k, mask), bandwidth, mask, False)


def _attend_causally(q: Tensor, k: Tensor, v: Tensor, bandwidth: float | Tensor) -> Tensor:
    """Attend causally, centred at the first keys; by differences in rows that see only some."""
    offset = query_offset(q, k)
    first = k[..., :_CENTRE_SAMPLE, :]
    n_early = min(max(first.shape[-2] - 1 - offset, 0), q.shape[-2])
    out = _attend_centred(q, k, v, _find_centre(first, None), bandwidth, None, True)
    if n_early == 0:
        return out
    seen = slice(offset + n_early)
    rows, keys, values = q[..., :n_early, :], k[..., seen, :], v[..., seen, :]
    early = _attend_by_differences(rows, keys, values, bandwidth, None, True)
    return torch.cat([early, out[..., n_early:, :]], dim=-2)


def _attend_by_differences(
    q: Tensor, k: Tensor, v: Tensor, bandwidth: float | Tensor, mask: Tensor | None, is_causal: bool
) -> Tensor:
    """Attend by differences in float64: without a centre, in several times the time."""
    wide = torch.promote_types(v.dtype, torch.float32)
    keys, values = k.double() / bandwidth, v.to(wide)
    call = Call(q, k, v, explicit_mask(mask), is_causal, None)

    def block(rows: Tensor, start: int) -> Tensor:
        logits = squared_distances(rows.double() / bandwidth, keys) / -2
        return masked_softmax(logits, call.pairs_of(rows, start)).to(wide) @ values

    return map_query_blocks(block, q).to(v.dtype)


def _reach_far(q: Tensor, k: Tensor, bandwidth: float | Tensor, dtype: torch.dtype) -> bool:
    """Whether products of these centred tokens, rounded to `dtype`, would change logits too much.

    Only the CPU is asked: a GPU would wait for the answer, and compiled code has no values.
    """
    if not blocks_serve(q):
        return False
    query_norm, key_norm = ((x / bandwidth).detach().norm(dim=-1).max().item() for x in (q, k))
    return max(query_norm, key_norm) * key_norm > _LARGEST_PRODUCT.get(dtype, 2.0**8)


def _attend_rows_apart(
    q: Tensor, k: Tensor, v: Tensor, bandwidth: float | Tensor, mask: Tensor, is_causal: bool
) -> Tensor:
    """Attend where rows see different keys, so that no centre serves all rows.

    Logits are computed in float64. The centre has in each feature the number nearest to zero among
    the keys that any row sees: it is no further from zero than any of them.
    """
    visible = explicit_mask(mask)
    pairs = combine_masks(visible, causal_mask(q, k)) if is_causal else visible
    assert visible is not None
    assert pairs is not None
    centre = key_nearest_zero(k, pairs).double()
    if isinstance(bandwidth, Tensor):
        bandwidth = bandwidth.double()
    if blocks_serve(q, visible):
        wide = torch.promote_types(v.dtype, torch.float32)
        rows, keys = (x.double().sub(centre) / bandwidth for x in (q, k))
        if _reach_far(rows, drop_hidden(keys, pairs), 1.0, rows.dtype):
            return _attend_by_differences(q, k, v, bandwidth, visible, is_causal)
        rows, keys = _add_norms(rows, keys)
        out = blocked_attention(rows, keys, v.to(wide), mask=visible, is_causal=is_causal)
        return out.to(v.dtype)
    pairs = pairs if pairs.dtype == torch.bool else pairs.double()
    keys, values = k.double(), v.double()

    def block(rows: Tensor, start: int) -> Tensor:
        part = mask_rows(pairs, rows, start)
        return _attend_centred(rows.double(), keys, values, centre, bandwidth, part, False)

    return map_query_blocks(block, q).to(v.dtype)


def _attend_centred(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    centre: Tensor,
    bandwidth: float | Tensor,
    mask: Tensor | None,
    is_causal: bool,
) -> Tensor:
    """Attend by the fused kernel, on queries and keys relative to a centre."""
    given = q, k
    dtype, wide = q.dtype, torch.promote_types(q.dtype, torch.float32)
    q, k = (x.to(wide) - centre.to(wide) for x in given)
    if _reach_far(q, drop_hidden(k, mask), bandwidth, dtype):
        return _attend_by_differences(*given, v, bandwidth, mask, is_causal)
    if isinstance(bandwidth, Tensor) or dtype != wide:
        q, k, bandwidth = q / bandwidth, k / bandwidth, 1.0
    q, k = _add_norms(q.to(dtype), k.to(dtype))
    return fused_attention(q, k, v, mask=mask, is_causal=is_causal, scale=bandwidth**-2)


def _add_norms(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """Add features: the norms of keys, and zeros with the gradient of the norms of queries.

    The softmax needs no norms of queries, whose size would cost digits. But rounded weights do not
    sum to 1, and what is left over must multiply differences instead of keys.
    """
    wide = q.to(torch.promote_types(q.dtype, torch.float32))
    norms = -wide.square().sum(dim=-1, keepdim=True) / 2
    slopes = (norms - norms.detach()).nan_to_num().to(q.dtype)  # NaN where a norm overflows
    of_keys = _norm_features(k)
    q = torch.cat([q, slopes, q.new_ones(*q.shape[:-1], of_keys.shape[-1])], dim=-1)
    return q, torch.cat([k, torch.ones_like(of_keys[..., :1]), of_keys], dim=-1)


def _norm_features(k: Tensor) -> Tensor:
    """Return ``-|k|^2 / 2`` as a feature; in 16 bits as two, whose sum keeps the digits."""
    if k.dtype not in (torch.bfloat16, torch.float16):
        return -k.square().sum(dim=-1, keepdim=True) / 2
    exact = -k.float().square().sum(dim=-1, keepdim=True) / 2
    high = exact.to(k.dtype)
    return torch.cat([high, (exact - high.float()).to(k.dtype)], dim=-1)


def _find_centre(k: Tensor, mask: Tensor | None) -> Tensor:
    """Return the median of a sample of the keys that all queries see, or 0 if there are none.

    Any point would do in exact arithmetic. A median keeps the digits when a few keys are large.
    """
    k = k.detach().to(torch.promote_types(k.dtype, torch.float32))
    i = torch.arange(_CENTRE_SAMPLE, device=k.device)
    # One key of each stretch, at varied places: equal places may all be in one column of an image.
    place = _CENTRE_SAMPLE * i + 7 * i % _CENTRE_SAMPLE
    if mask is None:
        sample = k[..., place * k.shape[-2] // _CENTRE_SAMPLE**2, :]
        return sample.median(dim=-2, keepdim=True).values
    visible_rank = (~hidden_by(mask)).squeeze(-2).expand(k.shape[:-1]).cumsum(dim=-1)
    count = visible_rank[..., -1:]
    sample_ranks = (place * count // _CENTRE_SAMPLE**2)[..., None]
    index = (
        (visible_rank[..., None, :] <= sample_ranks)
        .sum(dim=-1, keepdim=True)
        .clamp(max=k.shape[-2] - 1)
    )
    sample = k.gather(-2, index.expand(*index.shape[:-1], k.shape[-1]))
    centre = sample.median(dim=-2, keepdim=True).values
    return torch.where(count[..., None] > 0, centre, 0)


class Gaussian(SoftmaxSmoother):
    """Gaussian-kernel (L2, non-local means) attention: Nadaraya-Watson regression of the values.

    ``A_ij = exp(-|q_i - k_j|^2 / (2 s^2)) / sum_l exp(-|q_i - k_l|^2 / (2 s^2))``, with no
    assumption on norms. A full Mahalanobis metric is this operator on tokens through one shared
    query and key projection.

    Parameters
    ----------
    bandwidth : float, optional
        s > 0. None is ``head_dim ** 0.25``, at which the operator is scaled dot-product attention
        if all keys have equal norm.
    num_heads : int, optional
        One bandwidth a head instead of one for all.
    learnable : bool, default=False
        Train the bandwidth (its logarithm), which must then be given.

    Raises
    ------
    ValueError
        If `bandwidth` is not positive, or missing where `learnable` or `num_heads` need it.

    References
    ----------
    EQUATIONS SE-5, SE-6, SE-7m, AO-69 (``tau = 2 s^2``), FF-4.

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled import Gaussian
    >>> q = torch.randn(1, 2, 5, 8)
    >>> operator = Gaussian(bandwidth=2.0)
    >>> torch.allclose(operator(q, q, q), operator.matrix(q, q) @ q, atol=1e-6)
    True
    """

    def __init__(
        self,
        bandwidth: float | None = None,
        *,
        num_heads: int | None = None,
        learnable: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if bandwidth is None and (learnable or num_heads is not None):
            raise ValueError("bandwidth: must be given to be learnable or one a head")
        self.bandwidth = (
            None
            if bandwidth is None
            else Positive(
                bandwidth,
                name="bandwidth",
                num_heads=num_heads,
                learnable=learnable,
                device=device,
                dtype=dtype,
            )
        )

    def bandwidth_for(self, q: Tensor) -> Tensor | float:
        """Return the bandwidth in use, given or by default, for queries like q."""
        if self.bandwidth is None:
            return q.shape[-1] ** 0.25
        if self.bandwidth.log is None:
            return self.bandwidth.initial
        return self.bandwidth().to(torch.promote_types(q.dtype, torch.float32))

    def attend(self, call: Call) -> Tensor:
        q, k, v, mask, is_causal, _ = call
        bandwidth = self.bandwidth_for(q)
        return gaussian_attention(q, k, v, bandwidth=bandwidth, mask=mask, is_causal=is_causal)

    def logits(self, call: Call) -> Tensor:
        q = call.q
        return gaussian_logits(q, call.k, self.bandwidth_for(q)).to(q.dtype)

    def extra_repr(self) -> str:
        return "bandwidth=head_dim ** 0.25" if self.bandwidth is None else ""
