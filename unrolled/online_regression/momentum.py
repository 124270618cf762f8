"""A linear memory trained by heavy ball with weight decay: Titans."""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from ..attention.inputs import pair_of_states, read_state
from ..attention.precision import unlowered
from .chunks import correct, decays_between, split, write_corrections
from .delta import check_step
from .inputs import by_token, read_sequences, read_visible
from .rules import OnlineRule, Rows

State = tuple[Tensor, Tensor]


@unlowered
def chunked_heavy_ball(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    step: Tensor,
    log_momentum: Tensor,
    log_keep: Tensor,
    visible: Tensor | None = None,
    state: State | None = None,
    chunk: int = 32,
) -> tuple[Tensor, State]:
    """Train a linear memory on each token by heavy ball with decay, and read it with each query.

    ::

        Z_t = eta_t Z_{t-1} - 2 theta_t k_t^T (k_t M_{t-1} - v_t)
        M_t = (1 - alpha_t) M_{t-1} + Z_t,   o_t = q_t M_t

    with theta the step, ``eta = exp(log_momentum)`` and ``1 - alpha = exp(log_keep)``. The layer's
    form of `twinsolve.solvers.online_regression.titans_memory`. In a chunk M_t is a sum of
    corrections whose weights are a product of two triangular matrices, one of the decays and one of
    the momenta; one triangular system gives the corrections. Costs are those of
    `chunked_delta_rule`.

    Parameters
    ----------
    q, k : Tensor of shape (..., n_tokens, d)
    v : Tensor of shape (..., n_tokens, e)
    step, log_momentum, log_keep : Tensor of shape (..., n_tokens)
        Logarithms are at most 0; -inf is a momentum, or what is kept, of 0.
    visible : Tensor of bool of shape (..., n_tokens), optional
        Tokens that are not skipped; all by default. A token that is skipped must have a key, a step
        and logarithms of 0.
    state : pair of Tensor of shape (..., d, e), optional
        M and Z before the first token; zeros by default.
    chunk : int, default=32
        As in `chunked_delta_rule`.

    Returns
    -------
    out : Tensor of shape (..., n_tokens, e)
        In the dtype of v. Row t contains token t.
    state : pair of Tensor of shape (..., d, e)
        M and Z after the last token, in float32 at least.

    Raises
    ------
    ValueError
        If shapes, dtypes or devices do not fit, or `chunk` is below 1.

    References
    ----------
    Behrouz, Zhong and Mirrokni (2025), *Titans*; EQUATIONS TR-8.

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled.online_regression import chunked_heavy_ball
    >>> k, v, one = torch.ones(2, 1), torch.tensor([[4.0], [8.0]]), torch.ones(2)
    >>> gates = {"step": one / 4, "log_momentum": (one / 2).log(), "log_keep": 0 * one}
    >>> chunked_heavy_ball(k, k, v, **gates)[0].flatten()
    tensor([2., 6.])
    """
    out_type, n_tokens, (M, Z) = v.dtype, v.shape[-2], pair_of_states(state)
    gates = {"step": step, "log_momentum": log_momentum, "log_keep": log_keep}
    q, k, v, M, theta, eta, keep = read_sequences(
        q, k, v, M, chunk, **{name: by_token(x, name) for name, x in gates.items()}
    )
    Z, shown = read_state(Z, M.shape, k), read_visible(visible, k)
    seen = k.new_ones(n_tokens, 1) if shown is None else shown.to(k.dtype)
    q, k, v, theta, eta, keep, seen = (split(x, chunk) for x in (q, k, v, theta, eta, keep, seen))
    path = _follow(eta, keep, seen)
    A, B = _correct(k, v, theta, path)
    ends = _Path(*(x[..., -1:, :] for x in path))
    keys = _both(ends.of_u.mT, ends.Z_of_u.mT, k)
    to_M, to_Z = torch.cat([ends.of_M, ends.of_Z], dim=-1), F.pad(ends.Z_of_Z, (1, 0))
    decay = torch.cat([to_M, to_Z], dim=-2)
    read = _both(path.of_M, path.of_Z, q), (q @ k.mT) * path.of_u
    both = torch.cat([M, Z], dim=-2)
    out, both = write_corrections(A, B, keys, both, decay, read, carry=_mix)
    M, Z = both.tensor_split(2, dim=-2)
    return out[..., :n_tokens, :].to(out_type), (M, Z)


class _Path(NamedTuple):
    """How much is left, at each token of a chunk, of what was there before and was written in it.

    M is ``of_M M_0 + of_Z Z_0 + sum_s of_u_ts k_s^T u_s``; Z has no part of M_0.
    """

    of_M: Tensor
    of_Z: Tensor
    of_u: Tensor
    Z_of_Z: Tensor
    Z_of_u: Tensor


def _follow(eta: Tensor, keep: Tensor, seen: Tensor) -> _Path:
    """Return the path of chunks; a token that is not seen does not add Z to M."""
    (of_written, Z_of_Z, _), (of_kept, of_M, _) = decays_between(eta), decays_between(keep)
    return _Path(
        of_M,
        of_kept @ (seen * Z_of_Z),
        of_kept @ (seen * of_written),
        Z_of_Z,
        of_written,
    )


def _correct(k: Tensor, v: Tensor, step: Tensor, path: _Path) -> tuple[Tensor, Tensor]:
    """Return A and B: the chunk writes ``U = A - B [M_0; Z_0]``."""
    # The prediction of a token reads the memory before it.
    n_tokens = k.shape[-2]
    of_M = F.pad(path.of_M, (0, 0, 1, 0), value=1.0)[..., :n_tokens, :]
    of_Z, of_u = (F.pad(x, (0, 0, 1, 0))[..., :n_tokens, :] for x in (path.of_Z, path.of_u))
    k_step = 2 * step * k
    return correct((k_step @ k.mT) * of_u, 2 * step * v, _both(of_M, of_Z, k_step))


def _both(of_M: Tensor, of_Z: Tensor, rows: Tensor) -> Tensor:
    """Return ``[of_M rows, of_Z rows]``, (..., n_tokens, 2 d)."""
    return (torch.cat([of_M, of_Z], dim=-1)[..., None] * rows[..., None, :]).flatten(-2)


def _mix(state: Tensor, weights: Tensor | None) -> Tensor:
    """Return ``[M; Z]`` as sums of both, with weights (..., 2, 2)."""
    both = state.unflatten(-2, (2, -1))
    return (weights @ both.flatten(-2)).view_as(both).flatten(-3, -2)


class HeavyBall(OnlineRule):
    """Heavy ball with weight decay on a linear memory: Titans with a matrix for its memory.

    ::

        Z_t = eta_t Z_{t-1} - 2 theta_t k_t^T (k_t M_{t-1} - v_t)
        M_t = (1 - alpha_t) M_{t-1} + Z_t,   o_t = q_t M_t

    Queries and keys are divided by ``sqrt(|.|^2 + 1e-6)``. The tokens give the gates through a
    projection of the shell, x w with w = 0 at first: ``theta = largest_step sigmoid(x w) / 2``,
    ``eta = sigmoid(x w)`` and ``1 - alpha = exp(min(x w, 0))``. The layer starts as Polyak's heavy
    ball with momentum 1/2. With momentum 0 it is `DeltaRule` with ``beta = 2 theta``.

    One key again and again is stable for ``2 theta < (2 - alpha) (1 + eta)``, as all gates are up
    to a step of 1. Keys that change need ``theta <= 1 - eta``, where nothing decays: momentum goes
    on while other keys come, and corrects ``2 theta / (1 - eta)`` of an error in all. Beyond, the
    state may grow without bound, to infinity after some thousand tokens; a smaller `largest_step`
    leaves more room.

    Parameters
    ----------
    largest_step : float, default=1.0
        Of ``2 theta``, in (0, 1].

    Raises
    ------
    ValueError
        If `largest_step` is out of range, or a mask differs between queries or holds a finite bias.

    References
    ----------
    See `chunked_heavy_ball`; Polyak (1964); EQUATIONS TR-8.

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled import Attention
    >>> from twinsolve.unrolled.online_regression import HeavyBall
    >>> layer, x = Attention(16, 4, operator=HeavyBall()), torch.randn(2, 10, 16)
    >>> layer(x, x, x, is_causal=True, need_weights=False)[0].shape
    torch.Size([2, 10, 16])
    """

    own_gate = "step"
    takes_packed = False

    def __init__(self, largest_step: float = 1.0) -> None:
        super().__init__(None)
        self.largest_step = check_step(largest_step, "largest_step", 1)
        self.gates = {**self.gates, "log_momentum": "token", "log_keep": "token"}

    def open_gate(self, name: str, raw: Tensor) -> Tensor:
        if name == "step":
            return self.largest_step / 2 * raw.sigmoid()
        return F.logsigmoid(raw) if name == "log_momentum" else super().open_gate(name, raw)

    def run(self, x: Rows, state: Any = None) -> tuple[Tensor, State]:
        step, log_momentum, log_keep = (gate[..., 0] for gate in x.gates.values())
        return chunked_heavy_ball(
            *x[:3], step=step, log_momentum=log_momentum, log_keep=log_keep,
            visible=None if x.visible is None else x.visible[..., 0], state=state,
        )  # fmt: skip

    def read(self, q: Tensor, state: State) -> Tensor:
        return q @ state[0]

    def extra_repr(self) -> str:
        return f"largest_step={self.largest_step:.4g}"
