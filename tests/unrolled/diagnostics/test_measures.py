"""Each measure against its definition or the solver of the same name, in float64."""

import math

import numpy as np
import pytest
import torch
from torch.nn import functional as F
from torch.testing import assert_close

from twinsolve import solvers
from twinsolve.unrolled import Gaussian
from twinsolve.unrolled import diagnostics as d

from ...public import public
from ..draws import tokens

X = tokens(2, 3, 7, 4)
Q, K, V = (tokens(2, 3, 7, 4, seed=seed) for seed in (1, 2, 3))
A = torch.softmax(2 * tokens(2, 3, 7, 7, seed=4), dim=-1)
ZERO = {"atol": 1e-12, "rtol": 0}


def cosines(x, y=None):
    """Of all rows with all rows; of zeros they are zero."""
    x, y = (F.normalize(z, dim=-1) for z in (x, x if y is None else y))
    return x @ y.mT


def mean_over_pairs(c):
    n = c.shape[-1]
    return (c.sum(dim=(-2, -1)) - c.diagonal(dim1=-2, dim2=-1).sum(dim=-1)) / (n * (n - 1))


def mean_of_own(c):
    return c.diagonal(dim1=-2, dim2=-1).mean(dim=-1)


def each(function, *tensors):
    """The function on every matrix of batches of shape (2, 3, ...)."""
    values = [[float(function(*(t[b, h] for t in tensors))) for h in range(3)] for b in range(2)]
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize("absolute", [False, True])
def test_token_similarity_is_the_mean_over_pairs_nt_e3_ao_76(absolute):
    x = X.clone()
    x[0, 0, 2] = 0
    expected = cosines(x).abs() if absolute else cosines(x)
    assert_close(d.token_similarity(x, absolute=absolute), mean_over_pairs(expected), **ZERO)
    assert d.token_similarity(x[..., :1].abs() + 1, absolute=absolute).min() > 1 - 1e-12


def test_a_single_token_has_no_similarity():
    with pytest.raises(ValueError, match="x: needs at least two tokens, got 1"):
        d.token_similarity(X[..., :1, :])
    with pytest.raises(ValueError, match="A: needs at least two keys, got 1"):
        d.map_similarity(A[..., :1])


@pytest.mark.parametrize("name", ["high_frequency_share", "condition_number"])
def test_token_measures_are_those_of_the_solvers(name):
    solved = public("solvers")[name]
    assert_close(getattr(d, name)(X), each(lambda x: solved(x.numpy()), X), atol=0, rtol=1e-12)


def test_spectrum_is_that_of_the_solver_ao_spec():
    spectrum, intensity = d.attention_spectrum(A)
    for b in range(2):
        for h in range(3):
            expected, bands = solvers.spectral_filtering.attention_spectrum(A[b, h].numpy())
            assert_close(spectrum[b, h].numpy(), expected, **ZERO)
            assert_close(intensity[b, h].numpy(), bands, **ZERO)
    first = torch.zeros(7, dtype=spectrum.dtype)
    first[0] = 1
    assert_close(spectrum[..., 0], first.expand(2, 3, 7), **ZERO)


def test_map_similarity_is_over_columns_ao_75():
    B = torch.softmax(tokens(2, 3, 7, 7, seed=5), dim=-1)
    assert_close(d.map_similarity(A), mean_over_pairs(cosines(A.mT).abs()), **ZERO)
    assert_close(d.map_similarity(A, B), mean_of_own(cosines(A.mT, B.mT).abs()), **ZERO)
    assert_close(d.map_similarity(A, A), torch.ones(2, 3, dtype=torch.float64), **ZERO)
    with pytest.raises(ValueError, match="B: must have the shape"):
        d.map_similarity(A, B[..., :6])


def test_logits_are_the_sum_of_four_parts_if_21():
    x, p = tokens(7, 6), tokens(7, 6, seed=1)
    w_q, w_k = tokens(6, 4, seed=2), tokens(6, 4, seed=3)
    parts = d.logit_parts(x, p, w_q, w_k)
    assert_close(sum(parts), ((x + p) @ w_q) @ ((x + p) @ w_k).T / 2, **ZERO)
    assert_close(parts.token_position, x @ w_q @ w_k.T @ p.T / 2, **ZERO)
    assert_close(parts.position_token, p @ w_q @ w_k.T @ x.T / 2, **ZERO)
    scaled = d.logit_parts(x, p, w_q, w_k, scale=1.0)
    assert_close(scaled.position_position, 2 * parts.position_position, **ZERO)
    with pytest.raises(ValueError, match="positions: must have"):
        d.logit_parts(x, p[:5], w_q, w_k)


def test_energies_are_those_of_the_solvers_nt_5():
    def J(u, k):
        return solvers.smoothness(u.numpy(), (k + k.T).numpy())

    def E(u, f, k):
        return solvers.regularized_energy(u.numpy(), f.numpy(), (k + k.T).numpy(), 0.7)

    assert_close(d.attention_smoothness(V, A), each(J, V, A), atol=0, rtol=1e-12)
    found = d.attention_energy(V, Q, A, lam=0.7)
    assert_close(found, each(E, V, Q, A), atol=0, rtol=1e-12)


def test_gradient_cosine_nt_t4():
    def step(rows):
        weights = torch.exp(rows @ K.mT / math.sqrt(K.shape[-1]))
        return weights.sum(dim=-1, keepdim=True) * V - weights @ V

    expected = mean_of_own(cosines(step(K), step(Q)))
    assert_close(d.gradient_cosine(Q, K, V), expected, atol=1e-10, rtol=0)


def test_method_noise_is_that_of_the_solver():
    def loop(a, v):
        noise = solvers.boosting.method_noise(a.numpy(), v.numpy())
        return np.linalg.norm(noise) / np.linalg.norm(v.numpy())

    assert_close(d.method_noise_share(V, A @ V), each(loop, A, V), **ZERO)
    assert (d.method_noise_share(0 * V, V * 0) == 0).all()


def test_jacobian_with_frozen_attention_is_a_kronecker_product_sk_jac():
    a, w = A[0, 0], tokens(4, 3, seed=6)
    found = d.jacobian_spectrum(lambda x: a @ x @ w, X[0, 0])
    expected = torch.linalg.svdvals(torch.kron(a, w.T.contiguous()))
    assert_close(found, expected, atol=1e-12, rtol=0)
    kappa = found[0] / found[-1]
    assert_close(kappa, d.condition_number(a) * d.condition_number(w), atol=0, rtol=1e-8)


def test_lipschitz_constant_is_the_largest_singular_value():
    def function(x):
        return Gaussian(1.3)(x, x, x)

    x = X[0, 0]
    largest = d.jacobian_spectrum(function, x)[0]
    assert_close(d.lipschitz_constant(function, x, n_iter=2000), largest, atol=0, rtol=1e-6)
    assert d.lipschitz_constant(function, x, n_iter=2) <= largest * (1 + 1e-12)
    assert d.lipschitz_constant(lambda x: 0 * x, x) == 0
    with pytest.raises(ValueError, match="n_iter: must be a whole number >= 1"):
        d.lipschitz_constant(function, x, n_iter=0)


def test_cosines_do_not_depend_on_the_size_of_tokens_and_columns():
    """In float32 squares of 1e-25 are zero; columns that nobody attends to are that small."""
    size = 1e-25
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(6, 4, generator=generator, dtype=torch.float64)
    tiny = (size * x).float()
    rtol = 1e-5
    for absolute in (False, True):
        expected = d.token_similarity(x, absolute=absolute)
        found = d.token_similarity(tiny, absolute=absolute).double()
        assert_close(found, expected, atol=rtol, rtol=rtol)
    A = x.abs().float()
    faint = A * torch.tensor([size, 1.0, 1.0, size])
    assert_close(d.map_similarity(faint), d.map_similarity(A), atol=rtol, rtol=rtol)
    assert_close(d.map_similarity(faint, A), torch.ones(()), atol=rtol, rtol=rtol)
    q, k, v = torch.randn(3, 6, 4, generator=generator)
    assert_close(d.gradient_cosine(q, k, size * v), d.gradient_cosine(q, k, v), atol=1e-5, rtol=0)


def test_tokens_of_lower_rank_have_no_condition_number_whatever_the_rounding_sk_4():
    generator = torch.Generator().manual_seed(0)
    left, right = torch.randn(2, 6, 3, generator=generator, dtype=torch.float64)
    x = left @ right.mT
    assert torch.linalg.svdvals(x)[-1] > 0
    assert d.condition_number(x).isinf()
    assert d.condition_number(left).isfinite()


def wide_energies(u, k, f, lam, visible):
    """In numbers whose exponential does not overflow before exponents of 11000."""
    u, k, f = (x.numpy().astype(np.longdouble) for x in (u, k, f))
    weights = np.exp(k @ k.T / np.sqrt(np.longdouble(k.shape[1]))) * visible.numpy()
    smooth = (weights * ((u[:, None] - u) ** 2).sum(axis=2)).sum() / 4
    fidelity = lam / 2 * (weights.sum(axis=1) * ((u - f) ** 2).sum(axis=1)).sum()
    return float(smooth / weights.sum()), float((smooth + fidelity) / weights.sum())


@pytest.mark.skipif(np.finfo(np.longdouble).maxexp < 16384, reason="needs longer exponents")
@pytest.mark.parametrize(("masks", "size"), [("none", 1.0), ("causal", 40.0), ("both", 40.0)])
def test_kernel_energies_are_exact_where_exponentials_overflow(masks, size):
    mask = torch.rand(7, 7, generator=torch.Generator().manual_seed(0)) < 0.7
    arguments = {
        "mask": mask if masks in ("pairs", "both") else None,
        "is_causal": masks in ("causal", "both"),
    }
    visible = torch.ones(7, 7, dtype=torch.bool) if arguments["mask"] is None else mask
    visible = visible.tril() if arguments["is_causal"] else visible
    keys, lam = size * K, torch.tensor([0.2, 0.6, 1.0]).double()[:, None, None]
    if size > 1:
        assert torch.exp(keys @ keys.mT / 2).isinf().any()
    J = d.kernel_energy(V, keys, **arguments)
    E = d.kernel_energy(V, keys, f=Q, lam=lam, **arguments)
    for b in range(2):
        for h in range(3):
            expected = wide_energies(V[b, h], keys[b, h], Q[b, h], float(lam[h]), visible)
            # Exponents of size^2 are rounded to eps.
            close = {"atol": 1e-13, "rtol": 1e-14 * (1 + size**2)}
            assert_close(J[b, h].item(), expected[0], **close)
            assert_close(E[b, h].item(), expected[1], **close)


def test_a_kernel_without_pairs_has_no_energy():
    hidden = torch.zeros(7, 7, dtype=torch.bool)
    assert (d.kernel_energy(V, K, f=Q, lam=0.6, mask=hidden) == 0).all()


def test_nonzero_share_counts_visible_entries():
    sparse = A * (A > 0.1)
    visible = torch.rand(2, 1, 7, 7, generator=torch.Generator().manual_seed(0)) < 0.6
    for where in (None, visible, visible[:, :, :1]):
        seen = torch.ones(2, 3, 7, 7) if where is None else where.expand(2, 3, 7, 7).float()
        expected = ((sparse != 0) * seen).sum(dim=(-2, -1)) / seen.sum(dim=(-2, -1))
        assert_close(d.nonzero_share(sparse, where), expected, check_dtype=False)
    assert d.nonzero_share(sparse, torch.zeros(7, 7, dtype=torch.bool)).eq(0).all()
