"""Steps on the nonlocal energy: of images, and of values in attention (NeuTRENO)."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from ..attention import (
    Call,
    Correction,
    Operator,
    Positive,
    check_count,
    check_positive,
    drop_hidden,
)


class NonlocalEnergyStep(nn.Module):
    """One gradient step on the regularised nonlocal energy of images, divided by pixels' degrees.

    ::

        E(u) = 1/4 sum_ij K_ij |u_i - u_j|^2 + lam/2 sum_i d_i |u_i - f_i|^2,     d_i = sum_j K_ij
        u+ = u - s D^-1 grad E(u) = u + s (A u - u + lam (f - u)),     A = D^-1 K

    with the symmetric weights K of an image layer in a window: the step of NeuTRENO on pixels. From
    ``u = f`` with ``s = 1`` it is the image layer itself.

    Parameters
    ----------
    base : nn.Module
        ``base(guide, values)`` averages values with weights of the guide: `BilateralFilter`,
        `EmbeddedMeans`, `NonLocalMeansAttention`.
    lam : float, default=0.1
        Weight of the fidelity, > 0, at first.
    step : float, default=1.0
        s, > 0, at first. The energy falls for ``s (2 + lam) <= 2``.

    Attributes
    ----------
    lam, step : Positive

    Raises
    ------
    ValueError
        If a number is not positive; when called, if shapes differ.

    References
    ----------
    EQUATIONS NT-10, NT-22.

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled.image_filters import BilateralFilter
    >>> from twinsolve.unrolled.nonlocal_energy import NonlocalEnergyStep
    >>> base, noisy = BilateralFilter(), torch.rand(1, 1, 8, 8)
    >>> torch.allclose(NonlocalEnergyStep(base)(noisy, noisy), base(noisy))
    True
    """

    def __init__(
        self,
        base: nn.Module,
        lam: float = 0.1,
        *,
        step: float = 1.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.base = base
        self.lam, self.step = (
            Positive(
                check_positive(start, name), name=name, learnable=True, device=device, dtype=dtype
            )
            for name, start in (("lam", lam), ("step", step))
        )

    def reset_parameters(self) -> None:
        """Return lam and the step to their values at construction; the base stays as it is."""
        for parameter in (self.lam, self.step):
            parameter.reset_parameters()

    def forward(self, u: Tensor, f: Tensor) -> Tensor:
        """Step from u, with the noisy images f and their weights.

        Both are of shape (batch, channels, height, width).
        """
        if f.shape != u.shape:
            raise ValueError(f"f: must be of the shape of u, {(*u.shape,)}, got {(*f.shape,)}")
        lam, step = (parameter().to(u.dtype) for parameter in (self.lam, self.step))
        return u + step * (self.base(f, u) - u + lam * (f - u))


class Neutreno(Correction):
    """NeuTRENO attention: a step on the nonlocal energy, pulled to the values of the first layer.

    ::

        A v + lam (v0 - v)                    relaxed=False, as published
        (A v + lam v0) / (1 + lam)            relaxed=True, the safe form

    with v0 the values of the first layer, ``context.first_values``; in the first layer v0 is v, and
    the first form is A v. If A comes from symmetric weights K, as with shared queries and keys, the
    first form is one gradient step, of length ``1 / d_i`` for token i, on ::

        E(u) = 1/4 sum_ij K_ij |u_i - u_j|^2 + lam/2 sum_i d_i |u_i - v0_i|^2,     d_i = sum_j K_ij

    from u = v. Both forms have the same fixed point ``lam ((1 + lam) I - A)^-1 v0`` (see `Solved`).
    Iterated with one A, the first converges iff ``|mu - lam| < 1`` for all eigenvalues mu of A: for
    every lam < 1 if K is positive semidefinite, never for lam >= 2, and with q != k it may diverge
    at 0.6. The second contracts by ``1 / (1 + lam)`` for any A with nonnegative rows of sum one.

    Parameters
    ----------
    base : Operator
        The smoother A.
    lam : float, default=0.6
        Weight > 0. Published vision models use 0.6, language models 0.4.
    relaxed : bool, default=False
        Use the safe form.
    n_iter : int, default=1
        Number of iterations from u = v with the same A, >= 1. A plain attribute: it may be changed
        later.
    num_heads : int, optional
        One `lam` a head instead of one for all.
    learnable : bool, default=False
        Train `lam` (its logarithm).

    Raises
    ------
    ValueError
        If a number is out of range, `base` is no `Operator`, queries and keys differ in number, or
        the first values are missing or have another shape than v.

    Notes
    -----
    The output is affine in v, so that `linear_in_values` is False. `matrix` is its linear part at
    fixed first values, ``(A - lam I)^n_iter`` or ``(A / (1 + lam))^n_iter``. A row without visible
    keys keeps the pull: its row of A is zero.

    References
    ----------
    Nguyen, Nguyen and Baraniuk, "Mitigating over-smoothing in transformers via regularized nonlocal
    functionals" (2023); EQUATIONS NT-22 to NT-26, NT-FP, NT-CONV, NT-rel, FF-3. The energy printed
    there has a constant weight instead of ``lam d_i`` (erratum E2-c), and q != k is no gradient
    step (E2-a, E2-b).

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled import Context, Neutreno, Softmax
    >>> q, first = torch.randn(1, 2, 5, 8), torch.randn(1, 2, 5, 8)
    >>> out = Neutreno(Softmax(), 0.4)(q, q, q, context=Context(first_values=first))
    >>> torch.allclose(out, Softmax()(q, q, q) + 0.4 * (first - q), atol=1e-6)
    True
    """

    def __init__(
        self,
        base: Operator,
        lam: float = 0.6,
        *,
        relaxed: bool = False,
        n_iter: int = 1,
        num_heads: int | None = None,
        learnable: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(base)
        self.lam = Positive(
            lam, name="lam", num_heads=num_heads, learnable=learnable, device=device, dtype=dtype
        )
        self.relaxed = relaxed
        self.n_iter = check_count(n_iter, "n_iter", 1)
        self.row_stochastic = False
        self.nonnegative = False
        self.linear_in_values = False
        self.square_only = True
        self.needs = tuple(dict.fromkeys((*base.needs, "first_values")))
        self.row_needs = () if "first_values" in base.needs else ("first_values",)

    @property
    def outputs_kept(self) -> int | None:
        return None if self.base.square_only else self.n_iter - 1

    def iteration(self, call: Call, *, relaxed: bool) -> Callable[[Tensor], Tensor]:
        """Return the map ``u -> T(u)`` to iterate, for checked inputs; v gives only its shape.

        T(u) has the rows of the queries, which may be the last tokens alone.
        """
        q, _, v, mask, _, context = call
        first, n_rows = context.first_values if context is not None else None, q.shape[-2]
        expected = (*v.shape[:-2], n_rows, v.shape[-1])
        if first is None or first.shape != expected:
            shape = None if first is None else tuple(first.shape)
            raise ValueError(
                f"context: first_values must have the shape {expected} of v, got {shape}"
            )
        lam, first = self.lam().to(v.dtype), own_rows(first, mask)
        call = call._replace(q=own_rows(q, mask))

        def step(u: Tensor) -> Tensor:
            smooth = call._replace(v=u).output_of(self.base)
            if relaxed:
                return torch.addcmul(smooth, first, lam) / (1 + lam)
            return torch.addcmul(smooth, first - u[..., u.shape[-2] - n_rows :, :], lam)

        return step

    def attend(self, call: Call) -> Tensor:
        step, u = self.iteration(call, relaxed=self.relaxed), own_rows(call.v, call.mask)
        for _ in range(self.n_iter):
            u = step(u)
        return u

    def attend_last(
        self, call: Call, kept: tuple[Tensor, ...]
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        step, u = self.iteration(call, relaxed=self.relaxed), own_rows(call.v, call.mask)
        passed = []
        for before in kept:
            passed.append(step(u))
            u = torch.cat([before, passed[-1]], dim=-2)
        return step(u), tuple(passed)

    def coefficients(self, call: Call) -> Tensor:
        A = call._replace(q=own_rows(call.q, call.mask)).matrix_of(self.base)
        lam = self.lam().to(A.dtype)
        identity = torch.eye(A.shape[-1], dtype=A.dtype, device=A.device)
        linear = A / (1 + lam) if self.relaxed else A - lam * identity
        return torch.linalg.matrix_power(linear, self.n_iter)

    def extra_repr(self) -> str:
        return f"relaxed={self.relaxed}, n_iter={self.n_iter}"


def own_rows(x: Tensor, mask: Tensor | None) -> Tensor:
    """Return tokens for their own rows: where no query sees them, 0 for what is not finite.

    Fewer tokens than the mask has keys are the last ones.
    """
    if mask is not None and mask.shape[-1] > 1:
        mask = mask[..., mask.shape[-1] - x.shape[-2] :]
    return torch.where(x.isfinite(), x, drop_hidden(x, mask))
