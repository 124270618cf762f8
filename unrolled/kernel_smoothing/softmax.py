"""Scaled dot-product attention."""

from torch import Tensor

from ..attention import Call, SoftmaxSmoother, check_positive, fused_attention


class Softmax(SoftmaxSmoother):
    """Scaled dot-product attention ``softmax(scale q k^T) v``.

    It is the Nadaraya-Watson regression of the values with the Gaussian kernel of bandwidth
    ``scale ** -0.5`` if all keys have equal norm, and not otherwise.

    Parameters
    ----------
    scale : float, optional
        None is ``head_dim ** -0.5``.

    References
    ----------
    EQUATIONS SE-4, SE-7 (erratum E3-a: the scale is 1 / s^2).

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled import Softmax
    >>> q = torch.randn(1, 2, 5, 8)
    >>> Softmax()(q, q, q).shape
    torch.Size([1, 2, 5, 8])
    """

    cheap_matrix = True

    def __init__(self, scale: float | None = None) -> None:
        super().__init__()
        self.scale = None if scale is None else check_positive(scale, "scale")

    def attend(self, call: Call) -> Tensor:
        q, k, v, mask, is_causal, _ = call
        return fused_attention(q, k, v, mask=mask, is_causal=is_causal, scale=self.scale)

    def logits(self, call: Call) -> Tensor:
        scale = call.q.shape[-1] ** -0.5 if self.scale is None else self.scale
        return scale * call.q @ call.k.mT

    def extra_repr(self) -> str:
        return "scale=head_dim ** -0.5" if self.scale is None else f"scale={self.scale:.4g}"
