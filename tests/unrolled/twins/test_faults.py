"""Faults that the twins have to find: one of each kind of relation, and what papers misprint.

`tests/faults` plants hundreds more.
"""

import pkgutil

import pytest
import torch

from twinsolve.unrolled.conditioning import inverse_cosine_transform
from twinsolve.unrolled.kernel_smoothing import spatial_gaussian
from twinsolve.unrolled.sparse_coding.code_blocks import _shrink_

from .conftest import TWINS, built, small_inputs


def passes(name, dtype=torch.float64):
    twin = TWINS[name]
    inputs = small_inputs(twin, dtype)
    return twin.relation.measure(twin, built(twin, inputs), inputs).passed


@pytest.fixture
def patch(monkeypatch):
    """Puts ``wrong(right)`` in the place of what a path below the layers names."""

    def put(path, wrong):
        target = f"twinsolve.unrolled.{path}"
        monkeypatch.setattr(target, wrong(pkgutil.resolve_name(target)))

    return put


def scaled(factor):
    return lambda right: lambda *args, **given: factor * right(*args, **given)


ISTA, LISTA = "sparse_coding.sparse_attention", "sparse_coding.learned_ista"
RESIDUALS, NETWORK = "boosting", "self_expression.self_expressive_network"
FAULTS = {
    # identity
    "bandwidth squared": (
        "gaussian-attention mahalanobis-attention twicing-attention",
        "kernel_smoothing.gaussian.Gaussian.bandwidth_for",
        lambda right: lambda self, q: right(self, q) ** 2,
    ),
    "another scale": (
        "linear-attention linear-attention-ridge-bound",
        "kernel_smoothing.linear.linear_attention",
        scaled(1.001),
    ),
    "half the ridge": (
        "ridge-self-expression ridge-attention ridge-attention-zero-diagonal ridge-large-penalty",
        "self_expression.ridge_attention._regularize",
        lambda right: lambda gram, lam: right(gram, lam / 2),
    ),
    "twice the regularisation": (
        "locally-linear locally-linear-attention",
        "locally_linear.affine_weights",
        lambda right: lambda q, k, *, reg, **given: right(q, k, reg=2 * reg, **given),
    ),
    "threshold off": (
        "sparsemax-attention",
        "kernel_smoothing.simplex.project_on_simplex",
        lambda right: lambda z: (right(z) - 1e-6).relu(),
    ),
    "heads mixed the wrong way round": (
        "re-attention",
        "spectral_filtering.reattention.ReAttention._mix_heads",
        lambda right: lambda self, A, mask, theta, *rest: right(self, A, mask, theta.mT, *rest),
    ),
    "width forgotten": (
        "self-expressive-network",
        f"{NETWORK}.SelfExpressiveNetwork._coefficients",
        lambda right: lambda self, *given: right(self, *given) * self.width,
    ),
    "gates": (
        "sparse-mixture-of-experts sparse-mixture-of-experts-ksvd",
        "sparse_coding.mixture_of_experts.SparseMixtureOfExperts.route",
        lambda right: lambda self, x: (right(self, x)[0] * 1.01, right(self, x)[1]),
    ),
    # init
    "start elsewhere": (
        "attn-scale-init",
        "spectral_filtering.attention_scaling.AttnScale._omega_for",
        lambda right: lambda self, q: self.omega + 1e-6,
    ),
    # iterates
    "step too long": (
        "sparse-coding-iterates self-expression-iterates",
        f"{ISTA}.safe_step",
        scaled(1.001),
    ),
    "parameters of another iteration": (
        "learned-ista-step learned-ista-recursion",
        f"{LISTA}.at_iteration",
        lambda right: lambda values, t: right(values, t + 1),
    ),
    "another way to the same solution": (
        "unrolled-admm unrolled-admm-new-points",
        "self_expression.unrolled_admm._RELAXATION",
        lambda right: 1.59,
    ),
    "another weight of earlier tokens": (
        "boosted-residual boosted-residual-limit boosted-residual-lipschitz generalized-residual",
        f"{RESIDUALS}.GeneralizedResidual._find_earlier_tokens",
        scaled(1.01),
    ),
    # limits and rates
    "diverging step": (
        "sparse-coding-rate self-expression-rate",
        f"{ISTA}.safe_step",
        scaled(6),
    ),
    "threshold doubled": (
        "sparse-coding-limit self-expression-limit",
        "sparse_coding.code_blocks._shrink_",
        lambda right: lambda z, one_sided: right(z / 2, one_sided) * 2,
    ),
    "weights of the dictionary": (
        "analytic-lista-limit",
        f"{LISTA}.analytic_weights",
        lambda right: lambda D: D,
    ),
    "early stop": (
        "neutreno-solved neutreno-energy-minimum",
        "solved_operator.FixedPoint",
        lambda right: lambda step, **given: right(step, **given | {"tol": 1e-4}),
    ),
    # bounds
    "skip connection": (
        "softmax-gain-bound softmax-depth-bound random-walk",
        "kernel_smoothing.softmax.Softmax.attend",
        lambda right: lambda self, call: (call.v + right(self, call)) / 2,
    ),
    "too short to mix": (
        "symmetric-attention symmetric-attention-mixing",
        "kernel_smoothing.softmax.Symmetric.attend",
        lambda right: lambda self, call: (call.v + right(self, call)) / 2,
    ),
    "features scaled twice": (
        "feat-scale feat-scale-gain",
        "spectral_filtering.feature_scaling.FeatScale.forward",
        lambda right: lambda self, y: right(self, right(self, right(self, y))),
    ),
    "twice the threshold": (
        "low-rank-self-expression low-rank-optimality low-rank-small-penalty",
        "self_expression.low_rank_attention._Filter",
        lambda right: lambda weights, threshold: right(weights, 2 * threshold),
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found_by_every_twin_of_the_layer(patch, fault):
    names, path, wrong = FAULTS[fault]
    patch(path, wrong)
    for name in names.split():
        assert not passes(name), name
    if fault == "another way to the same solution":
        assert passes("unrolled-admm-limit")


@pytest.mark.parametrize("name", ["gaussian-attention", "sparse-coding-iterates"])
def test_a_fault_is_found_in_float32_too(patch, name):
    fault = "bandwidth squared" if name == "gaussian-attention" else "threshold doubled"
    patch(*FAULTS[fault][1:])
    assert not passes(name, torch.float32)


NONNEGATIVE = [name for name in TWINS if name.startswith("nonnegative")]


@pytest.mark.parametrize("name", NONNEGATIVE)
def test_finds_a_signed_threshold(patch, name):
    """Erratum E3-f: the one-sided and the two-sided threshold solve different problems."""
    patch(
        "sparse_coding.code_blocks._shrink_",
        lambda right: lambda z, one_sided: _shrink_(z, False),
    )
    assert not passes(name)


@pytest.mark.parametrize(
    ("way", "option"), [("_smooth_rows", "sequence"), ("_smooth_grid", "class-tokens")]
)
def test_finds_a_missing_two_of_the_spatial_width(patch, way, option):
    """Erratum E0-b: h^2 is 2 s^2."""
    twin, right = TWINS["spatial-gaussian"], getattr(spatial_gaussian, way)
    inputs = small_inputs(twin, torch.float64)
    layer = twin.options[option](*(x.numpy() for x in inputs))
    assert twin.relation.measure(twin, layer, inputs).passed
    place = 2 if way == "_smooth_rows" else 1

    def narrow(*x):
        return right(*x[:place], x[place] / 2**0.5, *x[place + 1 :])

    patch(f"kernel_smoothing.spatial_gaussian.{way}", lambda right: narrow)
    assert not twin.relation.measure(twin, layer, inputs).passed


@pytest.mark.parametrize("name", ["token-graying-svd", "token-graying-condition"])
def test_finds_the_printed_listing(patch, name):
    """Erratum E4-i: the largest singular value becomes 1."""
    patch(
        "conditioning.TokenGraying.forward",
        lambda right: lambda self, X: right(self, X) / torch.linalg.matrix_norm(X, 2),
    )
    assert not passes(name)


def test_finds_the_printed_transform(patch):
    """Erratum E4-j: the matrix of the inverse."""
    patch(
        "conditioning.cosine_transform",
        lambda right: inverse_cosine_transform,
    )
    assert not passes("token-graying-dct")
