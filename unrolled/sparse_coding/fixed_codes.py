"""The codes that ISTA converges to, solved for on their support, with implicit gradients."""

from collections.abc import Callable

import torch
from torch import Tensor

from ..fixed_point import FixedPoint, Step, transposed_product, warn_of_convergence

Solver = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]

_BLOCK = 100  # iterations between Newton steps
_STEPS = 20  # Newton steps between iterations
_ENTRIES = 2**22  # most entries of the keys of supports that are solved for at once
_WARNED = torch.finfo(torch.float64).eps ** 0.5


class FixedCodes(FixedPoint):
    """Codes ``C = T(C)``, where each row of T is a proximal gradient step of a Lasso.

    ::

        argmin_C |q - C k|_F^2 + penalty(C),        T(C)_i = prox(c_i + s_i (q_i - c_i k) k^T)

    The penalty is the l1 norm, nonnegative or not, with masks; step lengths s_i may depend on the
    support of the codes. The forward pass iterates T with Nesterov's momentum, which restarts in a
    row where it leads uphill. After every 100 iterations rows take Newton steps: on its support S a
    row of T is affine, with ``(I - J)_SS = s K_S K_S^T`` for its Jacobian J and the keys K_S. A row
    is done if T keeps the signs of its code c and ::

        |T(c) - c| <= tol s sigma_min(K_S)^2 |c|

    As ``s sigma_min(K_S)^2`` is the least eigenvalue of ``(I - J)_SS``, then ``|c - c*| <= tol
    |c|``, unless a key is as close to the threshold. For codes smaller than a first step, ``s |q|
    max |k|`` takes the place of ``|c|``. Where rounding exceeds the tolerance a row is done too,
    with a larger bound. The backward pass solves ``(I - J^T) y = g`` on S in the same way. The
    residual, computed with T itself, over the same eigenvalue bounds the error of y.

    Parameters
    ----------
    step : callable
        T, of codes of shape (..., n_queries, n_keys) in float64.
    queries : Tensor of shape (..., n_queries, d)
    keys : Tensor of shape (..., n_keys, d)
        q and k without a gradient, which flows through T.
    tol : float
        Largest bound > 0 of the relative error of each row of codes.
    max_iter : int
        Largest number of applications of T outside Newton's steps.

    Warns
    -----
    sklearn.exceptions.ConvergenceWarning
        If a row is not done after `max_iter`, or the error bound of its code or its y is above both
        `tol` and 1.5e-8: then keys of its support are nearly dependent. Where they are dependent, y
        is the least squares solution of least norm.

    References
    ----------
    EQUATIONS LS-4, SE-17; O'Donoghue and Candes, "Adaptive restart for accelerated gradient
    schemes" (2015).

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled import Call, SparseCoding
    >>> from twinsolve.unrolled.sparse_coding.fixed_codes import FixedCodes
    >>> q, k = torch.tensor([[3.0, 0.5]]).double(), torch.eye(2).double()
    >>> step = SparseCoding(2.0).iteration(Call(q, k, k))
    >>> FixedCodes(step, q, k, tol=1e-10, max_iter=100)(torch.zeros(1, 2).double())
    tensor([[2., 0.]], dtype=torch.float64)
    """

    def __init__(
        self, step: Step, queries: Tensor, keys: Tensor, *, tol: float, max_iter: int
    ) -> None:
        super().__init__(step, tol=tol, max_iter=max_iter)
        self.queries, self.keys = queries, keys

    def _reach(self, step: Callable[[Tensor], Tensor], start: Tensor) -> Tensor:
        if start.numel() == 0:
            return start
        rounding = 64 * torch.finfo(start.dtype).eps
        codes = z = image = start
        t = torch.ones_like(start[..., :1])
        bound, done = torch.full_like(t, torch.inf), torch.zeros_like(t, dtype=torch.bool)
        n_iter = 0
        while n_iter < self.max_iter and not bool((done | ~image.isfinite().all(-1, True)).all()):
            n_more = min(_BLOCK, self.max_iter - n_iter)
            n_iter += n_more
            for _ in range(n_more):
                last, image = image, step(z)
                z, t = _extrapolate(z, image, last, t)
            last, image = image, self._descend(step, image, done)
            moved = (image != last).any(dim=-1, keepdim=True)
            z, t = torch.where(moved, image, z), torch.where(moved, 1, t)
            solved, error, least = self._certify(step, image, done)
            near = error <= (rounding / least).clamp(min=self.tol)
            codes = torch.where(near, solved, torch.where(done, codes, image))
            bound, done = torch.where(near, error, bound), done | near
        bound = torch.where(codes.isfinite().all(-1, True), bound, 0)  # NaN needs no warning
        self._warn(bound, "codes", f"after {n_iter} iterations; increase max_iter, or the penalty")
        return codes

    def _descend(self, step: Callable[[Tensor], Tensor], codes: Tensor, done: Tensor) -> Tensor:
        """Newton steps on the supports of rows in which T keeps the signs.

        A step ends where a code becomes zero: up to there the row's objective falls. Further steps
        follow on the rest of the support. Rows that use far more keys than can be independent are
        left to T.
        """
        going = ~done
        for _ in range(_STEPS):
            applied, leaf = _apply_map(step, codes)
            on = codes != 0
            few = on.sum(dim=-1, keepdim=True) <= 2 * self.keys.shape[-1]
            stands = ((applied.sign() == codes.sign()) | ~on).all(dim=-1, keepdim=True)
            on = on & going & few & stands
            move = self._invert(applied, leaf, on, applied - codes, _solve_damped)[0].nan_to_num()
            share = torch.where(codes * (codes + move) < 0, codes / -move, torch.inf)
            first = share.amin(dim=-1, keepdim=True)
            going = first < torch.inf
            codes = torch.where(going & (share == first), 0, codes + first.clamp(max=1) * move)
            if not bool(going.any()):
                break
        return codes

    def _certify(
        self, step: Callable[[Tensor], Tensor], codes: Tensor, done: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Codes after a Newton step in rows whose signs T keeps, error bounds, least eigenvalues.

        The error bound is infinite in all other rows.
        """
        applied, leaf = _apply_map(step, codes)
        stands = ~done & _have_same_signs(applied, codes)
        move, _, length, least = self._invert(
            applied, leaf, stands & (codes != 0), applied - codes, _solve_least_norm
        )
        codes = codes + move
        after = step(codes)
        first_step = length * _norm(self.queries) * _norm(self.keys).amax(dim=-2, keepdim=True)
        size = torch.maximum(_norm(codes), first_step)
        error = _divide(_norm(after - codes), size * least)
        return codes, torch.where(stands & _have_same_signs(after, codes), error, torch.inf), least

    def _solve(self, applied: Tensor, leaf: Tensor, grad: Tensor) -> Tensor:
        on = (applied != 0) & applied.isfinite()
        solved, residual, _, least = self._invert(applied, leaf, on, grad, _solve_least_norm)
        error = _divide(_norm(residual), _norm(solved) * least)
        error = torch.where(solved.isfinite().all(-1, True), error, 0)
        self._warn(error, "gradients of codes", "as the keys that a code uses are dependent")
        return solved

    def _invert(
        self, applied: Tensor, leaf: Tensor, on: Tensor, b: Tensor, solve: Solver
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """``y = (I - J)_SS^-1 b_S`` of each row, its residual, step length and least eigenvalue.

        S is where `on` is True, and the step length is s in ``(I - J)_SS = s K_S K_S^T``.
        """
        b = torch.where(on, b, 0)
        y, curved, least = _solve_on_supports(self.keys, on, b, solve)
        product = torch.where(on, y - transposed_product(applied, leaf, y), 0)
        length = (product * curved).sum(-1, keepdim=True) / curved.square().sum(-1, keepdim=True)
        length = torch.where(length > 0, length, 1)
        return y / length, product / length - b, length, least * length

    def _warn(self, bound: Tensor, what: str, why: str) -> None:
        wrong = ~(bound <= max(self.tol, _WARNED))
        if bool(wrong.any()):
            warn_of_convergence(
                f"{int(wrong.sum())} of {wrong.numel()} {what} are not proved to be within "
                f"tol={self.tol:.3g} (bound of the relative error {float(bound.max()):.3g}) {why}"
            )


def _apply_map(step: Callable[[Tensor], Tensor], codes: Tensor) -> tuple[Tensor, Tensor]:
    """T of a copy of the codes, with its graph, and this copy, the leaf of the graph."""
    with torch.enable_grad():
        leaf = codes.clone().requires_grad_()
        return step(leaf), leaf


def _extrapolate(z: Tensor, image: Tensor, last: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
    """The next z and number t of Nesterov's sequence, restarted in rows that go uphill.

    `image` is the map of z, and `last` the image before it.
    """
    move = image - last
    uphill = ((z - image) * move).sum(dim=-1, keepdim=True) > 0
    grown = (1 + (1 + 4 * t * t).sqrt()) / 2
    weight = torch.where(uphill, 0, (t - 1) / grown)
    return image + weight * move, torch.where(uphill, 1, grown)


def _have_same_signs(first: Tensor, second: Tensor) -> Tensor:
    return (first.sign() == second.sign()).all(dim=-1, keepdim=True)


def _norm(x: Tensor) -> Tensor:
    return torch.linalg.vector_norm(x, dim=-1, keepdim=True)


def _divide(x: Tensor, y: Tensor) -> Tensor:
    """``x / y``, where 0 / 0 is 0."""
    return torch.where(x == 0, 0, x / y)


def _solve_on_supports(
    k: Tensor, on: Tensor, b: Tensor, solve: Solver
) -> tuple[Tensor, Tensor, Tensor]:
    """Solve ``x K_S K_S^T = b`` in each row, with S where `on` is True; b is zero elsewhere.

    Returns
    -------
    x, curved : Tensor of the shape of b
        x and ``x K_S K_S^T``.
    least : Tensor of shape (..., n_queries, 1)
        As `solve` gives it, and infinite where b is zero.
    """
    keys = k.expand(*b.shape[:-2], *k.shape[-2:])[None].flatten(0, -3)
    on, rhs = (x[None].flatten(0, -2) for x in (on, b))
    x, curved = torch.zeros_like(rhs), torch.zeros_like(rhs)
    least = torch.full_like(rhs[:, :1], torch.inf)
    rows = rhs.any(dim=-1).nonzero()[:, 0]
    most = int(on[rows].sum(dim=-1).amax()) if len(rows) else 0
    for some in rows.split(max(1, _ENTRIES // (most * k.shape[-1]))) if most else ():
        chosen, places = on[some].to(torch.uint8).topk(most, dim=-1)
        K = keys[some[:, None] // b.shape[-2], places] * chosen[..., None]
        solved, least[some] = solve(K, rhs[some].gather(-1, places))
        products = (solved[:, None] @ K @ K.mT)[:, 0]
        for whole, part in ((x, solved), (curved, products)):
            whole[some] = torch.zeros_like(rhs[some]).scatter(-1, places, part)
    return x.view_as(b), curved.view_as(b), least.view_as(b[..., :1])


def _solve_least_norm(K: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """``b (K K^T)^+``, and the least nonzero eigenvalue of ``K K^T``."""
    U, s, _ = torch.linalg.svd(K, full_matrices=False)
    dependent = s <= 8 * max(K.shape[-2:]) * torch.finfo(s.dtype).eps * s[:, :1]
    square = s.square().masked_fill(dependent, torch.inf)
    x = U @ (U.mT @ b[..., None] / square[..., None])
    return x[..., 0], square.amin(dim=-1, keepdim=True)


def _solve_damped(K: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """``b (K K^T + d I)^-1``, a direction that is long where keys are dependent, and d."""
    G = K @ K.mT
    diagonal = G.diagonal(dim1=-2, dim2=-1)
    damping = 1e-13 * diagonal.amax(dim=-1, keepdim=True)
    diagonal += damping
    x = torch.cholesky_solve(b[..., None], torch.linalg.cholesky_ex(G).L)
    return x[..., 0], damping
