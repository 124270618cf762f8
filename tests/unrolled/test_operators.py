"""The protocol: every operator, as it declares its laws."""

import copy

import pytest
import torch
from torch.testing import assert_close

from twinsolve.unrolled import Gaussian, LocallyLinear, Operator, Softmax, SparseCoding, Twicing

OPERATORS = {
    "softmax": lambda: Softmax(),
    "softmax scaled": lambda: Softmax(scale=0.7),
    "gaussian": lambda: Gaussian(),
    "gaussian per head": lambda: Gaussian(0.9, num_heads=3, learnable=True),
    "twicing": lambda: Twicing(Gaussian(1.2)),
    "twicing twice": lambda: Twicing(Twicing(Softmax())),
    "sparse coding": lambda: SparseCoding(0.5),
    "self-expression": lambda: SparseCoding(0.5, n_iter=8, zero_diagonal=True),
    "nonnegative": lambda: SparseCoding(0.5, nonnegative=True),
    "sparse coding per head": lambda: SparseCoding(0.5, num_heads=3, learnable=True),
    "locally linear": lambda: LocallyLinear(4),
    "locally linear self": lambda: LocallyLinear(4, zero_diagonal=True),
}
SHAPE = (2, 3, 9, 5)


@pytest.fixture(params=OPERATORS, ids=lambda name: name.replace(" ", "-"))
def operator(request):
    return OPERATORS[request.param]().double()


def tokens(*shape, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape or SHAPE, generator=generator, dtype=dtype)


def qkv(seed=0):
    return tokens(seed=seed), tokens(seed=seed + 1), tokens(*SHAPE[:-1], 4, seed=seed + 2)


MASKS = {
    "none": {},
    "causal": {"is_causal": True},
    "padding": {"mask": (torch.arange(9) < 6).expand(2, 1, 1, 9)},
    "pairs": {"mask": torch.rand(9, 9, generator=torch.Generator().manual_seed(0)) < 0.7},
    "additive": {"mask": torch.zeros(9, 9, dtype=torch.float64).triu(1) * 0
                 + torch.full((9, 9), -torch.inf, dtype=torch.float64).triu(1)},
}  # fmt: skip


@pytest.mark.parametrize("mask", MASKS)
def test_forward_is_the_matrix_times_the_values(operator, mask):
    q, k, v = qkv()
    assert operator.linear_in_values
    A = operator.matrix(q, k, **MASKS[mask])
    assert_close(operator(q, k, v, **MASKS[mask]), A @ v, atol=1e-12, rtol=0)


@pytest.mark.parametrize("mask", MASKS)
def test_laws_hold(operator, mask):
    q, k, _ = qkv()
    A = operator.matrix(q, k, **MASKS[mask])
    if operator.row_stochastic:
        sums = A.sum(dim=-1)
        empty = (A == 0).all(dim=-1)
        assert empty.sum() <= sums.numel() / 9  # the first row of a causal mask without a diagonal
        assert_close(sums[~empty], torch.ones_like(sums[~empty]), atol=1e-10, rtol=0)
    if operator.nonnegative:
        assert A.min() >= 0
    else:
        assert isinstance(operator, SparseCoding) or A.min() < 0


def test_causal_equals_the_explicit_mask_and_prefixes(operator):
    q, k, v = qkv()
    out = operator(q, k, v, is_causal=True)
    explicit = torch.ones(9, 9, dtype=torch.bool).tril()
    assert_close(out, operator(q, k, v, mask=explicit), atol=1e-12, rtol=0)
    for n in (5, 8):
        prefix = operator(q[..., :n, :], k[..., :n, :], v[..., :n, :], is_causal=True)
        assert_close(out[..., :n, :], prefix, atol=1e-12, rtol=0)


HIDING = {
    "padding last": ({"mask": torch.arange(9) < 8}, 8),
    "padding first": ({"mask": torch.arange(9) > 0}, 0),
    "padding first and causal": ({"mask": torch.arange(9) > 0, "is_causal": True}, 0),
    "causal": ({"is_causal": True}, 8),
    "explicit causal": ({"mask": torch.ones(9, 9, dtype=torch.bool).tril()}, 8),
    "additive causal": ({"mask": torch.full((9, 9), -torch.inf).triu(1)}, 8),
    "lowest number": (
        {"mask": torch.zeros(9, 9).masked_fill(torch.arange(9) == 8, torch.finfo().min)},
        8,
    ),
}


@pytest.mark.parametrize("size", [1e3, 1e5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("hiding", HIDING)
def test_hidden_tokens_do_not_leak(operator, hiding, dtype, size):
    """Whatever stands in a hidden token, the rows that do not see it stay as they are."""
    arguments, hidden = HIDING[hiding]
    mask = arguments.get("mask")
    if mask is not None:
        mask = mask.expand(9, 9)
        if mask.is_floating_point():
            lowest = torch.finfo(dtype).min
            mask = mask.to(dtype).masked_fill(mask == torch.finfo().min, lowest)
        arguments = arguments | {"mask": mask}
    operator = operator.to(dtype)
    inputs = [x.to(dtype) for x in qkv()]
    changed = [x.clone() for x in inputs]
    for x in changed:
        x[..., hidden, :] = size
    rows = torch.arange(9) != hidden
    found, expected = (operator(*x, **arguments)[..., rows, :] for x in (changed, inputs))
    # The centre of Gaussian attention and blocked sums may move the rounding, nothing more.
    tolerance = 100 * torch.finfo(dtype).eps * expected.abs().max()
    assert (found - expected).abs().max() <= tolerance


def test_hidden_keys_are_as_if_absent(operator):
    q, k, v = qkv()
    out = operator(q, k, v, mask=MASKS["padding"]["mask"])[..., :6, :]
    absent = operator(q[..., :6, :], k[..., :6, :], v[..., :6, :])
    assert_close(out, absent, atol=1e-11, rtol=0)


def test_fully_masked_rows_give_zeros_and_finite_gradients(operator):
    q, k, v = (x.requires_grad_() for x in qkv())
    mask = torch.ones(9, 9, dtype=torch.bool)
    mask[2] = False
    out = operator(q, k, v, mask=mask)
    # Twicing smooths the residual v - A v, whose row 2 is v itself, but row 2 sees no key at all.
    assert (out[..., 2, :] == 0).all()
    out.square().sum().backward()
    assert all(torch.isfinite(x.grad).all() for x in (q, k, v))


def test_gradcheck(operator):
    shape = (1, 3, 6, 3)
    q, k, v = (tokens(*shape, seed=s).requires_grad_() for s in range(3))
    assert torch.autograd.gradcheck(lambda *x: operator(*x), (q, k, v))
    assert torch.autograd.gradcheck(lambda *x: operator(*x, is_causal=True), (q, k, v))


def test_gradients_of_parameters(operator):
    q, k, v = qkv()
    parameters = dict(operator.named_parameters())
    if not parameters:
        pytest.skip("nothing to learn")

    def run(*values):
        return torch.func.functional_call(
            operator, dict(zip(parameters, values, strict=True)), (q, k, v)
        )

    values = tuple(p.detach().clone().requires_grad_() for p in parameters.values())
    assert torch.autograd.gradcheck(run, values)


def test_parameters_reset_print_and_round_trip(operator):
    operator.reset_parameters()
    initial = copy.deepcopy(operator.state_dict())
    with torch.no_grad():
        for parameter in operator.parameters():
            parameter.add_(0.3)
    changed = copy.deepcopy(operator)
    other = copy.deepcopy(operator)
    operator.reset_parameters()
    for name, value in operator.state_dict().items():
        assert_close(value, initial[name], atol=1e-12, rtol=0)
    operator.load_state_dict(changed.state_dict())
    q, k, v = qkv()
    assert_close(operator(q, k, v), other(q, k, v), atol=0, rtol=0)
    assert repr(operator)


def test_float32_stays_float32_and_close(operator):
    q, k, v = qkv()
    single = operator.float()(q.float(), k.float(), v.float())
    assert single.dtype == torch.float32
    assert_close(single.double(), operator.double()(q, k, v), atol=2e-5, rtol=1e-4)


def test_bfloat16_runs_where_neighbours_need_not_be_solved_for(operator):
    q, k, v = qkv()
    out = operator.bfloat16()(q.bfloat16(), k.bfloat16(), v.bfloat16())
    assert out.dtype == torch.bfloat16
    # 8 bits of mantissa on outputs of size up to 3, and rounded inputs; discontinuous for LLE.
    if not isinstance(operator, LocallyLinear):
        reference = operator.double()(*(x.bfloat16().double() for x in (q, k, v)))
        assert (out.double() - reference).abs().max() < 0.1


@pytest.mark.parametrize("ndim", [2, 3, 5])
def test_any_number_of_leading_dimensions(operator, ndim):
    if ndim < 4 and any(m.numel() > 1 for m in operator.parameters()):
        pytest.skip("one parameter a head needs heads")
    q, k, v = qkv()
    expected = operator(q, k, v)
    if ndim == 5:
        found = operator(q[None], k[None], v[None])[0]
        assert_close(found, expected, atol=1e-12, rtol=0)
        return
    index = (0, 0) if ndim == 2 else (0,)
    found = operator(q[index], k[index], v[index])
    assert_close(found, expected[index], atol=1e-12, rtol=0)


def test_query_blocks_change_neither_output_nor_gradient(operator, monkeypatch):
    def run():
        q, k, v = (x.requires_grad_() for x in qkv())
        out = operator(q, k, v, mask=MASKS["pairs"]["mask"])
        out.square().sum().backward()
        with torch.no_grad():
            again = operator(q, k, v, mask=MASKS["pairs"]["mask"])
        return out, again, q.grad, k.grad, v.grad

    whole = run()
    monkeypatch.setattr("twinsolve.unrolled.attention._QUERY_BLOCK", 4)
    for found, expected in zip(run(), whole, strict=True):
        assert_close(found, expected, atol=1e-11, rtol=0)


def test_unequal_counts_are_refused_or_served_as_declared(operator):
    q, k, v = qkv()
    if operator.square_only:
        with pytest.raises(ValueError, match="as many queries as keys, got 4 and 9"):
            operator(q[..., :4, :], k, v)
    else:
        assert operator(q[..., :4, :], k, v).shape == (2, 3, 4, 4)


def test_shapes_that_do_not_fit_are_named(operator):
    q, k, v = qkv()
    with pytest.raises(ValueError, match="differ in width"):
        operator(q[..., :3], k, v)
    with pytest.raises(ValueError, match="9 keys but 8 values"):
        operator(q, k, v[..., :8, :])


def test_masks_that_do_not_fit_are_named(operator):
    q, k, v = qkv()
    for shape in ((9,), (4, 9), (9, 4)):
        with pytest.raises(ValueError, match=r"mask: must broadcast to \(\.\.\., 9, 9\)"):
            operator(q, k, v, mask=torch.ones(shape, dtype=torch.bool))
    rows = (torch.arange(9) != 2)[:, None]
    found = operator(q, k, v, mask=rows)
    assert_close(found, operator(q, k, v, mask=rows.expand(9, 9)), atol=1e-13, rtol=0)


@pytest.mark.parametrize("make", [Gaussian, SparseCoding])
def test_a_wrong_number_of_heads_is_named(make):
    operator = make(0.5, num_heads=4, learnable=True)
    for shape in ((2, 3, 9, 5), (9, 5)):
        x = tokens(*shape)
        with pytest.raises(ValueError, match=r"num_heads: .* has 4, but q has"):
            operator(x, x, x)


def test_an_operator_that_is_not_causal_refuses():
    class Whole(Softmax):
        causal = False

    q, k, v = qkv()
    with pytest.raises(ValueError, match="Whole: does not support is_causal"):
        Whole()(q, k, v, is_causal=True)


def test_the_base_class_leaves_the_work_to_subclasses():
    with pytest.raises(NotImplementedError):
        Operator()(*qkv())
    with pytest.raises(NotImplementedError):
        Operator().matrix(*qkv()[:2])


@pytest.mark.slow
def test_compiles_to_one_graph(operator):
    q, k, v = qkv()
    compiled = torch.compile(operator, fullgraph=True)
    assert_close(compiled(q, k, v), operator(q, k, v), atol=1e-10, rtol=0)


@pytest.mark.parametrize("name", ["sparse coding", "locally linear"])
def test_additive_biases_are_refused_where_they_mean_nothing(name):
    q, k, v = qkv()
    with pytest.raises(ValueError, match="masks may only hide keys"):
        OPERATORS[name]()(q, k, v, mask=torch.full((9, 9), 0.5))
    lowest = torch.zeros(9, 9).masked_fill(torch.eye(9, dtype=torch.bool), torch.finfo().min)
    found = OPERATORS[name]().double()(q, k, v, mask=lowest)
    expected = OPERATORS[name]().double()(q, k, v, mask=~torch.eye(9, dtype=torch.bool))
    assert_close(found, expected)
