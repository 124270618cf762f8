"""Ridge attention: each query regressed on the keys with a squared penalty, in closed form."""

import torch
from torch import Tensor

from ..attention import Context, Operator, Positive
from .key_products import key_products, visible_keys


class Ridge(Operator):
    """Ridge attention: least squares regression of each query on the keys.

    ::

        C* = argmin_C |q - C k|_F^2 + lam |C|_F^2 = q (k^T k + lam I)^-1 k^T,      output C v

    At q = k it is least squares self-expression. With `zero_diagonal` query i is regressed on the
    keys other than i, leave-one-out ridge: for ``M = (k^T k + lam I)^-1``, ``a_i = q_i M k_i^T``
    and the leverage ``h_i = k_i M k_i^T`` ::

        c_i v = q_i M k^T v + a_i / (1 - h_i) (k_i M k^T v - v_i)

    Systems are as small as head_dim or the number of keys, and are formed and factored in float64
    whatever the inputs are. All keys are coupled, so that masks may only hide whole keys: these
    are as if absent.

    Parameters
    ----------
    lam : float
        Penalty > 0. The papers give no default.
    zero_diagonal : bool, default=False
        Exclude key i from the regression of query i; needs as many queries as keys.
    num_heads : int, optional
        One `lam` a head instead of one for all.
    learnable : bool, default=False
        Train `lam` (its logarithm).

    Raises
    ------
    ValueError
        If a number is out of range, or a mask is causal, differs between queries or is a bias.

    References
    ----------
    EQUATIONS QK-ridge, SE-LSR, SE-LSRd, FF-10, FF-10d. The closed form that the paper prints for
    self-expression is that without the zero diagonal (erratum E3-j).

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled import Ridge
    >>> x = torch.tensor([[1.0], [2.0]])
    >>> Ridge(5.0).matrix(x, x)
    tensor([[0.1000, 0.2000],
            [0.2000, 0.4000]])
    >>> Ridge(1.0, zero_diagonal=True).matrix(x, x)
    tensor([[0.0000, 0.4000],
            [1.0000, 0.0000]])
    """

    causal = False
    pair_masks = False

    def __init__(
        self,
        lam: float,
        *,
        zero_diagonal: bool = False,
        num_heads: int | None = None,
        learnable: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.lam = Positive(
            lam, name="lam", num_heads=num_heads, learnable=learnable, device=device, dtype=dtype
        )
        self.zero_diagonal = zero_diagonal
        self.square_only = zero_diagonal

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None,
        is_causal: bool,
        context: Context | None,
    ) -> Tensor:
        dtype, wide = q.dtype, torch.promote_types(q.dtype, torch.float32)
        if k.shape[-2] < k.shape[-1]:
            C = self._coefficients(q, k, mask)
            return (C.to(wide) @ v.to(wide)).to(dtype)
        q, k, v = q.to(wide), visible_keys(k, mask, "Ridge").to(wide), v.to(wide)
        gram, moments = key_products(k, v)
        factor = torch.linalg.cholesky(_regularized(gram, self.lam()))
        weights = torch.cholesky_solve(moments, factor).to(wide)
        out = q @ weights
        if self.zero_diagonal:
            out = out + _left_out(q, k, k @ weights - v, factor, self.lam().to(wide))
        return out.to(dtype)

    def coefficients(
        self,
        q: Tensor,
        k: Tensor,
        mask: Tensor | None,
        is_causal: bool,
        context: Context | None,
    ) -> Tensor:
        return self._coefficients(q, k, mask).to(q.dtype)

    def _coefficients(self, q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
        """``q k^T P`` for ``P = (k k^T + lam I)^-1``; minus ``diag / P_ii`` times row i of P."""
        q, k = q.double(), visible_keys(k, mask, "Ridge").double()
        factor = torch.linalg.cholesky(_regularized(k @ k.mT, self.lam()))
        if not self.zero_diagonal:
            return torch.cholesky_solve(k @ q.mT, factor).mT
        P = torch.cholesky_inverse(factor)
        C = q @ k.mT @ P
        ratio = C.diagonal(dim1=-2, dim2=-1) / P.diagonal(dim1=-2, dim2=-1)
        own = torch.eye(k.shape[-2], dtype=torch.bool, device=k.device)
        return (C - ratio[..., None] * P).masked_fill(own, 0)

    def extra_repr(self) -> str:
        return f"zero_diagonal={self.zero_diagonal}"


def _regularized(gram: Tensor, lam: Tensor) -> Tensor:
    return gram + lam.double() * torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)


def _left_out(q: Tensor, k: Tensor, excess: Tensor, factor: Tensor, lam: Tensor) -> Tensor:
    """``a_i / (1 - h_i)`` times the excess ``k_i M k^T v - v_i``: what leaving key i out changes.

    With ``M = (L L^T)^-1`` the products are taken of the rows times ``L^-T``, the square root of
    what is ill conditioned.
    """
    unit = torch.eye(factor.shape[-1], dtype=factor.dtype, device=factor.device)
    inverse = torch.linalg.solve_triangular(factor, unit, upper=False).mT.to(q.dtype)
    queries, keys = q @ inverse, k @ inverse
    a, h = ((x * keys).sum(dim=-1, keepdim=True) for x in (queries, keys))
    # 1 - h_i is never under its value for a key alone, where rounding may leave it at zero.
    alone = lam / (lam + k.square().sum(dim=-1, keepdim=True))
    return a / torch.maximum(1 - h, alone) * excess
