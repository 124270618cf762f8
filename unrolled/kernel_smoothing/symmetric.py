"""Symmetric attention: queries are the keys."""

from torch import Tensor

from ..attention import Call, SoftmaxSmoother, check_positive, fused_attention


class Symmetric(SoftmaxSmoother):
    """Attention of the keys to themselves: one gradient step on the smoothness of the values.

    ``A_ij = K_ij / d_i`` with ``K_ij = exp(scale k_i . k_j)`` and ``d_i = sum_j K_ij``. K is
    symmetric, so that ``A v = v - grad J(v) / d`` is a step of preconditioned gradient descent on
    ``J(v) = 1/4 sum_ij K_ij |v_i - v_j|^2``, and J(A v) is never above J(v). With queries apart
    from the keys neither holds (errata E2-a, E2-b). The queries are ignored, so that the operator
    fits where others do, and an `Attention` shell around it projects none; a causal mask takes the
    symmetry away. A key that no query sees is no query either: its row is the mean of the visible
    values.

    Parameters
    ----------
    scale : float, optional
        > 0. None is ``head_dim ** -0.5``.

    Raises
    ------
    ValueError
        If `scale` is not positive, or queries and keys differ in number.

    References
    ----------
    EQUATIONS NT-10 to NT-14, NT-J.

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled import Softmax, Symmetric
    >>> q, k = torch.randn(2, 5, 8)
    >>> torch.equal(Symmetric()(q, k, q), Softmax()(k, k, q))
    True
    """

    square_only = True
    reads = ("k", "v")

    def __init__(self, scale: float | None = None) -> None:
        super().__init__()
        self.scale = None if scale is None else check_positive(scale, "scale")

    def attend(self, call: Call) -> Tensor:
        _, k, v, mask, is_causal, _ = call
        return fused_attention(k, k, v, mask=mask, is_causal=is_causal, scale=self.scale)

    def logits(self, call: Call) -> Tensor:
        k = call.k
        scale = k.shape[-1] ** -0.5 if self.scale is None else self.scale
        return scale * k @ k.mT

    def extra_repr(self) -> str:
        return "scale=head_dim ** -0.5" if self.scale is None else f"scale={self.scale:.4g}"
