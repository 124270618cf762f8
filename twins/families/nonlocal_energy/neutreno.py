"""Twins: the nonlocal energy, its preconditioned gradient steps, and NeuTRENO attention."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from scipy.spatial.distance import cdist
from torch import Tensor

from ....solvers import minimize_energy, regularized_energy, smoother_matrix
from ....solvers.nonlocal_energy import (
    energy_gradient,
    neutreno_fixed_point,
    neutreno_iteration,
    neutreno_spectral_radius,
)
from ....unrolled.attention import Context
from ....unrolled.kernel_smoothing import Gaussian, Softmax
from ....unrolled.nonlocal_energy import Neutreno
from ....unrolled.solved_operator import Solved
from ...heads import Array, HeadCall, Tensors, head_value, heads, move_parameters
from ...judging.certificates import gradient_residual, pair_energies
from ...laws import Measurement, largest_difference
from ...laws.subject import as_array
from ...pairs import Derivatives, Inputs, Numerics, calls_of_heads, layer_output, solve_head
from ...registry import Twin, add_twin, exact_twin
from ...relations import Bound, FixedPointLimit, Identity, Inequalities, Iterate, with_n_iter
from ..kernel_smoothing.regression import build_gaussian, build_gaussian_heads, smoother_logits
from ..kernel_smoothing.smoothing_bounds import N_EXTREMAL, diffusion_modes

_LAM = 0.45
_STEPS = 6
_CERTIFIED = 2
_POWERS = np.arange(1, _STEPS + 1)


def _build(*, relaxed: bool, **settings: Any) -> Callable[..., Neutreno]:
    """Return a builder of the layer around Gaussian attention."""
    settings = {"learnable": True} | settings
    return lambda q, k, v: Neutreno(
        build_gaussian(q, k, v), _LAM, relaxed=relaxed, dtype=torch.float64, **settings
    )


def _build_heads(*, relaxed: bool) -> Callable[..., Neutreno]:
    """Return a build with learned penalties and bandwidths for each head."""
    return lambda q, k, v: move_parameters(
        Neutreno(
            build_gaussian_heads(q, k, v),
            _LAM,
            relaxed=relaxed,
            num_heads=len(q),
            learnable=True,
            dtype=torch.float64,
        )
    )


def _list_options(*, relaxed: bool) -> dict[str, Callable[..., Any]]:
    """Return builders with other settings, by name."""
    return {
        "default-penalty": lambda q, k, v: Neutreno(build_gaussian(q, k, v), relaxed=relaxed),
        "penalties-of-heads": _build_heads(relaxed=relaxed),
    }


def _other_first_values(q: Array, k: Array, v: Array) -> Context:
    """Return first values that differ from the values by up to a tenth."""
    shares = 0.1 * np.cos(np.arange(v.shape[1]))[:, None]
    return Context(first_values=torch.from_numpy((1 + shares) * v))


def _same_first_values(q: Array, k: Array, v: Array) -> Context:
    return Context(first_values=torch.from_numpy(v.copy()))


def _transitions(layer: Any, call: HeadCall) -> Array:
    """Return the matrix of the smoother on the keys that each query sees."""
    A = smoother_matrix(call.q, call.k, bandwidth=head_value(layer.base.bandwidth, call.head))
    if call.bias is None and call.visible is None:
        return A
    if call.bias is not None:
        A = A * np.exp(call.bias)
    if call.visible is not None:
        A = np.where(call.visible, A, 0)
    sums = A.sum(axis=1, keepdims=True)
    return A / np.where(sums > 0, sums, 1)


def _kernel(layer: Any, q: Array, head: int) -> Array:
    bandwidth = head_value(layer.base.bandwidth, head)
    return np.exp(-cdist(q, q, "sqeuclidean") / (2 * bandwidth**2))


def _solve(layer: Neutreno, call: HeadCall) -> Array:
    """Filter by the solver of the base, and pull to the first values."""
    base, lam = exact_twin(layer.base), head_value(layer.lam, call.head)
    u = call.v
    for _ in range(layer.n_iter):
        smooth = solve_head(base, layer.base, replace(call, v=u))
        if layer.relaxed:
            u = (smooth + lam * call.first_values) / (1 + lam)
        else:
            u = smooth + lam * (call.first_values - u)
    return u


def _solve_gradient_step(layer: Neutreno, call: HeadCall) -> Array:
    """Take one gradient step on the energy, divided by the degrees."""
    K, lam = _kernel(layer, call.q, call.head), head_value(layer.lam, call.head)
    gradient = energy_gradient(call.v, call.first_values, K, lam, fidelity="degree")
    return call.v - gradient / K.sum(axis=1, keepdims=True)


def _solve_iterates(layer: Neutreno, call: HeadCall) -> Array:
    A, lam = _transitions(layer, call), head_value(layer.lam, call.head)
    return neutreno_iteration(call.v, A, lam=lam, n_iter=layer.n_iter, relaxed=layer.relaxed).coef


def _solve_fixed_point(layer: Neutreno, call: HeadCall) -> Array:
    """Solve for the fixed point; queries that see no key walk to an added token of value zero."""
    A, f = _transitions(layer, call), call.first_values
    n, lost = len(f), A.sum(axis=1) == 0
    if lost.any():
        A = np.block([[A, lost[:, None]], [np.zeros((1, n)), np.ones((1, 1))]])
        f = np.pad(f, ((0, 1), (0, 0)))
    return neutreno_fixed_point(f, A, lam=head_value(layer.lam, call.head), tol=1e-11).coef[:n]


def _measure_promise(layer: Any, inputs: Tensors, found: Array, expected: Array) -> Measurement:
    """Measure the relative error against the layer's `tol` and rounding."""
    eps = torch.finfo(torch.promote_types(inputs[0].dtype, torch.float32)).eps
    rounding = 16 * eps * (1 + 1 / float(layer.base.lam().detach().min()))
    return Measurement(largest_difference(found, expected), layer.tol + rounding)


def _solve_minimum(layer: Any, call: HeadCall) -> Array:
    K, lam = _kernel(layer.base, call.q, call.head), head_value(layer.base.lam, call.head)
    return minimize_energy(call.first_values, K, lam=lam, fidelity="degree", tol=1e-11).coef


def _certify_steps(twin: Twin, layer: Neutreno, inputs: Tensors) -> float:
    """Judge the first iterates as steps on E in each token, with the other tokens fixed.

    Up to a constant ``E(u_i) = 1/2 sum_j K_ij |u_i - v_j|^2 + lam d_i / 2 |u_i - f_i|^2``, with the
    tokens v_j of the iterate before. The step is the gradient divided by ``d_i = sum_j K_ij``; if
    relaxed, it goes to the minimum.
    """
    calls = list(calls_of_heads(twin, inputs))
    states = [
        as_array(inputs[2]),
        *(layer_output(twin, with_n_iter(layer, t), inputs) for t in range(1, _CERTIFIED + 1)),
    ]
    residuals = [
        _step_residual(layer, call, before[call.head], after[call.head])
        for before, after in pairwise(states)
        for call in calls
    ]
    return float(np.max(residuals))


def _step_residual(layer: Neutreno, call: HeadCall, before: Array, after: Array) -> float:
    """Judge one step of one head; the weights of a row are divided by the largest one."""
    logits, f = smoother_logits(layer.base, call), call.first_values
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    degrees, lam = weights.sum(axis=1), head_value(layer.lam, call.head)

    def energy(u: Array) -> Array:
        return pair_energies(weights, u, before) + lam / 2 * degrees * ((u - f) ** 2).sum(axis=1)

    if layer.relaxed:
        curvature = (1 + lam) * degrees
        return gradient_residual(energy, after, 0.0, curvature=curvature, unit=after)
    step = degrees[:, None] * (before - after)
    return gradient_residual(energy, before, step, curvature=degrees, unit=after)


def _run_iterates(
    layer: Neutreno, q: Tensor, k: Tensor, v: Tensor, first_values: Tensor
) -> list[Array]:
    """Return the layer's iterates from u = v, each of shape (heads, tokens, width)."""
    before, states = layer.n_iter, [v]
    for layer.n_iter in range(1, _STEPS + 1):
        states.append(layer(q, k, v, context=Context(first_values=first_values)))
    layer.n_iter = before
    return [as_array(state) for state in states]


def _energy(layer: Neutreno, x: Array, u: Array, f: Array, head: int) -> float:
    K, lam = _kernel(layer, x, head), head_value(layer.lam, head)
    return regularized_energy(u, f, K, lam, fidelity="degree")


def _bound_energies(layer: Neutreno, q: Tensor, k: Tensor, v: Tensor) -> Inequalities:
    """Compare E(u_{n+1}) with E(u_n), and the decrease along an eigenvector with its rate.

    There ``E(u_n) - E* = (mu - lam)^2n (E(u_0) - E*)``.
    """
    sides = Inequalities()
    states = _run_iterates(layer, q, k, v, v)
    for head, (x, f) in heads((q, v)):
        E = np.array([_energy(layer, x, state[head], f, head) for state in states])
        sides.at_most(E[1:], E[:-1])
    modes, states, limits = _along_modes(layer, q)
    for head, (x,) in heads((q[:, :N_EXTREMAL],)):
        mu, E, _ = modes[head]
        for column, rate in enumerate(mu):
            columns = slice(column, column + 1)
            f, limit = E[:, columns], limits[head][:, columns]
            lowest = _energy(layer, x, limit, f, head)
            above = [
                _energy(layer, x, state[head][:, columns], f, head) - lowest for state in states
            ]
            sides.attained(above[1:], rate ** (2 * _POWERS) * above[0], scale=above[0])
    return sides


def _bound_distances(layer: Neutreno, q: Tensor, k: Tensor, v: Tensor) -> Inequalities:
    """Compare ``|u_n - u*|`` with ``rate^n |u_0 - u*|`` in the norm of the degrees.

    Along eigenvectors e, ``<e, u_n - u*> = (mu - lam)^n <e, u_0 - u*>``.
    """
    sides = Inequalities()
    states, limits = _run_iterates(layer, q, k, v, v), _limits(layer, q, k, v)
    for head, (x,) in heads((q,)):
        A, lam = _transitions(layer, HeadCall(x, x, x, head)), head_value(layer.lam, head)
        d = _kernel(layer, x, head).sum(axis=1, keepdims=True)
        errors = [float(np.sqrt((d * (u[head] - limits[head]) ** 2).sum())) for u in states]
        sides.at_most(errors[1:], errors[0] * neutreno_spectral_radius(A, lam) ** _POWERS)
    modes, states, limits = _along_modes(layer, q)
    for head, (mu, E, d) in enumerate(modes):
        along = np.stack([d @ (E * (state[head] - limits[head])) for state in states])
        sides.attained(along[1:] / along[0], mu ** _POWERS[:, None], scale=1)
    return sides


def _along_modes(
    layer: Neutreno, q: Tensor
) -> tuple[list[tuple[Array, Array, Array]], list[Array], Array]:
    """Run the layer along eigenvectors on a few tokens.

    Returns factors ``mu - lam``, eigenvectors and degrees of each head; the iterates, which start
    from minus the first values; and their limits. The first values are the constant eigenvector,
    the slowest other one and the fastest.
    """
    tokens, modes = q[:, :N_EXTREMAL], []
    for head, (x,) in heads((tokens,)):
        mu, E, d = diffusion_modes(_kernel(layer, x, head))
        chosen = [-1, -2, 0]
        modes.append((mu[chosen] - head_value(layer.lam, head), E[:, chosen], d))
    first = torch.from_numpy(np.stack([E for _, E, _ in modes])).to(q.dtype)
    states = _run_iterates(layer, tokens, tokens, -first, first)
    return modes, states, _limits(layer, tokens, tokens, first)


def _bound_safe_distances(layer: Neutreno, q: Tensor, k: Tensor, v: Tensor) -> Inequalities:
    """Compare ``|u_n - u*|_max`` with ``(1 + lam)^-n |u_0 - u*|_max``.

    A constant error attains the bound.
    """
    rates = np.array([1 / (1 + head_value(layer.lam, head)) for head in range(len(q))])
    powers, sides = rates[:, None] ** _POWERS, Inequalities()
    limit = _limits(layer, q, k, v)
    states = _run_iterates(layer, q, k, v, v)
    errors = np.stack([abs(u - limit).max((1, 2)) for u in states], axis=1)
    sides.at_most(errors[:, 1:], errors[:, :1] * powers)
    q, k, v = (x[:, :N_EXTREMAL] for x in (q, k, v))
    limit = _limits(layer, q, k, v)
    size = np.abs(limit).max()
    start = torch.from_numpy(limit + size).to(q.dtype)
    differences = np.stack([u - limit for u in _run_iterates(layer, q, k, start, v)], axis=1)
    sides.attained(differences[:, 1:], differences[:, :1] * powers[..., None, None], scale=size)
    return sides


def _limits(layer: Neutreno, q: Tensor, k: Tensor, v: Tensor) -> Array:
    """Solve for the fixed point ``((1 + lam) I - A)^-1 lam v`` of each head with first values v."""
    limits = []
    for head, (x, y, f) in heads((q, k, v)):
        A, lam = _transitions(layer, HeadCall(x, y, f, head)), head_value(layer.lam, head)
        limits.append(np.linalg.solve((1 + lam) * np.eye(len(A)) - A, lam * f))
    return np.stack(limits)


def _logit_range(layer: Any, q: Array, k: Array, v: Array) -> float:
    base: Any = layer.base.base if isinstance(layer, Solved) else layer.base
    return exact_twin(base).numerics.logit_range(base, q, k, v)


def _passes(layer: Any) -> int:
    """Return the passes whose rounding counts: about ``1 / (1 - c) = 1 + 1 / lam``.

    The relaxed iteration contracts by ``c = 1 / (1 + lam)``.
    """
    neutreno: Any = layer.base if isinstance(layer, Solved) else layer
    n_passes = 1 + int(1 / head_value(neutreno.lam, 0))
    base = exact_twin(neutreno.base)
    if layer is neutreno:
        n_passes = min(neutreno.n_iter, n_passes) if neutreno.relaxed else neutreno.n_iter
    return int(n_passes * base.numerics.passes(neutreno.base))


def _is_gaussian(layer: Neutreno) -> bool:
    return isinstance(layer.base, Gaussian) and layer.base.bandwidth is not None


def _is_explicit(layer: Neutreno) -> bool:
    return _is_gaussian(layer) and not layer.relaxed


def _is_safe(layer: Neutreno) -> bool:
    return _is_gaussian(layer) and layer.relaxed


def _solves_neutreno(layer: Solved) -> bool:
    return isinstance(layer.base, Neutreno) and _is_gaussian(layer.base)


def _build_solved(build: Callable[..., Neutreno]) -> Callable[..., Solved]:
    return lambda q, k, v: Solved(build(q, k, v), tol=1e-12)


_NUMERICS = Numerics(_logit_range, _passes)
_OTHER = partial(Inputs, by_rows=False, context=_other_first_values)
_SAME = partial(Inputs, by_rows=False, context=_same_first_values)
_add = partial(
    add_twin,
    family="nonlocal_energy",
    source="Mitigating Over-smoothing in Transformers via Regularized Nonlocal Functionals",
    numerics=_NUMERICS,
)
_neutreno = partial(_add, layer=Neutreno, build=_build(relaxed=False))
_explicit_steps = partial(_neutreno, inputs=_SAME(pairing="self"), covers=_is_explicit)
_safe_steps = partial(
    _neutreno, build=_build(relaxed=True), inputs=_SAME(pairing="cross"), covers=_is_safe
)
_of_solved = partial(
    _add,
    relation=Identity(1e-8, evidence="solver"),
    equation="NT-FP",
    layer=Solved,
    build=_build_solved(_build(relaxed=False)),
    covers=_solves_neutreno,
    numerics=Numerics(_logit_range, _passes, promised=_measure_promise),
    derivatives=Derivatives(twice=()),
)
_neutreno(
    name="neutreno-attention",
    relation=Identity(certificate=_certify_steps),
    equation="NT-22",
    options=_list_options(relaxed=False)
    | {
        "iterated": _build(relaxed=False, n_iter=3, learnable=False),
        "relaxed": _build(relaxed=True, n_iter=2),
        "dot-products": lambda q, k, v: Neutreno(Softmax(), _LAM),
    },
    solve=_solve,
    inputs=_OTHER(),
)
_neutreno(
    name="neutreno-safe-attention",
    relation=Identity(),
    equation="NT-rel",
    build=_build(relaxed=True),
    solve=_solve,
    inputs=_OTHER(),
    covers=lambda layer: layer.relaxed,
)
_neutreno(
    name="neutreno-gradient-step",
    relation=Identity(certificate=_certify_steps),
    equation="NT-26",
    options=_list_options(relaxed=False),
    solve=_solve_gradient_step,
    inputs=_OTHER(pairing="self"),
    covers=lambda layer: _is_explicit(layer) and layer.n_iter == 1,
)
_explicit_steps(
    name="neutreno-iterates",
    relation=Iterate(certificate=_certify_steps),
    equation="NT-24",
    options=_list_options(relaxed=False),
    solve=_solve_iterates,
)
_safe_steps(
    name="neutreno-safe-iterates",
    relation=Iterate(certificate=_certify_steps),
    equation="NT-rel",
    options=_list_options(relaxed=True),
    solve=_solve_iterates,
)
_safe_steps(
    name="neutreno-limit",
    relation=FixedPointLimit(n_iter=100, evidence="solver"),
    equation="NT-FP",
    solve=_solve_fixed_point,
    inputs=_OTHER(pairing="cross"),
)
_explicit_steps(
    name="neutreno-energy",
    relation=Bound(sides=_bound_energies),
    equation="NT-CONV",
    solve=_solve_iterates,
)
_explicit_steps(
    name="neutreno-rate",
    relation=Bound(sides=_bound_distances),
    equation="NT-CONV",
    solve=_solve_iterates,
)
_safe_steps(
    name="neutreno-safe-rate",
    relation=Bound(sides=_bound_safe_distances),
    equation="NT-rel",
    solve=_solve_iterates,
)
_of_solved(
    name="neutreno-solved",
    options={
        "relaxed": _build_solved(_build(relaxed=True)),
        "penalties-of-heads": _build_solved(_build_heads(relaxed=False)),
    },
    solve=lambda layer, call: _solve_fixed_point(layer.base, call),
    inputs=_OTHER(pairing="cross"),
)
_of_solved(name="neutreno-energy-minimum", solve=_solve_minimum, inputs=_OTHER(pairing="self"))
