"""Ridge regression on the tokens so far, solved for every query: the Mesa layer."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..attention import Positive, check_count, is_transformed, untraced
from ..attention.inputs import pair_of_states, read_state
from ..attention.precision import unlowered
from ..fixed_point import with_gradient
from .chunks import CHUNK, PrefixSums, split
from .inputs import by_token, read_penalty, read_sequences
from .least_squares import solve_ridge
from .rules import Forget, OnlineRule, Rows
from .sums import chunked_linear_attention


@unlowered
def chunked_mesa(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    beta: Tensor,
    lam: Tensor | float,
    log_forget: Tensor | None = None,
    n_iter: int | None = None,
    implicit: bool = False,
    state: tuple[Tensor, Tensor] | None = None,
    chunk: int = CHUNK,
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Solve a weighted ridge regression on the tokens so far, and read it with each query.

    ::

        H_t = a_t H_{t-1} + beta_t k_t^T k_t,   G_t = a_t G_{t-1} + beta_t k_t^T v_t
        o_t = x_t G_t,   x_t (H_t + Diag(lam)) = q_t,   a = exp(log_forget)

    The layer's form of `twinsolve.solvers.online_regression.mesa`, or of `mesa_by_cg` if there is
    an `n_iter`. Without forgetting, Cholesky factors solve all prefixes of a chunk at once: costs
    are those of `chunked_delta_rule`, and ``d^3`` more a chunk. With forgetting the exact solution
    takes ``O(n d^3)`` operations and holds n matrices of d times d. Each step of conjugate
    gradients costs as much as linear attention, and a step whose residual is one rounding of q
    changes nothing. Gradients are those of what is computed, after few steps too, or those of the
    solution where they are `implicit`: from the gradient dx of a loss in x,

    ::

        y_t (H_t + Diag(lam)) = dx_t,   dq = y,   d(H_t + Diag(lam)) = -y_t^T x_t

    with the x of the forward pass, and y by as many steps. The backward pass then keeps nothing of
    the steps. Once they have converged both gradients are the same; after few steps the implicit
    one is not the derivative of the output, and either may be nearer to that of the solution. With
    the residual ``r = dx - y A`` it misses dq by at most ``|r| / min(lam)``.

    Parameters
    ----------
    q, k : Tensor of shape (..., n_tokens, d)
    v : Tensor of shape (..., n_tokens, e)
    beta : Tensor of shape (..., n_tokens)
        Weights of the tokens, 0 or more.
    lam : Tensor or float
        Penalties above 0; broadcasts to (..., 1, d).
    log_forget : Tensor of shape (..., n_tokens, 1), optional
        Logarithm of a, at most 0; None forgets nothing. The penalty is not forgotten.
    n_iter : int, optional
        Steps of conjugate gradients from 0; None solves exactly.
    implicit : bool, default=False
        Whether gradients are those of the solution, by as many steps. They have no second
        derivative.
    state : pair of Tensor of shape (..., d, d) and (..., d, e), optional
        H and G before the first token; zeros by default.
    chunk : int, default=64
        As in `chunked_delta_rule`.

    Returns
    -------
    out : Tensor of shape (..., n_tokens, e)
        In the dtype of v. Row t contains token t.
    state : pair of Tensor of shape (..., d, d) and (..., d, e)
        H and G after the last token, in float32 at least.

    Raises
    ------
    ValueError
        If shapes, dtypes or devices do not fit, `n_iter` or `chunk` is below 1, or gradients are to
        be implicit without an `n_iter`.
    LinAlgError
        If lam is below the rounding of H, so that the matrix is not positive definite.
    RuntimeError
        If a second derivative of implicit gradients is asked for, or they are to be exported or
        transformed by ``torch.func``. If a second derivative of the exact solution without
        forgetting is asked for where a weight is below ``sqrt(eps)`` of the smallest penalty;
        ``torch.func`` does not notice, and is wrong there.

    References
    ----------
    von Oswald et al. (2025), *MesaNet*; EQUATIONS TR-5, TR-5c, TR-5g, TR-5h.

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled.online_regression import chunked_mesa
    >>> k, v, one = torch.ones(2, 1), torch.tensor([[4.0], [8.0]]), torch.ones(2)
    >>> chunked_mesa(k, k, v, beta=one, lam=torch.tensor(2.0))[0].flatten()
    tensor([1.3333, 3.0000])
    """
    out_type, (H, G) = v.dtype, pair_of_states(state)
    q, k, v, G, step, log_forget = read_sequences(
        q, k, v, G, chunk, beta=by_token(beta, "beta"), log_forget=log_forget
    )
    if log_forget is not None and log_forget.shape[-1] != 1:
        raise ValueError(
            "log_forget: must have one number for each token, as H stays symmetric, got shape "
            f"{tuple(log_forget.shape)}"
        )
    check_steps(n_iter, implicit)
    H = read_state(H, (*k.shape[:-2], k.shape[-1], k.shape[-1]), k)
    penalty, n_tokens = read_penalty(lam, k), k.shape[-2]
    if n_iter is None and log_forget is None:
        out, state = solve_ridge(q, k, v, step, penalty, (H, G), chunk)
        return out.to(out_type), state

    q, k, v, step = (split(x, chunk) for x in (q, k, v, step))
    log_forget = None if log_forget is None else split(log_forget, chunk)
    matrix, right = (PrefixSums(k, step * x, y, log_forget) for x, y in ((k, H), (v, G)))
    penalty = penalty.expand(*k.shape[:-3], 1, k.shape[-1])[..., None, :, :]
    if n_iter is None:
        x = torch.linalg.solve(matrix.all() + torch.diag_embed(penalty), q)
    else:
        iterate = _iterate_implicitly if implicit else _iterate
        x = iterate(lambda x: matrix.read(x) + penalty * x, q, n_iter)
    out = right.read(x).flatten(-3, -2)[..., :n_tokens, :]
    return out.to(out_type), (matrix.last, right.last)


def check_steps(n_iter: int | None, implicit: bool) -> int | None:
    """Return the number of steps; raise a ValueError if it does not fit."""
    if implicit and n_iter is None:
        raise ValueError("implicit: needs n_iter; the exact solution has exact gradients")
    return None if n_iter is None else check_count(n_iter, "n_iter", 1)


def _iterate(times_matrix: Callable[[Tensor], Tensor], b: Tensor, n_iter: int) -> Tensor:
    """Take steps of conjugate gradients from 0 on ``x A = b``, for each row.

    A row whose residual is one rounding of b stays as it is: its quotients would be 0 / 0 soon.
    """
    x, r, p = torch.zeros_like(b), b, b
    rho = (r * r).sum(dim=-1, keepdim=True)
    least = torch.finfo(b.dtype).eps ** 2 * rho.detach()
    for _ in range(n_iter):
        product, is_done = times_matrix(p), rho <= least
        alpha = _divide(rho, (p * product).sum(dim=-1, keepdim=True), is_done)
        x, r = torch.addcmul(x, alpha, p), torch.addcmul(r, alpha, product, value=-1)
        before, rho = rho, (r * r).sum(dim=-1, keepdim=True)
        p = torch.addcmul(r, _divide(rho, before, is_done), p)
    return x


def _divide(above: Tensor, below: Tensor, is_done: Tensor) -> Tensor:
    """Return the quotient, and 0, also as gradient, where a row is done."""
    return torch.where(is_done, 0, above / torch.where(is_done, 1, below))


def _iterate_implicitly(times_matrix: Callable[[Tensor], Tensor], b: Tensor, n_iter: int) -> Tensor:
    """Take the steps of `_iterate`, with the gradient of the solution."""
    if not torch.is_grad_enabled():
        return _iterate(times_matrix, b, n_iter)
    if torch.compiler.is_exporting() or is_transformed():
        raise RuntimeError(
            "Mesa: implicit gradients can neither be exported nor transformed by torch.func; "
            "under torch.no_grad() the layer can"
        )
    return _solve_implicitly(times_matrix, b, n_iter)


@untraced
def _solve_implicitly(times_matrix: Callable[[Tensor], Tensor], b: Tensor, n_iter: int) -> Tensor:
    """Solve ``x A = b`` by steps, as the fixed point of ``x + b - x A``.

    At a constant x this map passes on ``y = dx A^-1`` as db = y and dA = -y^T x.
    """

    def solve(b: Tensor) -> Tensor:
        with torch.no_grad():
            return _iterate(times_matrix, b, n_iter)

    x = solve(b)
    refusal = "Mesa: implicit gradients have no second derivative"
    return with_gradient(x, x + b - times_matrix(x), solve, refusal)


class Mesa(OnlineRule):
    """Mesa layer: ridge regression on the tokens so far, solved for each query.

    ::

        S_t = argmin_S sum_i w_ti beta_i |v_i - k_i S|^2 + lam |S|_F^2,   o_t = q_t S_t

    ``w_ti`` is the product of a over the tokens after i up to t. Queries and keys are divided by
    ``sqrt(|.|^2 + 1e-6)``. The tokens give the weights ``beta = 2 sigmoid(x w)`` and ``log a =
    min(x w, 0)`` through a projection of the shell, with w = 0 at first: every token then counts
    once. Without a causal mask every query reads the solution for all keys.

    Parameters
    ----------
    lam : float, default=1.0
        > 0; the start of the layer of von Oswald et al.
    n_iter : int, optional
        Steps of conjugate gradients; None solves exactly, see `chunked_mesa`.
    implicit : bool, default=False
        Whether the gradients after `n_iter` steps are those of the solution, see `chunked_mesa`.
    forget : {None, "token"}, default=None
    num_heads : int, optional
        Learn one penalty a head; None with ``learnable=True`` learns a single one.
    learnable : bool, default=False

    Raises
    ------
    ValueError
        If a parameter is out of range, or a mask differs between queries or holds a finite bias.

    References
    ----------
    See `chunked_mesa`; EQUATIONS TR-5, TR-5c, TR-5g.

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled import Attention
    >>> from twinsolve.unrolled.online_regression import Mesa
    >>> layer, x = Attention(16, 4, operator=Mesa()), torch.randn(2, 10, 16)
    >>> layer(x, x, x, is_causal=True, need_weights=False)[0].shape
    torch.Size([2, 10, 16])
    """

    own_gate = "beta"

    def __init__(
        self,
        lam: float = 1.0,
        *,
        n_iter: int | None = None,
        implicit: bool = False,
        forget: Forget = None,
        num_heads: int | None = None,
        learnable: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(forget)
        if forget == "feature":
            raise ValueError("forget: must be None or 'token', got 'feature'")
        self.n_iter, self.implicit = check_steps(n_iter, implicit), implicit
        self.lam = Positive(
            lam, name="lam", num_heads=num_heads, learnable=learnable, device=device, dtype=dtype
        )

    def open_gate(self, name: str, raw: Tensor) -> Tensor:
        return 2 * raw.sigmoid() if name == "beta" else super().open_gate(name, raw)

    def run(self, x: Rows, state: Any = None) -> tuple[Tensor, Any]:
        return chunked_mesa(
            *x[:3], beta=x.gates["beta"][..., 0], lam=self.lam().to(x.q),
            log_forget=x.gates.get("log_forget"), n_iter=self.n_iter, implicit=self.implicit,
            state=state,
        )  # fmt: skip

    def learn(self, x: Rows) -> tuple[Tensor, Tensor]:
        both = x.gates["beta"] * torch.cat([x.k, x.v], dim=-1)
        _, sums = chunked_linear_attention(x.k, x.k, both, log_forget=x.gates.get("log_forget"))
        H, G = sums.split([x.k.shape[-1], x.v.shape[-1]], dim=-1)
        return H, G

    def read(self, q: Tensor, state: tuple[Tensor, Tensor]) -> Tensor:
        (H, G), lam = state, self.lam().to(q)
        if self.n_iter is None:
            A = H + lam * torch.eye(H.shape[-1], dtype=H.dtype, device=H.device)
            return q @ torch.linalg.solve(A, G)
        iterate = _iterate_implicitly if self.implicit else _iterate
        return iterate(lambda x: x @ H + lam * x, q, self.n_iter) @ G

    def extra_repr(self) -> str:
        return f"n_iter={self.n_iter}, implicit={self.implicit}, {super().extra_repr()}"
