"""Checks of a layer, and comparisons of coefficients."""

import numpy as np
import pytest
import torch
from torch import nn

import twinsolve
from twinsolve.datasets import load_photographs, make_noisy_crop, make_union_of_subspaces
from twinsolve.solvers import locally_linear_weights, sparse_code, sparse_self_expression
from twinsolve.solvers.sparse_coding import lasso_objective
from twinsolve.twins import catalogue, judging_twin
from twinsolve.unrolled import (
    LISTA,
    Attention,
    AttnScale,
    Bilateral,
    Context,
    Elliptical,
    Gaussian,
    LocallyLinear,
    Neutreno,
    NonLocalMeansAttention,
    Operator,
    ReAttention,
    Ridge,
    SelfExpressiveNetwork,
    Sinkhorn,
    Softmax,
    SparseCoding,
    TopK,
    Twicing,
    UnrolledADMM,
    replace_attention,
)

from ..unrolled import draws
from ..unrolled.integrations.examples import VisionAttention
from .conftest import built, small_inputs

pytestmark = pytest.mark.usefixtures("no_laws")


@pytest.fixture(scope="module")
def X():
    return make_union_of_subspaces(10, n_subspaces=3, n_features=12, noise=0.1, random_state=0)[0]


def test_a_trained_shell_is_correct_and_away_from_its_origin(X):
    torch.manual_seed(0)
    operator = SparseCoding(0.5, num_heads=2, learnable=True, zero_diagonal=True)
    layer = Attention(12, 2, operator=operator).double()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape))
    before = {name: value.clone() for name, value in layer.state_dict().items()}
    report = twinsolve.check(layer, X)
    assert report
    assert report.origin["distance"] > 1e-3
    assert all((layer.state_dict()[name] == value).all() for name, value in before.items())


def test_origin_is_the_problem_at_the_initial_parameters(X):
    layer = SparseCoding(0.1, n_iter=2000, zero_diagonal=True, learnable=True, dtype=torch.float64)
    with torch.no_grad():
        layer.lam.log.add_(np.log(5))
    report = twinsolve.check(layer, X)
    solved = sparse_self_expression(X, lam=0.1, tol=1e-10)
    present = sparse_self_expression(X, lam=0.5, tol=1e-10).coef
    expected = lasso_objective(X, X, present, lam=0.1).sum() - solved.objective.sum()
    assert report
    assert report.origin["gap"] == pytest.approx(expected / (X**2).sum(), rel=1e-3)
    assert report.origin["support_recall"] < 1


def test_half_precision_layers_are_judged_in_float64(X):
    dtype = torch.bfloat16

    class Silent(Gaussian):
        def forward(self, q, k, v, **_):
            return torch.zeros_like(v)

    report = twinsolve.check(Silent(0.5, learnable=True).to(dtype), X)
    assert not report
    report = twinsolve.check(SparseCoding(0.1, n_iter=500, learnable=True).to(dtype), X)
    assert report
    assert report.findings[0].details["dtype"] == "float64"
    assert report.findings[0].tolerance <= 1e-8


def test_logits_beyond_float32_are_judged_in_float64(X):
    report = twinsolve.check(Gaussian(1e-3), X.astype(np.float32))
    assert report
    (wide,) = report.findings
    assert (wide.details["dtype"], wide.tolerance) == ("float64", 1e-10)
    (single,) = twinsolve.check(Gaussian(0.5), X.astype(np.float32)).findings
    assert single.details["dtype"] == "float32"


def test_constant_tokens_do_not_hide_wrong_coefficients():
    class Wide(Gaussian):
        def bandwidth_for(self, q):
            return 1.5 * super().bandwidth_for(q)

    tokens = np.ones((6, 3)) + 1e-3 * np.random.default_rng(0).standard_normal((6, 3))
    assert twinsolve.check(Gaussian(1e-3), tokens)
    assert not twinsolve.check(Wide(1e-3), tokens)


def test_a_diverging_layer_is_judged_and_has_no_distance(X):
    report = twinsolve.check(SparseCoding(0.1, relative_step=60.0, n_iter=3000).double(), X)
    assert not report
    assert np.isnan(report.origin["distance"])


def test_image_layer_on_an_image(X):
    noisy, _ = make_noisy_crop(load_photographs().images[0], size=24, sigma=0.1, random_state=0)
    layer = NonLocalMeansAttention(
        0.2, patch_size=3, patch_distance=4, learnable=True, dtype=torch.float64
    )
    assert twinsolve.check(layer, noisy).origin["distance"] < 1e-12
    with torch.no_grad():
        layer.h.log.add_(0.5)
    for image in (noisy, noisy[None], noisy[None, None]):
        report = twinsolve.check(layer, image)
        assert report
        assert report.origin["distance"] > 1e-3
    with pytest.raises(ValueError, match="X: must be an image"):
        twinsolve.check(layer, noisy[0])


def test_shared_projection_is_checked_as_a_metric(X):
    layer = Attention(12, 1, operator=Gaussian(1.0)).double()
    assert twinsolve.check(layer, X).findings[0].law == "gaussian-attention"
    with torch.no_grad():
        layer.in_proj_weight[12:24] = layer.in_proj_weight[:12]
        layer.in_proj_bias.normal_()
        layer.in_proj_bias[12:24] = layer.in_proj_bias[:12]
    report = twinsolve.check(layer, X)
    assert report.findings[0].law == "mahalanobis-attention"
    assert report


def test_bad_input_is_named(X):
    with pytest.raises(LookupError, match="no twin is registered for Linear"):
        twinsolve.check(nn.Linear(2, 2), X)
    with pytest.raises(ValueError, match="layer: must be a module"):
        twinsolve.check("gaussian", X)
    with pytest.raises(ValueError, match="X: must have 12 columns, got 5"):
        twinsolve.check(Attention(12, 2, operator=Gaussian()), X[:, :5])
    with pytest.raises(ValueError, match="X: must have shape"):
        twinsolve.check(Gaussian(), X[0])
    with pytest.raises(ValueError, match=r"got shape \(1, 30, 12\); pass one sequence"):
        twinsolve.check(Gaussian(), X[None])
    with pytest.raises(ValueError, match="X: must not hold NaN"):
        twinsolve.check(Gaussian(), np.full((3, 2), np.nan))
    masked = np.ma.masked_equal(X, X[0, 0])
    for judge in (twinsolve.check, twinsolve.fit_origin, lambda *x: twinsolve.compare(*x, x[1])):
        with pytest.raises(ValueError, match="X: must not be a masked array"):
            judge(Gaussian(), masked)
    with pytest.raises(ValueError, match=r"X: must hold real numbers, got torch.complex128"):
        twinsolve.check(Gaussian(), X + 1j)
    for bad in (X[:0], np.where(X[0, 0] == X, np.nan, X)):
        with pytest.raises(ValueError, match=r"X: must (have at least one token|not hold NaN)"):
            twinsolve.compare(Gaussian(), np.eye(30), bad)
        with pytest.raises(ValueError, match=r"X: must (have at least one token|not hold NaN)"):
            twinsolve.check(Gaussian(), bad)
    with pytest.raises(LookupError, match="Unknown"):
        twinsolve.check(Attention(12, 2, operator=Unknown()), X)


class Unknown(Operator):
    pass


def test_compare_layers_solvers_and_coefficients(X):
    layer = SparseCoding(0.1, n_iter=20_000, zero_diagonal=True)

    def solve(X):
        return sparse_self_expression(X, lam=0.1, tol=1e-10)

    def objective(C):
        return float(lasso_objective(X, X, C, lam=0.1).sum())

    solution = solve(X)
    for second in (solve, solution, solution.coef, solution.coef.toarray()):
        numbers = twinsolve.compare(layer, second, X, objective=objective)
        assert numbers["distance"] < 1e-2
        assert -1e-9 < numbers["gap"] < 1e-4
        assert numbers["residual"] == pytest.approx(numbers["residual_reference"], rel=1e-3)
    lle = twinsolve.compare(lambda X: locally_linear_weights(X, n_neighbors=4), solution, X)
    assert lle["distance"] > 0.1
    assert "gap" not in lle
    assert twinsolve.compare(solution, solution, torch.from_numpy(X))["distance"] == 0


def test_attention_of_pytorch_has_coefficients(X):
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(12, 3, dropout=0.1)
    tokens = torch.from_numpy(X).float()
    weights = layer.eval()(tokens, tokens, tokens)[1].detach()
    assert twinsolve.compare(layer, weights, X)["distance"] < 1e-6
    assert twinsolve.compare(layer, weights[:, :9], X, keys=X[:9])["distance"] > 1e-3


STORED = {
    "bfloat16": lambda x: x.bfloat16(),
    "float16": lambda x: x.half(),
    "float8": lambda x: x.to(torch.float8_e4m3fn),
    "sparse": lambda x: x.to_sparse(),
    "sparse rows of bfloat16": lambda x: x.bfloat16().to_sparse_csr(),
    "bytes in the other order": lambda x: x.double().numpy().astype(">f8"),
    "float32 in the other order": lambda x: x.numpy().astype(">f4"),
    "long double": lambda x: x.numpy().astype(np.longdouble),
}


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
@pytest.mark.parametrize("name", STORED)
def test_numbers_may_be_stored_in_any_way(X, name):
    """Numbers with few digits, which every dtype has: all judges see the same."""
    tokens = (4 * torch.from_numpy(X)).round().clamp(-8, 8).float()
    C = (8 * Gaussian(2.0).matrix(tokens, tokens)).round() / 8
    stored, coefficients, keys = (STORED[name](x) for x in (tokens, C, tokens.flip(0)))
    other, problem = Gaussian(2.0), Ridge(1.0)
    expected = twinsolve.compare(C, other, tokens, keys=tokens.flip(0))
    assert twinsolve.compare(coefficients, other, stored, keys=keys) == expected
    assert twinsolve.compare(lambda *_: coefficients, other, stored, keys=keys) == expected
    fitted = (
        twinsolve.fit_origin(*x, problem=problem) for x in ((C, tokens), (coefficients, stored))
    )
    assert next(fitted) == next(fitted)
    assert twinsolve.check(other, stored)


def test_a_model_takes_an_array_in_any_order_of_bytes(X):
    class Alone(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = Attention(12, 2, operator=Gaussian(2.0))

        def forward(self, x):
            return self.attention(x[None], x[None], x[None])[0]

    assert twinsolve.check(Alone(), X.astype(">f8"))


def test_compare_names_what_it_cannot_use(X):
    with pytest.raises(TypeError, match="got Transformer; instead of a whole model pass one"):
        twinsolve.compare(nn.Transformer(12, 2, 1, 1, batch_first=True), np.eye(30), X)
    for source in ("ssc", NonLocalMeansAttention()):
        with pytest.raises(TypeError, match="must come from a layer, a function of X"):
            twinsolve.compare(source, np.eye(30), X)
    with pytest.raises(ValueError, match=r"coefficients: must have shape \(30, 30\)"):
        twinsolve.compare(np.eye(3), np.eye(30), X)


def test_the_context_of_the_caller_is_not_filled():
    """Otherwise a second check would take the first values of other tokens."""
    rng = np.random.default_rng(0)
    context = Context(previous_values=torch.from_numpy(rng.standard_normal((2, 9, 3))))
    layer = Attention(6, 2, operator=Elliptical(), dtype=torch.float64)
    for _ in range(2):
        assert twinsolve.check(layer, rng.standard_normal((9, 6)), context=context)
        assert context.values is None
        assert context.first_values is None
        assert context.first_tokens is None


def context_of(n, heads, width, seed=0):
    return Context(
        positions=draws.tokens(n, heads * width, seed=seed),
        first_values=draws.tokens(heads, n, width, seed=seed + 1),
        previous_values=draws.tokens(heads, n, width, seed=seed + 2),
    )


OF_CONTEXT = {
    "neutreno of twicing of bilateral": lambda: Neutreno(Twicing(Bilateral())),
    "scaled twicing of bilateral": lambda: AttnScale(Twicing(Bilateral()), num_heads=2),
    "balanced bilateral": lambda: Sinkhorn(Bilateral()),
    "neutreno of elliptical": lambda: Neutreno(Elliptical()),
}


@pytest.mark.parametrize("name", OF_CONTEXT)
def test_shells_are_checked_with_and_without_a_context(X, name):
    """What a correction wraps may need a context of its own."""
    assert twinsolve.check(OF_CONTEXT[name](), X)
    shell = redraw(Attention(12, 2, operator=OF_CONTEXT[name](), dtype=torch.float64))
    assert twinsolve.check(shell, X)
    context = context_of(len(X), 2, 6)
    given = twinsolve.check(shell, X, context=context)
    assert given
    other = twinsolve.check(shell, X, context=context_of(len(X), 2, 6, seed=1))
    assert other
    assert other.findings[0].error != given.findings[0].error


def redraw(layer):
    """Projections drawn anew, for tests that need no training."""
    torch.manual_seed(1)
    layer.reset_parameters()
    return layer


def test_a_context_is_taken_in_the_dtype_of_the_layer(X):
    shell = redraw(Attention(12, 2, operator=Bilateral(), dtype=torch.float64))
    positions = torch.randn(len(X), 12, generator=torch.Generator().manual_seed(0))
    assert positions.dtype == torch.float32
    context = Context(positions=positions)
    assert twinsolve.check(shell, X, context=context)
    with pytest.raises(ValueError, match="context: Bilateral needs positions"):
        twinsolve.compare(shell, np.eye(len(X)), X)
    found = twinsolve.compare(shell, np.eye(len(X)), X, context=context)
    assert found["residual_reference"] == 0
    with pytest.raises(ValueError, match="context: Bilateral needs positions"):
        twinsolve.fit_origin(shell, X, problem=Gaussian(1.0))
    origin = twinsolve.fit_origin(shell, X, problem=Gaussian(1.0), context=context)
    assert origin.distance <= origin.initial_distance


@pytest.mark.filterwarnings("ignore:Twicing")
def test_ridge_between_projections_is_held_against_regression_on_other_keys(X):
    """The twin of self-expression is of equal queries and keys alone."""
    operator = Twicing(Ridge(0.3, zero_diagonal=True))
    shell = redraw(Attention(12, 2, operator=operator, dtype=torch.float64))
    assert twinsolve.check(shell, X)
    assert twinsolve.check(operator, X)


def test_re_attention_is_judged_with_other_heads_than_those_it_is_built_with(X):
    operator = ReAttention(Softmax(), 2)
    assert twinsolve.check(operator, X)  # of any base, not only Gaussian
    assert twinsolve.check(redraw(Attention(12, 2, operator=operator)), X)


TIES = {
    "duplicates": np.repeat(np.random.default_rng(0).standard_normal((6, 3)), 3, axis=0),
    "constant": np.full((9, 2), 0.3),
    "lattice": np.random.default_rng(0).integers(-1, 2, (20, 3)).astype(np.float64),
}


@pytest.mark.parametrize("kind", TIES)
@pytest.mark.parametrize(
    "make",
    [
        lambda: TopK(4),
        lambda: LocallyLinear(4),
        lambda: LocallyLinear(4, zero_diagonal=True),
        lambda: Twicing(Softmax()),
    ],
    ids=["top-k", "neighbors", "other neighbors", "twicing"],
)
def test_any_choice_among_equals_is_right(make, kind):
    X = torch.from_numpy(TIES[kind]).to(torch.float32 if kind == "lattice" else torch.float64)
    report = twinsolve.check(make(), X)
    assert report, str(report)
    x = X[None, None]
    report = twinsolve.check(make(), (x, x, x))
    assert report, str(report)
    mask = torch.ones(len(X), len(X)).tril().bool()
    report = twinsolve.check(make(), {"q": x, "k": x, "v": x, "mask": mask})
    assert report, str(report)


@pytest.mark.parametrize("kind", TIES)
def test_a_wrong_choice_is_no_tie(kind):
    class Smallest(TopK):
        def _weights(self, q, k, mask):
            return super()._weights(-q, k, mask)

    class Fewer(TopK):
        def _weights(self, q, k, mask):
            weights = super()._weights(q, k, mask)
            kept = weights.topk(2, dim=-1).indices
            return torch.zeros_like(weights).scatter(-1, kept, 0.5)

    rng = np.random.default_rng(1)
    X = TIES[kind] if kind in ("duplicates", "lattice") else rng.standard_normal((9, 2))
    for layer in (Smallest(4), Fewer(4)):
        assert not twinsolve.check(layer, X)
        x = torch.from_numpy(X)[None, None]
        assert not twinsolve.check(layer, (x, x, x))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("make", [lambda: Twicing(Gaussian(1e3)), lambda: Sinkhorn(Softmax())])
def test_an_output_that_cancels_is_held_to_the_rounding_of_its_terms(make, dtype):
    X = torch.tensor([[1e-9, 1.0], [0.0, -1.0]], dtype=dtype).repeat(8, 1) * 1e-3
    report = twinsolve.check(make(), X)
    assert report, str(report)


def test_equal_heads_of_re_attention_leave_rounding_alone(X):
    dtype = torch.float32
    layer = ReAttention(Softmax(), 3).to(dtype)
    report = twinsolve.check(layer, torch.from_numpy(X).to(dtype))
    assert report, str(report)
    with torch.no_grad():
        layer.norm.bias += 0.01
    assert twinsolve.check(layer, torch.from_numpy(X).to(dtype))

    class Shifted(ReAttention):
        def forward(self, q, k, v, **rest):
            return super().forward(q, k, v, **rest) + 0.1 * v

    assert not twinsolve.check(Shifted(Softmax(), 3).to(dtype), torch.from_numpy(X).to(dtype))


JUDGED = {twin.layer.__name__: twin for twin in reversed(catalogue())}


@pytest.mark.parametrize("name", sorted(JUDGED))
@pytest.mark.filterwarnings("ignore")
def test_every_layer_with_any_twin_is_judged_by_it(name):
    """By its limit or a bound where no twin gives the output itself."""
    twin = JUDGED[name]
    inputs = small_inputs(twin, torch.float64)
    layer = built(twin, inputs)
    data = inputs[0] if twin.inputs.kind != "tokens" else inputs[0][0]
    report = twinsolve.check(layer, data)
    assert report, str(report)
    relation = report.findings[0].details["relation"]
    assert f"{relation}]: holds" in str(report)
    assert relation == judging_twin(layer, same_points=True).relation.name


CODERS = {
    "admm": lambda: UnrolledADMM(10, 0.1),
    "network": lambda: SelfExpressiveNetwork(12, hidden_features=(8,), width=8, threshold=1e-3),
}


@pytest.mark.parametrize("name", CODERS)
def test_learned_solvers_are_compared_by_their_coefficients(X, name):
    torch.manual_seed(0)
    layer = CODERS[name]().double()
    tokens = torch.from_numpy(X)
    keys = tokens[:17] + 0.5
    code = layer.coefficients if name == "network" else layer
    C = code(tokens, keys)
    C = C.toarray() if name == "network" else C.detach()
    assert twinsolve.compare(layer, C, X, keys=keys)["distance"] == 0
    assert twinsolve.compare(layer, 0 * C + 0.1, X, keys=keys)["distance"] > 0


def test_lista_is_compared_on_its_dictionary(X):
    atoms = np.random.default_rng(0).standard_normal((20, 12))
    layer = LISTA(atoms, 500, 1.0)
    solution = sparse_code(X, atoms, lam=1.0, tol=1e-10)
    numbers = twinsolve.compare(layer, lambda X: solution, X)
    assert numbers["distance"] < 1e-3
    assert numbers["residual"] == pytest.approx(numbers["residual_reference"], rel=1e-3)
    assert twinsolve.compare(layer, solution, X, keys=atoms) == numbers
    with pytest.raises(ValueError, match="keys: must be None for a LISTA"):
        twinsolve.compare(layer, solution, X, keys=X[:20])


@pytest.mark.parametrize("shell", [False, True])
def test_queries_are_compared_on_other_keys(X, shell):
    keys = X[:7] + 0.1
    operator = Gaussian(1.0)
    layer = redraw(Attention(12, 2, operator=operator)).double() if shell else operator
    q, k = torch.from_numpy(X)[None], torch.from_numpy(keys)[None]
    C = layer(q, k, k)[1][0].detach() if shell else layer.matrix(q, k)[0]
    numbers = twinsolve.compare(layer, lambda X, keys: C, X, keys=keys)
    assert numbers["distance"] == 0
    left = np.linalg.norm(X - C.numpy() @ keys) / np.linalg.norm(X)
    assert numbers["residual"] == pytest.approx(left)
    with pytest.raises(ValueError, match=r"coefficients: must have shape \(30, 7\)"):
        twinsolve.compare(layer, np.eye(30), X, keys=keys)
    with pytest.raises(ValueError, match="keys: X and keys must have"):
        twinsolve.compare(layer, C, X, keys=keys[:, :3])


def test_replaced_attention_is_checked_compared_and_fitted_as_a_shell_is():
    torch.manual_seed(0)
    X = torch.randn(15, 6, dtype=torch.float64)
    theirs = VisionAttention(dim=6, num_heads=2, scale=0.7).double().eval()
    module = replace_attention(theirs, Gaussian(1.5, learnable=True))
    with torch.no_grad():
        module.operator.bandwidth.log.add_(0.3)
    report = twinsolve.check(module, X)
    assert report
    assert report.findings[0].law == "gaussian-attention"
    assert report.origin["distance"] > 0.01
    q, k, _ = module.qkv(X).unflatten(-1, (3, 2, 3)).movedim(0, -2)
    factor = (0.7 * 3**0.5) ** 0.5  # the scale of the module on the operator's own
    C = module.operator.matrix(factor * q, factor * k).mean(dim=0).detach()
    assert twinsolve.compare(module, C, X)["distance"] < 1e-12
    assert twinsolve.compare(module, C[:, :9], X, keys=X[:9])["distance"] > 0.01
    origin = twinsolve.fit_origin(module, X)
    assert origin.parameters["bandwidth"] == pytest.approx(2 * (1.5 * np.exp(0.3),), rel=1e-4)
    batch = twinsolve.check(module, X[None])
    judged = [x for x in batch.findings if x.verdict != "not judged"]
    assert [x.details["class"] for x in judged] == ["Gaussian"]
    assert batch
    with pytest.raises(ValueError, match="X: must have 6 columns"):
        twinsolve.check(module, X[:, :5])
    module.operator.matrix = module.operator.forward = lambda q, k, v, **_: 1.01 * v
    assert not twinsolve.check(module, X)
