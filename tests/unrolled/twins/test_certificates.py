"""Certificates of twins: zero at solutions, and the only witness of a fault on both sides."""

from collections import Counter
from dataclasses import replace
from itertools import combinations, pairwise

import numpy as np
import pytest
import torch
from scipy.special import softmax
from sklearn.linear_model import Ridge

from twinsolve.solvers import (
    ista,
    locally_linear_weights,
    low_rank_self_expression,
    sinkhorn,
    sparse_code,
    sparsemax,
)
from twinsolve.unrolled.twins import Bound, HeadCall, Identity, Limit, Rate
from twinsolve.unrolled.twins.certificates import (
    affine_residual,
    balanced_residual,
    entropic_residual,
    gradient_residual,
    mean_residual,
    nuclear_residual,
    projection_residual,
    proximal_residual,
    ridge_residual,
)
from twinsolve.unrolled.twins.relations import compare_outputs

from .conftest import TWINS, built, small_inputs

CERTIFIED = [name for name, twin in TWINS.items() if twin.relation.certificate is not None]


# What they solve does not change with the size of their keys, or of all tokens.
SCALE_FREE = {
    "spatial-gaussian", "locally-linear", "relative-self-expression-iterates",
    "learned-self-expression-recursion", "feat-scale",
}  # fmt: skip


ROUNDING = 1e-12


def test_evidence_is_what_a_twin_has():
    for twin in TWINS.values():
        if isinstance(twin.relation, Bound):
            assert twin.evidence == "bound"
        elif isinstance(twin.relation, Rate | Limit):
            assert twin.evidence == "certificate"
        elif twin.evidence == "certificate":
            assert twin.relation.certificate is not None
        else:
            assert twin.evidence == "solver" or twin.relation.certificate is None


def test_few_twins_are_formulas_written_again():
    """But for models that denoise."""
    layers = [twin for twin in TWINS.values() if ".models." not in twin.layer.__module__]
    counts = Counter(twin.evidence for twin in layers)
    assert set(counts) == {"solver", "certificate", "formula", "bound"}
    assert counts["formula"] <= 25


def leaked(out, inputs):
    """A share of the mean of all values in every row."""
    return out + 0.01 * (inputs[-1].mean(-2, keepdims=True) - out)


def with_shared_fault(twin, fault):
    """Layer and solver with the same fault: the output of keys of another size, or a leak."""

    def faulty(function):
        def called(layer, *inputs, **context):
            call = inputs[0] if isinstance(inputs[0], HeadCall) else None
            inputs = inputs if call is None else call.tokens
            if fault == "scaled":
                q, k, v = inputs
                q, k = (1.1 * q if twin.inputs.pairing == "self" else q), 1.1 * k
                scaled = (q, k, v) if call is None else (replace(call, q=q, k=k),)
                return function(layer, *scaled, **context)
            out = function(layer, *(inputs if call is None else (call,)), **context)
            if twin.inputs.kind == "image":
                return out + 0.01 * (out.mean() - out)
            return leaked(out, inputs if twin.inputs.kind == "tokens" else (out,))

        return called

    inputs = replace(twin.inputs, apply=faulty(twin.inputs.apply))
    return replace(twin, inputs=inputs, solve=faulty(twin.solve))


@pytest.mark.parametrize("name", CERTIFIED)
def test_a_fault_of_both_sides_breaks_the_certificate_alone(name):
    """A leak, and keys of another size where there are some and the problem changes with it."""
    scaled = TWINS[name].inputs.kind == "tokens" and name not in SCALE_FREE
    for fault in ("leaked", "scaled") if scaled else ("leaked",):
        twin = with_shared_fault(TWINS[name], fault)
        inputs = small_inputs(twin, torch.float64)
        layer = built(twin, inputs)
        if TWINS[name].relation.name != "limit":  # there the solver's limit has the leak once
            assert compare_outputs(twin, layer, inputs, tolerance=twin.relation.tolerance).passed
        assert not twin.relation.measure(twin, layer, inputs).passed, fault


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.fixture
def logits(rng):
    return 3 * rng.standard_normal((6, 8))


def mixed(A, share=1e-6):
    return (1 - share) * A + share * A[:, ::-1]


def test_entropic_residual_is_zero_at_a_softmax_alone(logits):
    A = softmax(logits, axis=1)
    assert entropic_residual(A, logits) < ROUNDING
    assert 1e-8 < entropic_residual(mixed(A), logits) < 1e-5
    assert entropic_residual(softmax(1.01 * logits, axis=1), logits) > 1e-4
    dropped = np.where(A.max(axis=1, keepdims=True) > A, 0, 1.0)
    assert entropic_residual(dropped, logits) > 1e-2
    hidden = np.where(np.eye(6, 8) > 0, -np.inf, logits)
    assert entropic_residual(softmax(hidden, axis=1), hidden) < ROUNDING
    assert entropic_residual(A, hidden) > 1e-3


def test_entropic_residual_over_the_best_subsets(logits):
    def on(keys, row):
        a = np.zeros(8)
        a[list(keys)] = softmax(row[list(keys)])
        return a

    def value(a, row):
        return (a[a > 0] * (row[a > 0] - np.log(a[a > 0]))).sum()

    subsets = list(combinations(range(8), 3))
    ranked = [
        sorted((on(keys, row) for keys in subsets), key=lambda a, row=row: -value(a, row))
        for row in logits
    ]
    best, second = (np.stack([rows[place] for rows in ranked]) for place in (0, 1))
    assert entropic_residual(best, logits, n_largest=3) < ROUNDING
    assert entropic_residual(second, logits, n_largest=3) > 1e-4
    assert entropic_residual(softmax(logits, axis=1), logits, n_largest=3) == np.inf


def test_projection_residual_is_zero_at_a_sparsemax_alone(logits):
    A = sparsemax(logits)
    assert projection_residual(A, logits) < ROUNDING
    assert projection_residual(mixed(A), logits) > 1e-7
    assert projection_residual(softmax(logits, axis=1), logits) > 1e-2


def test_balanced_residual_is_zero_at_a_sinkhorn_limit_alone(rng):
    logits = rng.standard_normal((7, 7))
    P = sinkhorn(logits, tol=1e-13)
    assert balanced_residual(P, logits) < 1e-11
    assert balanced_residual(sinkhorn(1.01 * logits, tol=1e-13), logits) > 1e-5
    assert balanced_residual(softmax(logits, axis=1), logits) > 1e-2


def test_mean_and_gradient_residuals_are_zero_at_the_minimum_alone(rng):
    A, v = rng.random((5, 7)), rng.standard_normal((7, 3))
    u = A @ v / A.sum(axis=1, keepdims=True)

    def energy(x):
        return (A * ((x[:, None] - v) ** 2).sum(axis=-1)).sum(axis=1) / 2

    assert mean_residual(u, A, v) < ROUNDING
    assert 1e-7 < mean_residual(u + 1e-6, A, v) < 1e-5
    degrees = A.sum(axis=1)
    for offset, low, high in ((0.0, 0.0, ROUNDING), (1e-6, 1e-7, 1e-5)):
        x = u + offset
        residual = gradient_residual(energy, x, 0.0, curvature=degrees, unit=u)
        assert low <= residual <= high
    start = rng.standard_normal(u.shape)
    step = degrees[:, None] * (start - u)
    assert gradient_residual(energy, start, step, curvature=degrees, unit=u) < ROUNDING
    assert gradient_residual(energy, start, 1.01 * step, curvature=degrees, unit=u) > 1e-4


@pytest.mark.parametrize("nonnegative", [False, True])
def test_proximal_residual_is_zero_at_steps_of_ista_alone(rng, nonnegative):
    q, k = rng.standard_normal((5, 4)), rng.standard_normal((8, 4))
    step = 0.9 / np.linalg.norm(k, 2) ** 2
    C = [np.zeros((5, 8))] + [
        ista(q, k, lam=0.4, n_iter=n, step=step, nonnegative=nonnegative).coef for n in (1, 2)
    ]
    settings = {"step": step, "lam": 0.4, "nonnegative": nonnegative}
    for before, after in pairwise(C):
        assert proximal_residual(after, before, q, k, **settings) < ROUNDING
        assert proximal_residual(after * (1 + 1e-6), before, q, k, **settings) > 1e-7
        assert proximal_residual(after, before, q, k, **settings | {"lam": 0.41}) > 1e-4
        assert proximal_residual(after, before, q, k, **settings | {"step": 1.01 * step}) > 1e-4
    assert proximal_residual(C[2], C[0], q, k, **settings) > 1e-3
    solved = sparse_code(q, k, lam=0.4, tol=1e-13, nonnegative=nonnegative).coef.toarray()
    assert proximal_residual(solved, solved, q, k, **settings) < 1e-6


def test_ridge_and_nuclear_residuals_are_zero_at_solutions_alone(rng):
    q, k = rng.standard_normal((5, 4)), rng.standard_normal((8, 4))
    C = Ridge(alpha=0.3, fit_intercept=False, solver="svd").fit(k.T, q.T).coef_
    assert ridge_residual(C, q, k, lam=0.3) < ROUNDING
    assert ridge_residual(C, q, k, lam=0.31) > 1e-5
    low = low_rank_self_expression(k, lam=5.0)
    assert nuclear_residual(low, k, lam=5.0) < ROUNDING
    assert nuclear_residual(low, k, lam=5.1) > 1e-4
    assert nuclear_residual(low * (1 + 1e-6), k, lam=5.0) > 1e-8


def test_affine_residual_is_zero_at_locally_linear_weights_alone(rng):
    q, k = rng.standard_normal((5, 3)), rng.standard_normal((9, 3))
    distances = np.linalg.norm(q[:, None] - k, axis=-1)

    def residual(A, n_neighbors=4, reg=1e-2):
        return affine_residual(A, q, k, n_neighbors=n_neighbors, reg=reg, distances=distances)

    A = locally_linear_weights(k, n_neighbors=4, reg=1e-2, queries=q).toarray()
    assert residual(A) < ROUNDING
    assert residual(A, reg=1.1e-2) > 1e-5
    assert residual(A, n_neighbors=5) > 1e-5
    assert residual(A, n_neighbors=3) > 1e-3
    assert residual(2 * A) > 1e-1


def test_low_rank_codes_are_certified_where_keys_have_a_direction_of_rounding():
    twin = TWINS["low-rank-relative-penalty"]
    q, k, v = small_inputs(twin, torch.float64)
    k[..., 0] *= 1e-9
    layer = built(twin, (q, k, v))
    assert twin.relation.measure(twin, layer, (q, k, v)).passed


def test_a_certificate_is_held_to_the_tolerance_in_float64_alone():
    twin = TWINS["gaussian-attention"]
    for dtype, tolerance, passed in (
        (torch.float64, 1e-10, False),
        (torch.float64, 1e-8, True),
        (torch.float32, 1e-10, True),
    ):
        inputs = small_inputs(twin, dtype)
        relation = Identity(tolerance, certificate=lambda twin, layer, inputs: 1e-9)
        assert relation.measure(twin, built(twin, inputs), inputs).passed == passed
