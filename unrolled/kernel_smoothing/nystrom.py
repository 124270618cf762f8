"""Nyström attention: softmax attention through landmarks, linear in the number of tokens."""

import torch
from torch import Tensor

from ..attention import (
    Call,
    Operator,
    check_count,
    has_static_value,
    masked_softmax,
    padding_mask,
)


class Nystrom(Operator):
    """Nyström attention: the quadrature of the softmax kernel with means of segments as landmarks.

    ::

        F = sm(q k~^T / sqrt(d)),     A = sm(q~ k~^T / sqrt(d)),     B = sm(q~ k^T / sqrt(d))
        output F Z (B v),             Z = Z_n_iter
        Z_0 = A^T / (largest sum of a column),    Z <- Z (13 I - A Z (15 I - A Z (7 I - A Z))) / 4

    q~ and k~ are means of `n_landmarks` consecutive segments of the visible tokens, whose sizes
    differ by at most one. Z tends to the pseudo-inverse of A. The default of six steps leaves small
    singular values short of their inverse: it regularises. Where every visible token is a landmark,
    ``Z B`` is the identity by definition, and the output is that of softmax attention.

    Time and memory are linear in the number of tokens. All is computed in float64, as Z enlarges
    the rounding of A. Rows of the matrix need not sum to one, and entries may be negative. Each row
    depends on the landmarks of all queries, so that masks may only hide whole keys. The query of a
    hidden key is in no landmark. The paper's convolution of the values is left out.

    Parameters
    ----------
    n_landmarks : int
        >= 1.
    n_iter : int, default=6
        Steps of the pseudo-inverse, >= 0. A plain attribute: it may be changed later.

    Raises
    ------
    ValueError
        If a number is out of range; if queries and keys differ in number, or a mask is causal,
        differs between queries or is a bias.

    References
    ----------
    Xiong et al., "Nyströmformer" (2021); EQUATIONS QK-Nystrom.

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled import Nystrom, Softmax
    >>> q, k, v = torch.randn(3, 1, 2, 8, 4)
    >>> torch.allclose(Nystrom(8)(q, k, v), Softmax()(q, k, v), atol=1e-5)
    True
    """

    square_only = True
    causal = False
    pair_masks = False
    positional = "absolute"

    def __init__(self, n_landmarks: int, *, n_iter: int = 6) -> None:
        super().__init__()
        self.n_landmarks = check_count(n_landmarks, "n_landmarks", 1)
        self.n_iter = check_count(n_iter, "n_iter", 0)

    def attend(self, call: Call) -> Tensor:
        from_queries, to_keys = self._factors(call)
        return (from_queries @ (to_keys @ call.v.double())).to(call.v.dtype)

    def coefficients(self, call: Call) -> Tensor:
        from_queries, to_keys = self._factors(call)
        return from_queries @ to_keys

    def _factors(self, call: Call) -> tuple[Tensor, Tensor]:
        """F and ``Z B``, or F and the means if every visible token is a landmark."""
        q, k, n = call.q.double(), call.k.double(), call.k.shape[-2]
        visible = torch.ones(1, n, dtype=torch.bool, device=k.device)
        if call.mask is not None:
            visible = padding_mask(call.mask, n, "Nystrom")
        # A program for any number of tokens keeps all landmarks; those left over weigh nothing.
        n_landmarks = min(self.n_landmarks, n) if has_static_value(n) else self.n_landmarks
        means = _segment_means(visible, n_landmarks)
        used = (means > 0).any(dim=-1)[..., None, :]
        of_queries, of_keys = means @ torch.where(visible.mT, q, 0), means @ k
        scale = q.shape[-1] ** -0.5
        F = masked_softmax((scale * q) @ of_keys.mT, used)
        A = masked_softmax((scale * of_queries) @ of_keys.mT, used) * used.mT
        B = masked_softmax((scale * of_queries) @ k.mT, visible)
        few = visible.sum(dim=-1, keepdim=True) <= self.n_landmarks
        return F, torch.where(few, means, _pseudo_inverse(A, self.n_iter) @ B)

    def extra_repr(self) -> str:
        return f"n_landmarks={self.n_landmarks}, n_iter={self.n_iter}"


def _segment_means(visible: Tensor, n_segments: int) -> Tensor:
    """The matrix (..., n_segments, n_keys) that averages consecutive visible tokens.

    Token i of n visible ones belongs to segment ``floor(i min(n_segments, n) / n)``. The rows of
    segments that are left over are zero.
    """
    count = visible.sum(dim=-1, keepdim=True)
    place = visible.cumsum(dim=-1) - 1
    segments = place * count.clamp(max=n_segments) // count.clamp(min=1)
    rows = torch.arange(n_segments, device=visible.device)[:, None]
    member = ((segments == rows) & visible).double()
    return member / member.sum(dim=-1, keepdim=True).clamp(min=1)


def _pseudo_inverse(A: Tensor, n_iter: int) -> Tensor:
    """The iterate after `n_iter` steps, for A whose rows sum to one: a column sums to one or more.

    Rows and columns of zeros, of landmarks that are left over, stay zero.
    """
    Z = A.mT / A.sum(dim=-2).amax(dim=-1)[..., None, None].clamp(min=1)
    unit = torch.eye(A.shape[-1], dtype=A.dtype, device=A.device)
    for _ in range(n_iter):
        AZ = A @ Z
        Z = Z @ (13 * unit - AZ @ (15 * unit - AZ @ (7 * unit - AZ))) / 4
    return Z
