"""The delta rule, its forgetting and preconditioned forms, and the proximal point rule."""

import math
from typing import Any

from torch import Tensor
from torch.nn import functional as F

from ..attention import check_positive
from ..attention.precision import unlowered
from .chunks import CHUNK, Tokens, run_chunks
from .inputs import by_token, read_sequences
from .rules import Forget, OnlineRule, Rows

_LARGEST_METRIC = 1.5
_SOFTPLUS_IS_1 = math.log(math.e - 1)


@unlowered
def chunked_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    beta: Tensor,
    log_forget: Tensor | None = None,
    metric: Tensor | None = None,
    state: Tensor | None = None,
    chunk: int = CHUNK,
) -> tuple[Tensor, Tensor]:
    """Correct a linear map by a step on the error of each token, and read it with each query.

    ::

        S_- = Diag(a_t) S_{t-1},   e_t = v_t - k_t S_-,   a = exp(log_forget)
        S_t = S_- + beta_t (m_t o k_t)^T e_t,   o_t = q_t S_t

    The layer's form of `twinsolve.solvers.online_regression.delta_rule`. Without forgetting and
    metric it is DeltaNet, with one a for a token gated DeltaNet, with one a for each feature of the
    keys KDA, with m the preconditioned delta rule. Steps with ``0 <= beta k.(m o k) <= 2`` do not
    enlarge errors; longer ones grow with the length of the sequence.

    For n tokens of widths d and e, time is ``O(n chunk (d + e) + n d e)`` and memory of states
    ``n / chunk`` times d e. Numbers are float32 at least.

    Parameters
    ----------
    q, k : Tensor of shape (..., n_tokens, d)
    v : Tensor of shape (..., n_tokens, e)
    beta : Tensor of shape (..., n_tokens)
    log_forget : Tensor of shape (..., n_tokens, d) or (..., n_tokens, 1), optional
        Logarithm of a, at most 0; None forgets nothing. -inf forgets all: where each of several
        packed sequences starts with it, they stay apart.
    metric : Tensor of shape (..., n_tokens, d), optional
        m; None is 1.
    state : Tensor of shape (..., d, e), optional
        S before the first token; zeros by default.
    chunk : int, default=64
        Tokens that are computed together, rounded up to a power of two. 1 is the recurrence. The
        numbers are the same up to rounding.

    Returns
    -------
    out : Tensor of shape (..., n_tokens, e)
        In the dtype of v. Row t contains token t.
    state : Tensor of shape (..., d, e)
        S after the last token, in float32 at least.

    Raises
    ------
    ValueError
        If shapes, dtypes or devices do not fit, or `chunk` is below 1.

    References
    ----------
    Schlag et al. (2021); Yang et al. (2024), *Parallelizing Linear Transformers with the Delta
    Rule*; EQUATIONS TR-2, TR-3, TR-4, TR-6.

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled.online_regression import chunked_delta_rule
    >>> k, v = torch.ones(2, 1), torch.tensor([[4.0], [8.0]])
    >>> out, state = chunked_delta_rule(k, k, v, beta=torch.tensor([0.5, 0.5]))
    >>> out.flatten(), state
    (tensor([2., 5.]), tensor([[5.]]))
    """
    out_type = v.dtype
    q, k, v, state, step, log_forget, metric = read_sequences(
        q, k, v, state, chunk, beta=by_token(beta, "beta"), log_forget=log_forget, metric=metric
    )
    write = k if metric is None else metric * k
    out, state = run_chunks(Tokens(q, k, write, v, step, log_forget), state, chunk, corrects=True)
    return out.to(out_type), state


class DeltaRule(OnlineRule):
    """Delta rule: each token corrects the value that a linear map predicts from its key.

    ::

        S_- = Diag(a_t) S_{t-1},   S_t = S_- + beta_t (m_t o k_t)^T (v_t - k_t S_-),   o_t = q_t S_t

    It is a step of LMS; for beta = 1 it is Kaczmarz's step. Queries and keys are divided by
    ``sqrt(|.|^2 + 1e-6)``, so that steps up to 2 do not enlarge errors. The tokens give the gates
    through a projection of the shell, x w with w = 0 at first: ``beta = largest_step sigmoid(x
    w)``, ``log a = min(x w, 0)`` and ``m = 1.5^tanh(x w)``. The layer starts as the delta rule with
    steps of ``largest_step / 2``. Without a causal mask every query reads the state after the last
    key.

    Parameters
    ----------
    forget : {None, "token", "feature"}, default=None
        None is DeltaNet, "token" gated DeltaNet, and "feature" Kimi's delta attention (KDA).
    preconditioned : bool, default=False
        Whether the tokens give m; otherwise it is 1.
    largest_step : float, default=1.0
        In (0, 2]; at most 4/3 if `preconditioned`. Above 1 steps may overshoot, so that the state's
        map has negative eigenvalues.

    Raises
    ------
    ValueError
        If `forget` is none of these or `largest_step` is out of range, or a mask differs between
        queries or holds a finite bias.

    References
    ----------
    See `chunked_delta_rule`; Grazzi et al. (2024) for steps up to 2; EQUATIONS TR-2, TR-3, TR-6.

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled import Attention
    >>> from twinsolve.unrolled.online_regression import DeltaRule
    >>> layer, x = Attention(16, 4, operator=DeltaRule("token")), torch.randn(2, 10, 16)
    >>> layer(x, x, x, is_causal=True, need_weights=False)[0].shape
    torch.Size([2, 10, 16])
    """

    own_gate = "beta"

    def __init__(
        self, forget: Forget = None, *, preconditioned: bool = False, largest_step: float = 1.0
    ) -> None:
        super().__init__(forget)
        if preconditioned:
            self.gates = {**self.gates, "metric": "feature"}
        self.largest_step = check_step(largest_step, "largest_step", 2)
        if preconditioned and largest_step * _LARGEST_METRIC > 2:
            raise ValueError(
                "largest_step: must be at most 4/3 for preconditioned=True, as m reaches 3/2, got "
                f"{largest_step:g}"
            )
        self.preconditioned = preconditioned

    def open_gate(self, name: str, raw: Tensor) -> Tensor:
        if name == "beta":
            return self.largest_step * raw.sigmoid()
        if name == "metric":
            return _LARGEST_METRIC ** raw.tanh()
        return super().open_gate(name, raw)

    def run(self, x: Rows, state: Any = None) -> tuple[Tensor, Tensor]:
        return chunked_delta_rule(
            *x[:3], beta=x.gates["beta"][..., 0], log_forget=x.gates.get("log_forget"),
            metric=x.gates.get("metric"), state=state,
        )  # fmt: skip

    def extra_repr(self) -> str:
        return (
            f"{super().extra_repr()}, preconditioned={self.preconditioned}, "
            f"largest_step={self.largest_step:.4g}"
        )


class ProximalPoint(OnlineRule):
    """Proximal point rule: each token solves its own regression, kept close to the state before.

    ::

        S_t = argmin_S 1/2 |v_t - k_t S|^2 + 1/(2 delta_t) |S - Diag(a_t) S_{t-1}|_F^2
        o_t = q_t S_t

    It is the delta rule with ``beta = delta / (1 + delta |k|^2)``, which never overshoots. Queries
    and keys are divided by ``sqrt(|.|^2 + 1e-6)``. The tokens give ``delta = softplus(x w + log(e -
    1))`` and ``log a = min(x w, 0)`` through a projection of the shell, with w = 0 and delta = 1 at
    first. Longhorn is this rule without forgetting, as derived; its code replaces ``k^T k`` by a
    diagonal (E10-b).

    Parameters
    ----------
    forget : {None, "token", "feature"}, default=None

    Raises
    ------
    ValueError
        If `forget` is none of these, or a mask differs between queries or holds a finite bias.

    References
    ----------
    Liu et al. (2024), Longhorn; EQUATIONS TR-2p.

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled import Attention
    >>> from twinsolve.unrolled.online_regression import ProximalPoint
    >>> layer, x = Attention(16, 4, operator=ProximalPoint()), torch.randn(2, 10, 16)
    >>> layer(x, x, x, is_causal=True, need_weights=False)[0].shape
    torch.Size([2, 10, 16])
    """

    own_gate = "delta"

    def __init__(self, forget: Forget = None) -> None:
        super().__init__(forget)

    def open_gate(self, name: str, raw: Tensor) -> Tensor:
        if name == "delta":
            return F.softplus(raw + _SOFTPLUS_IS_1)
        return super().open_gate(name, raw)

    def run(self, x: Rows, state: Any = None) -> tuple[Tensor, Tensor]:
        delta = x.gates["delta"][..., 0]
        beta = delta / (1 + delta * x.k.square().sum(dim=-1))
        return chunked_delta_rule(
            *x[:3], beta=beta, log_forget=x.gates.get("log_forget"), state=state
        )


def check_step(step: float, name: str, largest: float) -> float:
    """Return a step in (0, largest], for keys of norm 1; raise a ValueError otherwise."""
    if check_positive(step, name) > largest:
        raise ValueError(f"{name}: must be in (0, {largest}], got {step:g}")
    return step
