"""The base smoothers: limits, kernels that they reach, digits that they keep."""

import numpy as np
import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import elu
from torch.testing import assert_close

from twinsolve.solvers import sparsemax
from twinsolve.solvers.kernel_smoothing import simplex_projection_residual
from twinsolve.solvers.spectral_filtering import high_frequency_share
from twinsolve.unrolled import (
    Context,
    CrissCross,
    Elliptical,
    Gaussian,
    Kernel,
    Local,
    Logistic,
    Operator,
    Sinkhorn,
    Softmax,
    Sparsemax,
    Symmetric,
    TopK,
)
from twinsolve.unrolled.kernel_smoothing import (
    FeatureKernel,
    elliptical_weights,
    elu_features,
    gaussian_attention,
    project_on_simplex,
)
from twinsolve.unrolled.kernel_smoothing.logits import distances, split_features, squared_distances
from twinsolve.unrolled.kernel_smoothing.simplex import sorted_threshold, subtract_largest

from .draws import OnGpu, tokens
from .recording import BLOCKED, FUSED, dispatched_attention


def qkv(*shape):
    shape = shape or (2, 3, 9, 5)
    return tuple(tokens(*shape, seed=seed) for seed in range(3))


def test_keys_on_queries_have_finite_gradients():
    q, _, v = (x.requires_grad_() for x in qkv())
    Kernel("laplace", 1.0)(q, q, v).square().sum().backward()
    assert torch.isfinite(q.grad).all()


@pytest.mark.parametrize("shift", [0.0, 3e4])
def test_distances_and_their_gradients_keep_digits(shift):
    q, k = (tokens(2, 40, 16, seed=seed).float() + shift for seed in (0, 1))
    k[:, :30] = q[:, :30]
    k[:, 30:] = q[:, 30:] * 1.001
    wide = [x.double().requires_grad_() for x in (q, k)]
    expected = (wide[0][..., :, None, :] - wide[1][..., None, :, :]).square().sum(-1)
    on_gpu = q.as_subclass(OnGpu), k.as_subclass(OnGpu)
    squares = squared_distances(*on_gpu).as_subclass(torch.Tensor)
    assert_close(squares, expected.float(), atol=1e-12, rtol=1e-6)
    assert (squares >= 0).all()
    assert_close(distances(*on_gpu).as_subclass(torch.Tensor), squares.sqrt())
    weights = tokens(2, 40, 40, seed=2)
    gradients = torch.autograd.grad((weights * expected).sum(), wide)
    single = [x.requires_grad_() for x in (q, k)]
    found = torch.autograd.grad((weights.float() * squared_distances(*single)).sum(), single)
    for a, b in zip(found, gradients, strict=True):
        assert_close(a.double(), b, atol=1e-5 * float(b.abs().max()), rtol=0)


def outputs_and_gradients(operator, inputs, **given):
    inputs = [x.detach().requires_grad_() for x in inputs]
    out = operator(*inputs, **given)
    return out, *torch.autograd.grad(out.square().sum(), inputs)


@pytest.mark.parametrize(
    ("dtype", "far", "accuracy"),
    [(torch.float32, 300.0, 1e-5), (torch.float32, 1e6, 1e-5), (torch.bfloat16, 64.0, 0.03)],
)
def test_gaussian_attention_keeps_digits_where_no_centre_is_near_all_tokens(dtype, far, accuracy):
    """By differences; from one centre weights are off by 1e-3, which is the least of all, to 1."""
    sides = torch.where(torch.arange(30) % 2 == 0, far, -far)[:, None]
    q, k, v = (tokens(2, 30, 8, seed=seed) for seed in range(3))
    inputs = [x.to(dtype) for x in (q + sides, k + sides, v)]
    pairs = (tokens(30, 30) < 0.5) | torch.eye(30, dtype=torch.bool)
    padding = torch.arange(30)[None] < 21
    for given in ({}, {"is_causal": True}, {"mask": padding}, {"mask": pairs}):
        found = outputs_and_gradients(Gaussian(1.5), inputs, **given)
        exact = outputs_and_gradients(
            Kernel("gaussian", 1.5).double(), [x.double() for x in inputs], **given
        )
        for a, b in zip(found, exact, strict=True):
            assert_close(a.double(), b, atol=accuracy * float(b.detach().abs().max()), rtol=0)


def test_the_centre_is_near_visible_tokens_where_nobody_looks_how_far_they_are():
    """As on a GPU; padding of zeros, which are most of the keys, is far from all others."""
    seen = torch.arange(30)[None] < 10
    q, k, v = (tokens(2, 30, 8, seed=seed).float() for seed in range(3))
    q, k = (torch.where(seen.mT, x + 1e4, 0) for x in (q, k))
    expected = Gaussian(1.5).double()(q.double(), k.double(), v.double(), mask=seen)
    with sdpa_kernel(SDPBackend.MATH):
        found = Gaussian(1.5)(q, k, v, mask=seen)
    assert_close(found[:, :10].double(), expected[:, :10], atol=1e-5, rtol=0)


@pytest.mark.parametrize("kernel", ["gaussian", "laplace"])
@pytest.mark.parametrize("far", [slice(18, 40), slice(0, 22)])
def test_most_tokens_far_away_move_no_gradient_of_rows_that_do_not_see_them(kernel, far):
    """All to the same side; the law of far tokens moves them to both."""
    is_far = torch.zeros(40, dtype=torch.bool)
    is_far[far] = True
    mask = is_far[:, None] == is_far
    near, v = tokens(1, 40, 5).float(), tokens(1, 40, 3, seed=1).float()
    found = []
    for x in (near, near.masked_fill(is_far[:, None], 1e6)):
        q, k = (x.clone().requires_grad_() for _ in range(2))
        out = Kernel(kernel, 0.8)(q, k, v, mask=mask)[:, ~is_far]
        found.append(torch.autograd.grad(out.square().sum(), (q, k)))
    for a, b in zip(*found, strict=True):
        assert_close(b[:, ~is_far], a[:, ~is_far], atol=1e-5 * float(a.abs().max()), rtol=0)


def test_elu_features_keep_their_digits():
    x = tokens(200)
    assert_close(elu_features(x), elu(x) + 1, atol=1e-15, rtol=0)
    low = torch.tensor([-14.0])
    assert_close(elu_features(low).double(), low.double().exp(), atol=0, rtol=1e-6)
    x = torch.tensor([-1.0, 0.0, 1.0], dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(elu_features(x).sum(), x)
    assert slope.tolist() == [float(x.detach().exp()[0]), 1.0, 1.0]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_split_feature_keeps_24_bits(dtype):
    feature = torch.arange(8192.0)[:, None] * 0.3 / 2**3
    parts = split_features(feature, dtype).double().sum(dim=-1, keepdim=True)
    assert_close(parts, feature.double(), atol=2**-14, rtol=2**-22)


def test_the_metric_is_one_where_values_did_not_change():
    """And before the first change under a causal mask."""
    v = tokens(2, 9, 5)
    assert (elliptical_weights(v, v) == 1).all()
    previous = v.clone()
    previous[:, 4:] += torch.arange(5.0)
    causal = elliptical_weights(v, previous, is_causal=True)
    assert (causal[:, :4] == 1).all()
    assert (causal[:, 4:, 0] == 0).all()
    operator, same = Elliptical(), Context(values=v, previous_values=v)
    assert_close(operator(v, v, v, context=same), Softmax()(v, v, v), atol=1e-12, rtol=0)


def test_features_may_be_learned_and_vanish():
    torch.manual_seed(0)
    features = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Softplus()).double()
    operator, (q, k, v) = FeatureKernel(features), qkv()
    assert len(list(operator.parameters())) == 2
    weights = features(q) @ features(k).mT
    assert_close(operator(q, k, v), weights / weights.sum(-1, keepdim=True) @ v)
    q.requires_grad_()
    nothing = FeatureKernel(lambda x: x.relu())(q - 100, k, v)
    assert (nothing == 0).all()
    assert torch.isfinite(torch.autograd.grad(nothing.sum(), q)[0]).all()


def test_top_k_keeps_so_many_and_all_ties():
    q, k, _ = qkv()
    assert ((TopK(3).matrix(q, k) > 0).sum(dim=-1) == 3).all()
    # Whole numbers: their products are exact, and so are the ties.
    found = TopK(3, scale=1.0).matrix(q.round(), torch.ones_like(k))
    assert_close(found, torch.full((2, 3, 9, 9), 1 / 9, dtype=torch.float64))


def hard_rows():
    """Ties, one entry, rows of many groups with a rest, large, far apart and flat logits."""
    generator = np.random.default_rng(0)
    rows = [generator.standard_normal(n) for n in (1, 2, 7, 128, 129, 1000, 1030)]
    rows += [np.zeros(300), 1e6 * generator.standard_normal(500), 1e-9 * rows[5]]
    rows += [generator.integers(0, 3, 400).astype(float), np.r_[np.full(400, -np.inf), -5.0, -5.2]]
    rows += [np.r_[-5.0, np.full(400, -np.inf)], np.full(200, -np.inf)]
    rows += [0.03 * generator.standard_normal(n) for n in (100, 300)]  # with supports of dozens
    return rows


@pytest.mark.parametrize(
    ("row", "dtype"), [(i, torch.float64 if i % 2 else torch.float32) for i in range(16)]
)
def test_projection_on_the_simplex(row, dtype):
    z = torch.from_numpy(hard_rows()[row]).to(dtype)
    p = project_on_simplex(z)
    eps = torch.finfo(dtype).eps
    largest = float(z[z > -torch.inf].abs().max()) if (z > -torch.inf).any() else 0.0
    tolerance = 16 * eps * max(1.0, largest)
    np.testing.assert_allclose(p.numpy(), sparsemax(z.numpy()), atol=tolerance)
    assert simplex_projection_residual(z.numpy(), p.numpy()) <= 8 * tolerance
    centred = subtract_largest(z)
    by_sorting = (centred - sorted_threshold(centred)).relu()
    np.testing.assert_allclose(by_sorting.numpy(), p.numpy(), atol=8 * tolerance)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("shift", [-1e4, 0.0, 10.0, 1e3, 1e4])
@pytest.mark.parametrize("scale", [1.0, 100.0])
def test_projection_far_from_zero_sums_to_one(dtype, shift, scale):
    """Both ways, that of transforms too, on what the dtype holds of the logits."""
    drawn = torch.randn(20, 300, generator=torch.Generator().manual_seed(0))
    z = (scale * drawn + shift).to(dtype).requires_grad_()
    exact = project_on_simplex(z.double())
    for p in (project_on_simplex(z), torch.func.vmap(project_on_simplex)(z)):
        assert p.dtype == dtype
        assert_close(p.double(), exact, atol=2 * torch.finfo(dtype).eps, rtol=0)
        assert_close(p.double().sum(-1), torch.ones(20).double(), atol=4e-2, rtol=0)
    if dtype == torch.float32:
        found, expected = (torch.autograd.grad(x.square().sum(), z)[0] for x in (p, exact))
        assert_close(found, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("shape", [(2, 0), (0, 3), (0, 0), (2, 3, 0)])
def test_projection_of_nothing_is_empty_as_softmax_is(shape):
    z = torch.randn(shape, requires_grad=True)
    compiled = torch.compile(project_on_simplex, backend="eager")
    for project in (project_on_simplex, torch.func.vmap(project_on_simplex), compiled):
        p = project(z)
        assert p.shape == z.softmax(dim=-1).shape
        assert torch.autograd.grad(p.sum(), z)[0].shape == shape


def test_projection_of_nan_is_nan_and_ends():
    assert project_on_simplex(torch.tensor([[torch.nan, 1.0], [0.0, 1.0]]))[0].isnan().all()


@pytest.mark.parametrize("shift", [0.0, 1e4])
@pytest.mark.parametrize("kind", ["none", "causal", "pairs", "padding", "bias"])
def test_laplace_kernel_in_single_precision(kind, shift):
    """Tiles of products are as good as differences: in the output, and in all gradients."""
    generator = torch.Generator().manual_seed(0)
    q, k, v, g = (torch.randn(2, 3, 40, 5, generator=generator) for _ in range(4))
    k[:, :, :4] = q[:, :, :4]  # distances of 0, whose gradient is 0
    mask = {
        "pairs": torch.rand(40, 40, generator=generator) > 0.3,
        "padding": torch.arange(40) < torch.tensor([30, 7])[:, None, None, None],
        "bias": torch.randn(2, 3, 40, 40, generator=generator),
    }.get(kind)
    if kind == "pairs":
        mask[5] = False
    found = []
    for dtype in (torch.float32, torch.float64):
        torch.manual_seed(0)
        operator = Kernel("laplace", 1.5, num_heads=3, learnable=True, dtype=dtype)
        rows, keys = ((x + shift).to(dtype).requires_grad_() for x in (q, k))
        values = v.to(dtype).requires_grad_()
        bias = mask.to(dtype) if kind == "bias" else mask
        out = operator(rows, keys, values, mask=bias, is_causal=kind == "causal")
        inputs = (rows, keys, values, *operator.parameters())
        found.append([out, *torch.autograd.grad(out, inputs, g.to(dtype))])
    for single, double in zip(*found, strict=True):
        # That of the bandwidth is a sum over 3,200 pairs, of terms of up to 5.
        assert_close(single.double(), double, atol=1e-5, rtol=1e-6)


def test_laplace_kernel_of_tokens_far_apart_takes_differences():
    """Products in float64 would be off by 1e-8 of a distance of 1e9 between two clusters."""
    near = torch.tensor([[0.0, 0.0], [0.5, 0.0], [0.0, 2.0]])
    x = torch.cat([near, near + 2.0**30])[None]
    A = Kernel("laplace", 1.0)(x, x, torch.eye(6)[None])[0]
    assert_close(A[:3, :3], Kernel("laplace", 1.0).matrix(near, near), atol=1e-6, rtol=0)


@pytest.mark.parametrize("kind", ["none", "causal", "pairs", "bias"])
def test_sparsemax_in_tiles_is_the_projection_of_the_logits(kind):
    """With more keys than thresholds are sought for at once; supports are of dozens of keys."""
    generator = torch.Generator().manual_seed(0)
    q, k, v, g = (torch.randn(2, 300, 8, generator=generator).double() for _ in range(4))
    q, k, v = ((s * x).requires_grad_() for s, x in zip((0.1, 1.0, 1.0), (q, k, v), strict=True))
    mask, logits = None, q @ k.mT
    if kind == "pairs":
        mask = torch.rand(300, 300, generator=generator) > 0.3
        mask[5] = False
    if kind == "bias":
        mask = torch.randn(2, 300, 300, generator=generator).double()
    if kind == "causal":
        logits = logits.masked_fill(torch.ones(300, 300).triu(1) > 0, -torch.inf)
    elif mask is not None:
        logits = logits.masked_fill(~mask, -torch.inf) if kind == "pairs" else logits + mask
    expected = project_on_simplex(logits) @ v
    out = Sparsemax(1.0)(q, k, v, mask=mask, is_causal=kind == "causal")
    assert_close(out, expected, atol=1e-13, rtol=0)
    found, wanted = (torch.autograd.grad(x, (q, k, v), g) for x in (out, expected))
    assert_close(found, wanted, atol=1e-12, rtol=1e-12)


def logistic(**arguments):
    torch.manual_seed(0)
    operator = Logistic(5, num_heads=3, **arguments).double()
    with torch.no_grad():
        operator.bias.fill_(-2.0)
    return operator


def test_logistic_attention_has_rank_one_and_ends_all_high_frequencies():
    """AO-68: without a nonlinearity HC[A X] = 0; with the leaky ReLU of graph attention not."""
    q, k, v = qkv()
    out = logistic()(q, k, v).detach()
    assert max(high_frequency_share(x.numpy()) for x in out.flatten(0, 1)) < 1e-14
    assert torch.linalg.matrix_rank(logistic().matrix(q, k)).unique().tolist() == [1]
    leaky = logistic(negative_slope=0.2)(q, k, v).detach()
    assert min(high_frequency_share(x.numpy()) for x in leaky.flatten(0, 1)) > 1e-3


@pytest.mark.parametrize(
    ("shape", "additive"), [((64, 64), True), ((3, 64, 64), False), ((2, 1, 1, 64), True)]
)
def test_reaches_kernels_without_the_matrix_with_masks(shape, additive):
    """Of pairs, the one that computes logits in float64."""
    q = tokens(2, 3, 64, 16, dtype=torch.float32)
    mask = torch.ones(shape, dtype=torch.bool)
    mask = torch.zeros(shape) if additive else mask
    found = dispatched_attention(lambda: Gaussian(1.0)(q, q, q, mask=mask))
    assert found == {FUSED if shape[-2] == 1 else BLOCKED}


@pytest.mark.parametrize("mask", [None, torch.ones(64, 64, dtype=torch.bool), torch.zeros(64, 64)])
def test_far_from_the_origin_float32_stays_exact(mask):
    """EQUATIONS FF-4: 3e-3 or worse uncentred, 3e-7 centred."""
    x, v = tokens(64, 8) + 100, tokens(64, 4, seed=1)
    exact = Gaussian(1.0)(x.float().double(), x.float().double(), v)
    single = Gaussian(1.0)(x.float(), x.float(), v.float(), mask=mask)
    assert (single.double() - exact).abs().max() < 5e-6
    causal = Gaussian(1.0)(x.float(), x.float(), v.float(), is_causal=True)
    exact = Gaussian(1.0)(x.float().double(), x.float().double(), v, is_causal=True)
    assert (causal.double() - exact).abs().max() < 5e-6


@pytest.mark.parametrize("offset", [0, 300])
def test_gradients_far_from_the_origin_under_masks_of_pairs(offset):
    q, k, v = (tokens(40, 8, seed=seed).float() for seed in range(3))
    mask = (tokens(40, 40, seed=3) > 0) | torch.eye(40, dtype=torch.bool)
    inputs = [x.requires_grad_() for x in (q + offset, k + offset, v)]
    weight, gradients = tokens(40, 8, seed=4), []
    for dtype in (torch.float32, torch.float64):
        wide = [x.to(dtype) for x in inputs]
        out = Gaussian(1.0)(*wide, mask=mask)
        gradients.append(torch.autograd.grad((weight.to(dtype) * out).sum(), inputs))
    for found, exact in zip(*gradients, strict=True):
        assert (found - exact).abs().max() < 5e-6 * exact.abs().max()


@pytest.mark.parametrize("side", [4, 15, 16, 32])
def test_centre_is_amid_the_keys_whatever_a_few_of_them_are(side):
    """One column of an image is far away, and float32 keeps the digits of the others."""
    q, k, v = (tokens(2, side**2, 8, seed=seed) for seed in range(3))
    q, k = q + 1e4, k + 1e4
    k[:, ::side] += 1e5
    q, k, v = q.float(), k.float(), v.float()
    expected = Gaussian(1.0).matrix(q.double(), k.double()) @ v.double()
    assert_close(Gaussian(1.0)(q, k, v).double(), expected, atol=1e-4, rtol=0)


def test_entries_that_underflow_are_balanced_still():
    """A key far from all queries: in float32 its column is zero, and cannot be divided by."""
    q, k = torch.tensor([[0.0], [1.0], [2.0]]), torch.tensor([[0.0], [1.0], [20.0]])
    assert (Gaussian(1.0).matrix(q, k)[:, 2] == 0).all()
    expected = Gaussian(1.0).matrix(q.double(), k.double())
    for _ in range(5):
        expected = expected / expected.sum(-2, keepdim=True)
        expected = expected / expected.sum(-1, keepdim=True)
    found = Sinkhorn(Gaussian(1.0), n_iter=5).matrix(q, k)
    # Logits of 200 in float32, four times rounded.
    assert_close(found.double(), expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("offset", [0.0, 1e2, 1e4])
def test_balanced_rows_sum_to_one_wherever_tokens_lie(offset):
    """Logits of 1e8 round to 8; the potentials that cancel them must not do so once more."""
    q, k = ((tokens(1, 30, 8, seed=i) + offset).float() for i in range(2))
    P = Sinkhorn(Softmax()).matrix(q, k)
    assert_close(P.sum(dim=-1), torch.ones(1, 30), atol=1e-5, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("base", [Softmax(), Symmetric(), Local(2), CrissCross(4), Gaussian(1.0)])
def test_logits_of_half_precision_are_balanced_in_float32(base, dtype):
    """Logits of 1e5 overflow in float16, and round to 512 in bfloat16."""
    q, k = ((4 * tokens(2, 12, 8, seed=i) + 200).to(dtype) for i in range(2))
    expected = Sinkhorn(base).matrix(q.double(), k.double())
    assert_close(Sinkhorn(base).matrix(q, k).double(), expected, atol=4e-3, rtol=0)


def test_zeros_of_the_base_remain_and_give_no_nan():
    class Band(Operator):
        nonnegative = True

        def coefficients(self, call):
            q, k = call.q, call.k
            near = (torch.arange(9)[:, None] - torch.arange(9)).abs() < 2
            return torch.exp(q @ k.mT / 6).masked_fill(~near, 0)

    q, k, v = (x.requires_grad_() for x in qkv(2, 3, 9, 6))
    layer = Sinkhorn(Band(), n_iter=2000)
    P = layer.matrix(q, k)
    assert ((Band().matrix(q, k) == 0) == (P == 0)).all()
    assert (P.sum(-2) - 1).abs().max() < 1e-6
    layer.n_iter = 5
    layer(q, k, v).square().sum().backward()
    assert all(torch.isfinite(x.grad).all() for x in (q, k, v))


@pytest.mark.parametrize("form", ["plain", "causal", "padding", "pairs"])
@pytest.mark.parametrize(
    ("dtype", "far"), [(torch.float16, 1e3), (torch.bfloat16, 1e3), (torch.float32, 1e4)]
)
def test_queries_far_from_keys_that_are_near_each_other_lose_no_digits(form, dtype, far):
    """Their own norms cancel in the softmax, and are up to 1e9 here."""
    draw = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 24, 8, generator=draw) for _ in range(3))
    q, k, v = (far * q).to(dtype), (k / far).to(dtype), v.to(dtype)
    mask = {"padding": torch.arange(24)[None] < 20, "pairs": torch.ones(24, 24).tril(3) > 0}
    given = {"mask": mask.get(form), "is_causal": form == "causal"}
    found = gaussian_attention(q, k, v, bandwidth=1.0, **given)
    wide = q.double(), k.double()
    logits = wide[0] @ wide[1].mT - wide[1].square().sum(-1)[:, None] / 2
    seen = torch.ones(24, 24).tril() > 0 if form == "causal" else mask.get(form, logits == logits)
    expected = logits.masked_fill(~seen, -torch.inf).softmax(-1) @ v.double()
    error = (found.double() - expected).abs().max() / expected.abs().max()
    assert error <= 2 * max(torch.finfo(dtype).eps, 1e-6)
