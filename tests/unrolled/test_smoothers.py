"""The base smoothers beyond softmax and Gaussian attention: origins, limits, laws, bad inputs."""

from functools import partial

import numpy as np
import pytest
import torch
from torch.nn.functional import elu
from torch.testing import assert_close

from twinsolve.solvers import least_squares_self_expression, nadaraya_watson, sparsemax
from twinsolve.solvers.image_filters import bilateral_matrix
from twinsolve.solvers.kernel_smoothing import simplex_projection_residual
from twinsolve.solvers.spectral_filtering import high_frequency_share
from twinsolve.unrolled import (
    Call,
    CrissCross,
    Gaussian,
    Kernel,
    Linear,
    Local,
    Logistic,
    Softmax,
    Sparsemax,
    SpatialGaussian,
    Symmetric,
    TopK,
)
from twinsolve.unrolled.kernel_smoothing import FeatureKernel, elu_features, project_on_simplex
from twinsolve.unrolled.kernel_smoothing.simplex import sorted_threshold


def tokens(*shape, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=dtype)


def qkv(*shape):
    shape = shape or (2, 3, 9, 5)
    return tuple(tokens(*shape, seed=seed) for seed in range(3))


def saved_numbers(operator, n, **masks):
    """How many numbers autograd keeps for the backward pass."""
    kept = {}

    def pack(x):
        kept[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes() // x.element_size()
        return x

    q, k, v = (x.requires_grad_() for x in qkv(1, 1, n, 8))
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        operator.double()(q, k, v, **masks)
    return sum(kept.values())


@pytest.mark.parametrize(
    "operator",
    [
        Kernel("exponential", 1.0), FeatureKernel(), Linear(), Local(3), Local(1, width=32),
        CrissCross(32), TopK(4), SpatialGaussian(2.0), Symmetric(), Sparsemax(), Logistic(8),
        Logistic(8, negative_slope=0.2),
    ],
    ids=repr,
)  # fmt: skip
@pytest.mark.parametrize("is_causal", [False, True])
def test_memory_kept_for_the_backward_pass_is_linear(operator, is_causal):
    few, many = (saved_numbers(operator, n, is_causal=is_causal) for n in (1024, 2048))
    assert many <= 2.2 * few
    assert many < 2048**2 / 4


def test_kernels_by_name_are_their_fused_forms():
    q, k, v = qkv()
    found = Kernel("exponential", 5**0.25)(q, k, v)
    assert_close(found, Softmax()(q, k, v), atol=1e-13, rtol=0)
    assert_close(Kernel("gaussian", 0.7)(q, k, v), Gaussian(0.7)(q, k, v), atol=1e-12, rtol=0)


def test_laplace_has_the_distance_itself_in_its_exponent():
    """Minor errata of SE: exp(-dist^2) with the squared distance is another kernel."""
    q, k, v = qkv(7, 4)
    found = Kernel("laplace", 0.8)(q, k, v).numpy()
    expected = nadaraya_watson(q, k, v, bandwidth=0.8, kernel="laplace")
    np.testing.assert_allclose(found, expected, atol=1e-13)
    printed = torch.softmax(-((torch.cdist(q, k) / 0.8) ** 2), dim=-1) @ v
    assert np.abs(printed.numpy() - expected).max() > 1e-2


@pytest.mark.parametrize("make", [partial(Kernel, "laplace"), SpatialGaussian, Gaussian])
def test_each_head_has_its_own_bandwidth(make):
    q, k, v = qkv()
    operator = make(1.0, num_heads=3, learnable=True, dtype=torch.float64)
    bandwidths = torch.tensor([0.5, 1.0, 3.0], dtype=torch.float64)
    with torch.no_grad():
        operator.bandwidth.log.copy_(bandwidths.log()[:, None, None])
    found, matrix = operator(q, k, v), operator.matrix(q, k)
    for head, bandwidth in enumerate(bandwidths.tolist()):
        expected = make(bandwidth)(q[:, head], k[:, head], v[:, head])
        assert_close(found[:, head], expected, atol=1e-12, rtol=0)
        assert_close(matrix[:, head] @ v[:, head], expected, atol=1e-12, rtol=0)


def test_keys_on_queries_have_finite_gradients():
    q, _, v = (x.requires_grad_() for x in qkv())
    Kernel("laplace", 1.0)(q, q, v).square().sum().backward()
    assert torch.isfinite(q.grad).all()


def test_elu_features_keep_their_digits():
    x = tokens(200)
    assert_close(elu_features(x), elu(x) + 1, atol=1e-15, rtol=0)
    low = torch.tensor([-14.0])
    assert_close(elu_features(low).double(), low.double().exp(), atol=0, rtol=1e-6)
    x = torch.tensor([-1.0, 0.0, 1.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.grad(elu_features(x).sum(), x)[0].tolist() == [np.exp(-1.0), 1.0, 1.0]


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


@pytest.mark.parametrize("operator", [Linear(), FeatureKernel(), Logistic(5)], ids=repr)
@pytest.mark.parametrize(("n_queries", "n_keys"), [(300, 300), (100, 300), (1, 5)])
def test_causal_chunks_are_the_explicit_matrix(operator, n_queries, n_keys):
    q, k, v = tokens(3, n_queries, 5), tokens(3, n_keys, 5, seed=1), tokens(3, n_keys, 2, seed=2)
    found = operator.double()(q, k, v, is_causal=True)
    A = operator.matrix(q, k, is_causal=True)
    assert (A.triu(n_keys - n_queries + 1) == 0).all()
    assert_close(found, A @ v, atol=1e-11, rtol=1e-11)


def test_linear_attention_is_ridge_with_a_large_penalty_diagonal_included():
    """SE-14 and erratum E3-j: the limit keeps c_ii = |x_i|^2 / lam."""
    x = tokens(8, 5)
    lam = 1e9
    A = Linear(scale=1 / lam).matrix(x, x).numpy() * lam
    ridge = lam * least_squares_self_expression(x.numpy(), lam=lam)
    np.testing.assert_allclose(ridge, A, atol=1e-6)
    np.testing.assert_allclose(A.diagonal(), x.square().sum(dim=-1))
    without = lam * least_squares_self_expression(x.numpy(), lam=lam, zero_diagonal=True)
    assert np.abs(without - A).max() > 1
    assert Linear().scale == 1 / 16


@pytest.mark.parametrize(
    ("operator", "width"),
    [(Local(2), 1), (Local(1, width=20), 20), (CrissCross(20), 20)],
    ids=str,
)
def test_neighbours_across_blocks_and_at_the_border(operator, width):
    """600 tokens are three blocks of queries; the last row of the grid is whole."""
    q, k, v = qkv(600, 4)
    rows, columns = np.divmod(np.arange(600), width)
    near = np.array(
        [
            [
                operator_sees(operator, abs(rows[i] - rows[j]), abs(columns[i] - columns[j]))
                for j in range(600)
            ]
            for i in range(600)
        ]
    )
    expected = Softmax()(q, k, v, mask=torch.from_numpy(near))
    assert_close(operator(q, k, v), expected, atol=1e-12, rtol=0)


def operator_sees(operator, rows, columns):
    if isinstance(operator, CrissCross):
        return rows == 0 or columns == 0
    return max(rows, columns) <= operator.radius


def test_windows_from_one_token_to_all():
    q, k, v = qkv()
    assert_close(Local(0)(q, k, v), v, atol=1e-14, rtol=0)
    assert_close(Local(9)(q, k, v), Softmax()(q, k, v), atol=1e-13, rtol=0)
    assert_close(Local(3, width=3)(q, k, v), Softmax()(q, k, v), atol=1e-13, rtol=0)
    assert_close(CrissCross(1, scale=0.3)(q, k, v), Softmax(0.3)(q, k, v), atol=1e-13, rtol=0)
    assert_close(TopK(9)(q, k, v), Softmax()(q, k, v), atol=1e-13, rtol=0)
    assert_close(TopK(50)(q, k, v), Softmax()(q, k, v), atol=1e-13, rtol=0)


def test_top_k_keeps_so_many_and_all_ties():
    q, k, _ = qkv()
    assert ((TopK(3).matrix(q, k) > 0).sum(dim=-1) == 3).all()
    # Whole numbers: their products are exact, and so are the ties.
    found = TopK(3, scale=1.0).matrix(q.round(), torch.ones_like(k))
    assert_close(found, torch.full((2, 3, 9, 9), 1 / 9, dtype=torch.float64))


def test_spatial_gaussian_is_the_bilateral_filter_of_infinite_range_width():
    """IF-13 at h_y = inf; erratum E0-b: h_p^2 is 2 s^2."""
    q, k, _ = qkv(12, 5)
    image = np.random.default_rng(0).random((3, 4))
    expected = bilateral_matrix(image, win_size=9, sigma_color=np.inf, sigma_spatial=1.3)
    found = SpatialGaussian(1.3, width=4).matrix(q, k).numpy()
    np.testing.assert_allclose(found, expected, atol=1e-14)
    without = SpatialGaussian(1.3 / 2**0.5, width=4).matrix(q, k).numpy()
    assert np.abs(without - expected).max() > 1e-2


def test_the_largest_key_is_chosen_in_the_precision_of_the_scores():
    q = torch.ones(1, 1, dtype=torch.float64)
    k = torch.tensor([[1.0], [1 + 1e-12], [0.5]], dtype=torch.float64)
    assert TopK(1).matrix(q, k).tolist() == [[0.0, 1.0, 0.0]]


def hard_rows():
    """Ties, one entry, rows of many groups with a rest, large, far apart and flat logits."""
    generator = np.random.default_rng(0)
    rows = [generator.standard_normal(n) for n in (1, 2, 7, 128, 129, 1000, 1030)]
    rows += [np.zeros(300), 1e6 * generator.standard_normal(500), 1e-9 * rows[5]]
    rows += [generator.integers(0, 3, 400).astype(float), np.r_[np.full(400, -np.inf), -5.0, -5.2]]
    rows += [np.r_[-5.0, np.full(400, -np.inf)], np.full(200, -np.inf)]
    rows += [0.03 * generator.standard_normal(n) for n in (100, 300)]  # with supports of dozens
    return rows


@pytest.mark.parametrize("row", range(16))
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_projection_on_the_simplex(row, dtype):
    z = torch.from_numpy(hard_rows()[row]).to(dtype)
    p = project_on_simplex(z)
    eps = torch.finfo(dtype).eps
    largest = float(z[z > -torch.inf].abs().max()) if (z > -torch.inf).any() else 0.0
    tolerance = 16 * eps * max(1.0, largest)
    np.testing.assert_allclose(p.numpy(), sparsemax(z.numpy()), atol=tolerance)
    assert simplex_projection_residual(z.numpy(), p.numpy()) <= 8 * tolerance
    by_sorting = (z - sorted_threshold(z)).relu()
    np.testing.assert_allclose(by_sorting.numpy(), p.numpy(), atol=8 * tolerance)


def test_projection_of_nan_is_nan_and_ends():
    assert project_on_simplex(torch.tensor([[torch.nan, 1.0], [0.0, 1.0]]))[0].isnan().all()


def test_gradient_of_the_projection_is_that_of_the_sorted_form():
    z = (3 * tokens(5, 400)).requires_grad_()
    g = tokens(5, 400, seed=1)
    found = torch.autograd.grad(project_on_simplex(z), z, g)[0]
    expected = torch.autograd.grad((z - sorted_threshold(z)).relu(), z, g)[0]
    assert_close(found, expected, atol=1e-13, rtol=0)
    assert torch.autograd.gradcheck(project_on_simplex, (tokens(4, 6).requires_grad_(),))


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


def test_size_of_logistic_logits():
    """AO-68b; erratum E1-j: |(|u_K| + |u_Q|) gamma + b| without bars around b is no bound."""
    operator = logistic(negative_slope=1.0)
    q, k, _ = (x / x.norm(dim=-1, keepdim=True) for x in qkv(1, 3, 200, 5))
    sizes = sum(w.norm(dim=(-2, -1)) for w in (operator.query_weight, operator.key_weight))
    logits = operator.logits(Call(q, k, k))
    largest = logits.abs().amax(dim=(0, 2, 3))
    b = operator.bias.flatten()
    assert (largest <= sizes + b.abs()).all()
    assert (largest > (sizes + b).abs()).any()
    half_range = (logits.amax(-1) - logits.amin(-1)) / 2
    assert (half_range.amax(dim=(0, 2)) <= operator.key_weight.norm(dim=(-2, -1))).all()


def test_query_term_and_bias_cancel_without_a_nonlinearity():
    operator, (q, k, v) = logistic(), qkv()
    expected = operator(q, k, v)
    with torch.no_grad():
        operator.query_weight.mul_(-7)
        operator.bias.add_(3)
    assert_close(operator(q, k, v), expected, atol=0, rtol=0)
    assert_close(operator.matrix(q, k) @ v, expected, atol=1e-13, rtol=0)
