"""The protocol: every operator, as it declares its laws."""

import copy
import inspect

import pytest
import torch
from torch.testing import assert_close

import twinsolve.unrolled as layers
from twinsolve.unrolled import (
    Attention,
    Context,
    Gaussian,
    LocallyLinear,
    Operator,
    ReAttention,
    Sinkhorn,
    Softmax,
    Solved,
    SparseCoding,
    Twicing,
)
from twinsolve.unrolled.attention import Positive, SoftmaxSmoother

from .operator_cases import OPERATORS, off_zero

SHAPE = (2, 3, 9, 5)


@pytest.fixture(params=OPERATORS, ids=lambda name: name.replace(" ", "-"))
def operator(request):
    torch.manual_seed(0)  # of weights that are drawn
    return OPERATORS[request.param]().double()


def tokens(*shape, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape or SHAPE, generator=generator, dtype=dtype)


def qkv(seed=0):
    return tokens(seed=seed), tokens(seed=seed + 1), tokens(*SHAPE[:-1], 4, seed=seed + 2)


def context_of(q, k, v):
    """Everything that an operator may need, token by token from its own inputs."""
    index = torch.arange(k.shape[-2], dtype=k.dtype)[:, None]
    return Context(
        positions=torch.cos(index * torch.arange(1, 7, dtype=k.dtype) / 3),
        projected_positions=(torch.cos(2 * q), torch.sin(k)),
        first_values=None if v is None else torch.sin(v),
        # As wide as the keys, as they are in a shell; known to `matrix`, which is given no v.
        values=torch.sin(2 * k),
        previous_values=torch.cos(k),
    )


class Called(torch.nn.Module):
    """An operator with the context of its inputs, as a shell would call it."""

    def __init__(self, operator):
        super().__init__()
        self.operator = operator

    def forward(self, q, k, v, mask=None, is_causal=False):
        context = context_of(q, k, v)
        return self.operator(q, k, v, mask=mask, is_causal=is_causal, context=context)


def call(operator, q, k, v, **masks):
    return Called(operator)(q, k, v, **masks)


def matrix(operator, q, k, v, **masks):
    return operator.matrix(q, k, context=context_of(q, k, v), **masks)


def skip_unless_served(operator, mask=None, is_causal=False):
    if is_causal and not operator.causal:
        pytest.skip("refuses causal masks, as declared")
    if mask is not None and mask.shape[-2] > 1 and not operator.pair_masks:
        pytest.skip("refuses masks of pairs, as declared")


MASKS = {
    "none": {},
    "causal": {"is_causal": True},
    "padding": {"mask": (torch.arange(9) < 6).expand(2, 1, 1, 9)},
    "pairs": {"mask": torch.rand(9, 9, generator=torch.Generator().manual_seed(0)) < 0.7},
    "additive": {"mask": torch.full((9, 9), -torch.inf, dtype=torch.float64).triu(1)},
    "padding and causal": {"mask": (torch.arange(9) < 6).expand(2, 1, 1, 9), "is_causal": True},
    "pairs of each head and causal": {
        "mask": torch.rand(2, 3, 9, 9, generator=torch.Generator().manual_seed(1)) < 0.9,
        "is_causal": True,
    },
}


@pytest.mark.parametrize("mask", MASKS)
def test_forward_is_the_matrix_times_the_values(operator, mask):
    skip_unless_served(operator, **MASKS[mask])
    if not operator.linear_in_values:
        pytest.skip("not linear in its values, as declared")
    q, k, v = qkv()
    A = matrix(operator, q, k, v, **MASKS[mask])
    assert_close(call(operator, q, k, v, **MASKS[mask]), A @ v, atol=1e-12, rtol=0)


@pytest.mark.parametrize("mask", MASKS)
def test_laws_hold(operator, mask):
    skip_unless_served(operator, **MASKS[mask])
    A = matrix(operator, *qkv(), **MASKS[mask])
    if operator.row_stochastic:
        sums = A.sum(dim=-1)
        empty = (A == 0).all(dim=-1)
        assert empty.sum() <= sums.numel() / 9  # the first row of a causal mask without a diagonal
        assert_close(sums[~empty], torch.ones_like(sums[~empty]), atol=1e-10, rtol=0)
    if operator.nonnegative:
        assert A.min() >= 0


def test_what_the_laws_exclude_is_refused(operator):
    q, k, v = qkv()
    if not operator.causal:
        with pytest.raises(ValueError, match="does not support is_causal"):
            call(operator, q, k, v, is_causal=True)
    if not operator.pair_masks:
        with pytest.raises(ValueError, match="may only hide whole keys"):
            call(operator, q, k, v, **MASKS["pairs"])
    if not operator.additive_masks:
        bias = torch.full((1, 9), 0.5, dtype=torch.float64)
        with pytest.raises(ValueError, match="masks may only hide keys"):
            call(operator, q, k, v, mask=bias)
    needed = [n for n in operator.needs if n != "previous_values"]
    if needed:
        with pytest.raises(ValueError, match=f"context: .* needs {needed[0]}"):
            operator(q, k, v)


def test_causal_equals_the_explicit_mask_and_prefixes(operator):
    if not operator.causal:
        pytest.skip("refuses causal masks, as declared")
    q, k, v = qkv()
    out = call(operator, q, k, v, is_causal=True)
    explicit = torch.ones(9, 9, dtype=torch.bool).tril()
    if operator.pair_masks:
        assert_close(out, call(operator, q, k, v, mask=explicit), atol=1e-12, rtol=0)
    for n in (5, 8):
        prefix = call(operator, q[..., :n, :], k[..., :n, :], v[..., :n, :], is_causal=True)
        assert_close(out[..., :n, :], prefix, atol=1e-12, rtol=0)


@pytest.mark.parametrize("mask", [None, "padding", "pairs"])
@pytest.mark.parametrize("n_queries", [1, 4])
def test_fewer_queries_than_keys_are_the_last_tokens(operator, n_queries, mask):
    """So that a step of decoding with a cache of keys gives what the whole sequence does."""
    if not operator.causal or operator.square_only or (mask == "pairs" and not operator.pair_masks):
        pytest.skip("refuses causal masks, unequal counts or masks of pairs, as declared")
    given = {} if mask is None else MASKS[mask]
    q, k, v = qkv()
    # The context of all tokens, as a model has it: the queries' part is found by the operator.
    context = context_of(q, k, v)
    last = slice(9 - n_queries, None)
    fewer = {name: m if m.shape[-2] == 1 else m[..., last, :] for name, m in given.items()}
    for method, values in ((operator, (v,)), (operator.matrix, ())):
        whole = method(q, k, *values, is_causal=True, context=context, **given)[..., last, :]
        found = method(q[..., last, :], k, *values, is_causal=True, context=context, **fewer)
        assert_close(found, whole, atol=1e-12, rtol=0)
        if (
            n_queries == 1
        ):  # the last token sees all keys: nothing is left for a causal mask to hide
            alone = method(q[..., last, :], k, *values, context=context, **fewer)
            assert_close(alone, whole, atol=1e-12, rtol=0)


def test_more_queries_than_keys_cannot_be_causal(operator):
    if not operator.causal or operator.square_only:
        pytest.skip("refuses causal masks or unequal counts, as declared")
    q, k, v = qkv()
    with pytest.raises(ValueError, match="at most as many queries as keys, got 9 and 8"):
        call(operator, q, k[..., :8, :], v[..., :8, :], is_causal=True)


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


@pytest.mark.filterwarnings("ignore:.* codes are not proved")
@pytest.mark.filterwarnings("ignore:the fixed point was not reached")
@pytest.mark.parametrize("size", [1e3, 1e5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("hiding", HIDING)
def test_hidden_tokens_do_not_leak(operator, hiding, dtype, size):
    """Whatever stands in a hidden token, the rows that do not see it stay as they are."""
    arguments, hidden = HIDING[hiding]
    mask = arguments.get("mask")
    skip_unless_served(
        operator, mask if "explicit" in hiding or "additive" in hiding else None,
        arguments.get("is_causal", False),
    )  # fmt: skip
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
    found, expected = (call(operator, *x, **arguments)[..., rows, :] for x in (changed, inputs))
    # The centre of Gaussian attention and blocked sums may move the rounding, nothing more.
    tolerance = 100 * torch.finfo(dtype).eps * expected.abs().max()
    assert (found - expected).abs().max() <= tolerance


FAR = {
    "causal": {"is_causal": True},
    "padding": {"mask": torch.arange(40) < 18},
    "padding first and causal": {"mask": torch.arange(40) > 21, "is_causal": True},
    "pairs": {"mask": (torch.arange(40)[:, None] < 18) == (torch.arange(40) < 18)},
    "additive": {"mask": torch.full((40, 40), -torch.inf).triu(1)},
}


@pytest.mark.filterwarnings("ignore:the fixed point was not reached")
@pytest.mark.filterwarnings("ignore:.* codes are not proved")
@pytest.mark.parametrize(
    ("hiding", "dtype", "size"),
    [
        *[
            (hiding, torch.float32, 1e3)
            for hiding in ("causal", "padding first and causal", "pairs")
        ],
        *[(hiding, torch.float32, 1e8) for hiding in ("causal", "padding", "additive")],
        *[(hiding, torch.float64, 1e5) for hiding in ("causal", "pairs")],
    ],
)
def test_most_tokens_far_away_leave_the_rows_that_do_not_see_them(operator, hiding, dtype, size):
    """18 rows do not see the other 22 tokens: where these are moves no output and no gradient."""
    mask, is_causal = FAR[hiding].get("mask"), FAR[hiding].get("is_causal", False)
    skip_unless_served(operator, mask if mask is not None and mask.ndim > 1 else None, is_causal)
    if operator.data_dependent and dtype == torch.float32:
        pytest.skip("works in float64 whatever the input")
    if getattr(operator, "step", None) == "support":
        pytest.skip("its choice of steps is not continuous, so that rounding shows")
    if mask is not None:
        mask = mask.expand(40, 40)
        mask = mask.to(dtype) if mask.is_floating_point() else mask
    hidden = torch.arange(40) < 22 if "first" in hiding else torch.arange(40) >= 18
    operator = operator.to(dtype)
    near = [tokens(1, 3, 40, n, seed=n, dtype=dtype) for n in (5, 6, 4)]
    near[1] = near[1][..., :5]

    def run(scale):
        # Logits of 1e16 would overflow in the backward pass of scaled_dot_product_attention.
        scales = (scale if scale < 1e8 else 1, scale, scale)
        inputs = [
            torch.where(hidden[:, None], s * x, x).requires_grad_()
            for s, x in zip(scales, near, strict=True)
        ]
        out = call(operator, *inputs, mask=mask, is_causal=is_causal)[..., ~hidden, :]
        out.square().sum().backward()
        gradients = (torch.zeros_like(x) if x.grad is None else x.grad for x in inputs)
        return out, *(g[..., ~hidden, :] for g in gradients)

    # Sums in blocks of other sizes may move the rounding, nothing more: that of the tolerances to
    # which cases are solved.
    tolerance = 1e-10 if operator.data_dependent else 100 * torch.finfo(dtype).eps
    for x, y in zip(run(size), run(1.0), strict=True):
        assert (x - y).abs().max() <= tolerance * y.abs().max()


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("hiding", ["padding", "padding first and causal", "lowest number"])
def test_keys_that_no_query_sees_may_hold_anything(operator, hiding, value):
    mask, is_causal = torch.arange(9) < 6, "causal" in hiding
    if is_causal:
        mask = mask.flip(0)
    skip_unless_served(operator, None, is_causal)
    hidden, mask = ~mask, mask.expand(1, 9)
    if hiding == "lowest number":
        mask = torch.zeros(1, 9).double().masked_fill(~mask, torch.finfo(torch.float64).min)
    q, k, v = qkv()
    context = context_of(q, k, v)

    def run(hold):
        held = [torch.where(hidden[:, None], hold, x).requires_grad_() for x in (k, v)]
        leaves = [q.detach().requires_grad_(), *held]
        values, previous = (
            torch.where(hidden[:, None], hold, x) for x in (context.values, context.previous_values)
        )
        given = {
            "mask": mask, "is_causal": is_causal,
            "context": context._replace(values=values, previous_values=previous),
        }  # fmt: skip
        out = operator(*leaves, **given)[..., ~hidden, :]
        A = operator.matrix(*leaves[:2], **given)[..., ~hidden, :]
        for parameter in operator.parameters():
            parameter.grad = None
        (out.square().sum() + A.square().sum()).backward()
        learned = [x for x in (*leaves, *operator.parameters()) if x.grad is not None]
        return out, A, *(x.grad for x in learned)

    for x, y in zip(run(value), run(0.0), strict=True):
        assert_close(x, y, atol=1e-12, rtol=1e-12)


@pytest.mark.filterwarnings("ignore:the fixed point was not reached")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("n", [9, 300])
def test_padding_of_nan_reaches_no_visible_row(operator, dtype, n):
    """Queries too, as in a layer; by matrices of few tokens, and in the form for many."""
    if n > 9 and operator.data_dependent:
        pytest.skip("iterates to a tolerance, far too long for this")
    operator = operator.to(dtype)
    hidden = torch.arange(n) >= n - 3
    q, k, v = (tokens(1, 3, n, 5, seed=seed, dtype=dtype) for seed in range(3))
    context, given = context_of(q, k, v), {"mask": ~hidden.expand(1, n)}

    def run(hold):
        held = [torch.where(hidden[:, None], hold, x) for x in (q, k, v)]
        given["context"] = context._replace(values=held[2], previous_values=held[1])
        out = operator(*held, **given)[..., ~hidden, :]
        return out, operator.matrix(*held[:2], **given)[..., ~hidden, :]

    for found, expected in zip(run(torch.nan), run(0.0), strict=True):
        assert_close(found, expected, atol=1e-6, rtol=0)


def test_hidden_keys_are_as_if_absent(operator):
    q, k, v = qkv()
    out = call(operator, q, k, v, mask=MASKS["padding"]["mask"])[..., :6, :]
    absent = call(operator, q[..., :6, :], k[..., :6, :], v[..., :6, :])
    assert_close(out, absent, atol=1e-11, rtol=0)


def test_fully_masked_rows_give_zeros_and_finite_gradients(operator):
    q, k, v = (x.requires_grad_() for x in qkv())
    mask = torch.ones(9, 9, dtype=torch.bool)
    if operator.pair_masks:
        mask[2] = False
    else:
        mask[:] = False
    out = call(operator, q, k, v, mask=mask)
    # Twicing smooths the residual v - A v, whose row 2 is v itself, but row 2 sees no key at all.
    if operator.linear_in_values:
        assert (out[..., 2, :] == 0).all()
    out.square().sum().backward()
    assert all(x.grad is None or torch.isfinite(x.grad).all() for x in (q, k, v))


def test_rows_masked_by_the_lowest_number_give_zeros_too(operator):
    """Otherwise such a row would be the mean of the values that are hidden from it."""
    q, k, v = qkv()
    lowest = torch.finfo(torch.float64).min
    mask = torch.zeros(9, 9, dtype=torch.float64)
    mask[2 if operator.pair_masks else slice(None)] = lowest
    exact = mask.masked_fill(mask == lowest, -torch.inf)
    found = call(operator, q, k, v, mask=mask)
    assert_close(found, call(operator, q, k, v, mask=exact), atol=0, rtol=0)
    if operator.linear_in_values:
        assert (found[..., 2, :] == 0).all()
        assert (matrix(operator, q, k, v, mask=mask)[..., 2, :] == 0).all()


def test_empty_sequences_and_batches(operator):
    q, k, v = qkv()
    assert call(operator, q[..., :0, :], k[..., :0, :], v[..., :0, :]).shape == (2, 3, 0, 4)
    if not operator.square_only:
        nothing = operator.linear_in_values
        out = call(operator, q, k[..., :0, :], v[..., :0, :]) if nothing else None
        assert out is None or (out.shape == (2, 3, 9, 4) and (out == 0).all())
    assert call(operator, q[:0], k[:0], v[:0]).shape == (0, 3, 9, 4)


def test_a_single_token(operator):
    q, k, v = (x[..., :1, :] for x in qkv())
    out = call(operator, q, k, v)
    A = matrix(operator, q, k, v)
    assert out.shape == (2, 3, 1, 4)
    if operator.linear_in_values:
        assert_close(out, A @ v, atol=1e-12, rtol=0)
    if operator.row_stochastic:
        row = torch.zeros_like(A) if getattr(operator, "zero_diagonal", False) else 1 + 0 * A
        assert_close(A, row, atol=1e-12, rtol=0)


def test_gradcheck(operator):
    shape = (1, 3, 6, 5)
    q, k, v = (tokens(*shape, seed=s).requires_grad_() for s in range(3))
    assert torch.autograd.gradcheck(lambda *x: call(operator, *x), (q, k, v))
    if operator.causal:
        assert torch.autograd.gradcheck(lambda *x: call(operator, *x, is_causal=True), (q, k, v))


def test_gradients_of_parameters(operator):
    layer = Called(operator)
    parameters = dict(layer.named_parameters())
    if not parameters:
        pytest.skip("nothing to learn")

    def run(*values):
        return torch.func.functional_call(layer, dict(zip(parameters, values, strict=True)), qkv())

    values = tuple(p.detach().clone().requires_grad_() for p in parameters.values())
    assert torch.autograd.gradcheck(run, values)


def test_parameters_reset_print_and_round_trip(operator):
    operator.reset_parameters()
    torch.manual_seed(0)
    operator.reset_parameters()
    initial = copy.deepcopy(operator.state_dict())
    with torch.no_grad():
        for parameter in operator.parameters():
            parameter.add_(0.3)
    changed = copy.deepcopy(operator)
    other = copy.deepcopy(operator)
    torch.manual_seed(0)
    operator.reset_parameters()
    for name, value in operator.state_dict().items():
        assert_close(value, initial[name], atol=1e-12, rtol=0)
    operator.load_state_dict(changed.state_dict())
    assert_close(call(operator, *qkv()), call(other, *qkv()), atol=0, rtol=0)
    assert repr(operator)


def wrappers():
    """Every exported class that wraps an operator, with what it needs beside its base."""
    arguments = {"ReAttention": (3,), "Biased": (torch.zeros(4, 4),)}
    classes = [c for c in vars(layers).values() if isinstance(c, type)]
    of_base = [c for c in classes if "base" in inspect.signature(c.__init__).parameters]
    found = {c.__name__: lambda base, c=c: c(base, *arguments.get(c.__name__, ())) for c in of_base}
    return found | {"Attention": lambda base: Attention(6, 3, operator=base)}


@pytest.mark.parametrize("name", wrappers())
def test_wrapping_leaves_the_base_as_it_is(name):
    base = Gaussian(0.9, num_heads=3, learnable=True)
    if name == "Solved":
        base = SparseCoding(0.5, num_heads=3, learnable=True)
    off_zero(base)
    moved = copy.deepcopy(base.state_dict())
    wrapper = wrappers()[name](base)
    for key, value in base.state_dict().items():
        assert_close(value, moved[key], atol=0, rtol=0)
    wrapper.reset_parameters()
    assert any((base.state_dict()[key] != moved[key]).any() for key in moved)


def test_float32_stays_float32_and_close(operator):
    single = call(operator.float(), *(x.float() for x in qkv()))
    assert single.dtype == torch.float32
    assert_close(single.double(), call(operator.double(), *qkv()), atol=2e-5, rtol=1e-4)


def test_bfloat16_runs_where_neighbours_need_not_be_solved_for(operator):
    inputs = [x.bfloat16() for x in qkv()]
    out = call(operator.bfloat16(), *inputs)
    assert out.dtype == torch.bfloat16
    # 8 bits of mantissa on outputs of size up to 3, and rounded inputs; discontinuous for LLE.
    if not isinstance(operator, LocallyLinear):
        reference = call(operator.double(), *(x.double() for x in inputs))
        assert (out.double() - reference).abs().max() < 0.1


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_output_and_matrix_have_the_dtype_of_the_inputs(operator, dtype):
    inputs = [x.to(dtype) for x in qkv()]
    for made in (operator.float(), copy.deepcopy(operator).to(dtype)):
        assert call(made, *inputs).dtype == dtype
        assert matrix(made, *inputs).dtype == dtype


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_autocast_lowers_nothing(operator, dtype):
    """Against float64 on the same rounded inputs; more tokens than integers in a narrow dtype."""
    if operator.data_dependent:
        pytest.skip("iterates to a tolerance, far too long for this")
    generator = torch.Generator().manual_seed(0)
    inputs = [torch.randn(1, 3, 260, n, generator=generator).to(dtype) for n in (5, 5, 4)]
    outer = torch.randn(1, 3, 260, 4, generator=generator).double()
    lowered = torch.float16 if dtype == torch.float16 else torch.bfloat16

    def run(operator, inputs, autocast):
        inputs = [x.detach().requires_grad_() for x in inputs]
        with torch.autocast("cpu", lowered, enabled=autocast):
            out = call(operator, *inputs, is_causal=operator.causal)
        assert out.dtype == inputs[0].dtype
        (out.double() * outer).sum().backward()
        return out, *(torch.zeros_like(x) if x.grad is None else x.grad for x in inputs)

    expected = run(operator.double(), [x.double() for x in inputs], autocast=False)
    found = run(operator.float(), inputs, autocast=True)
    # Narrow weights and logits of size 4 are rounded once; in float32 logits of size 78 (ALiBi's)
    # are. Gradients pass through the rounded weights and logits twice.
    eps = torch.finfo(dtype).eps * (64 if dtype == torch.float32 else 4)
    for i, (x, exact) in enumerate(zip(found, expected, strict=True)):
        error = (x.double() - exact).abs().max()
        assert error <= (4 if i else 1) * eps * exact.abs().max(), i


@pytest.mark.parametrize("ndim", [2, 3, 5])
def test_any_number_of_leading_dimensions(operator, ndim):
    per_head = any(isinstance(m, Positive) and m.num_heads for m in operator.modules())
    if ndim < 4 and (per_head or any(m.numel() > 1 for m in operator.parameters())):
        pytest.skip("one parameter a head needs heads")
    q, k, v = qkv()
    expected = call(operator, q, k, v)
    if ndim == 5:
        found = call(operator, q[None], k[None], v[None])[0]
        assert_close(found, expected, atol=1e-12, rtol=0)
        return
    index = (0, 0) if ndim == 2 else (0,)
    found = call(operator, q[index], k[index], v[index])
    assert_close(found, expected[index], atol=1e-12, rtol=0)


# Leading axes of q, k, v and of a mask; all of them broadcast to the shape at the end.
LEADING = {
    "queries of one batch": ((1, 3), (2, 3), (2, 3), None, (2, 3)),
    "keys of one batch": ((2, 3), (1, 3), (3,), None, (2, 3)),
    "keys of one head": ((2, 3), (2, 1), (2, 1), None, (2, 3)),
    "queries of one head": ((2, 1), (2, 3), (2, 3), None, (2, 3)),
    "more values": ((2, 3), (2, 3), (2, 2, 3), None, (2, 2, 3)),
    "more masks": ((3,), (3,), (3,), (2, 1), (2, 3)),
}


@pytest.mark.parametrize("leading", LEADING)
def test_leading_axes_broadcast(operator, leading):
    of_q, of_k, of_v, of_mask, batch = LEADING[leading]
    parts = tokens(*of_q, 9, 5), tokens(*of_k, 9, 5, seed=1), tokens(*of_v, 9, 4, seed=2)
    q, k, v = (x.expand(*batch, *x.shape[-2:]) for x in parts)
    masks = {}
    if of_mask is not None:
        masks["mask"] = tokens(*of_mask, 1, 9, seed=3) < 0.7
    context = context_of(q, k, v)
    expected = operator(*(x.clone() for x in (q, k, v)), **masks, context=context)
    found = operator(*parts, **masks, context=context)
    assert_close(found, expected, atol=1e-12, rtol=0)
    whole = torch.broadcast_shapes(of_q, of_k, of_mask or ())
    q, k = (x.expand(*whole, 9, 5).clone() for x in parts[:2])
    context = context_of(q, k, k)
    expected = operator.matrix(q, k, **masks, context=context)
    found = operator.matrix(*parts[:2], **masks, context=context)
    assert_close(found, expected, atol=1e-12, rtol=0)


def test_what_the_output_depends_on_is_declared(operator):
    inputs = [x.requires_grad_() for x in qkv()]
    grads = torch.autograd.grad(
        call(operator, *inputs).square().sum(), inputs, allow_unused=True, materialize_grads=True
    )
    read = [name for name, g in zip("qkv", grads, strict=True) if g.abs().max() > 1e-12]
    assert read == list(operator.reads)


def test_query_blocks_change_neither_output_nor_gradient(operator, monkeypatch):
    masks = MASKS["pairs"] if operator.pair_masks else MASKS["padding"]

    def run():
        q, k, v = (x.requires_grad_() for x in qkv())
        out = call(operator, q, k, v, **masks)
        out.square().sum().backward()
        with torch.no_grad():
            again = call(operator, q, k, v, **masks)
        return out, again, *(x.grad for x in (q, k, v))

    whole = run()
    monkeypatch.setattr("twinsolve.unrolled.attention.fused._QUERY_BLOCK", 4)
    for found, expected in zip(run(), whole, strict=True):
        assert_close(found, expected, atol=1e-11, rtol=0)


def test_unequal_counts_are_refused_or_served_as_declared(operator):
    q, k, v = qkv()
    if operator.square_only:
        with pytest.raises(ValueError, match="as many queries as keys, got 4 and 9"):
            call(operator, q[..., :4, :], k, v)
    else:
        assert call(operator, q[..., :4, :], k, v).shape == (2, 3, 4, 4)


def test_shapes_that_do_not_fit_are_named(operator):
    q, k, v = qkv()
    with pytest.raises(ValueError, match="k: must have the width of q"):
        operator(q[..., :3], k, v)
    with pytest.raises(ValueError, match="v: must have as many tokens as k, 9, got 8"):
        operator(q, k, v[..., :8, :])


def test_masks_that_do_not_fit_are_named(operator):
    q, k, v = qkv()
    for shape in ((9,), (4, 9), (9, 4)):
        with pytest.raises(ValueError, match=r"mask: must broadcast to \(\.\.\., 9, 9\)"):
            operator(q, k, v, mask=torch.ones(shape, dtype=torch.bool))
    with pytest.raises(ValueError, match="mask: must be bool, float32 or"):
        operator(q, k, v, mask=torch.ones(9, 9, dtype=torch.long))
    if operator.pair_masks:
        rows = (torch.arange(9) != 2)[:, None]
        found = call(operator, q, k, v, mask=rows)
        assert_close(found, call(operator, q, k, v, mask=rows.expand(9, 9)), atol=1e-13, rtol=0)


def test_constructs_on_the_meta_device(operator):
    """Parameters come back by `reset_parameters` after construction without memory."""
    torch.manual_seed(0)
    operator.reset_parameters()
    empty = copy.deepcopy(operator).to("meta").to_empty(device="cpu")
    torch.manual_seed(0)
    empty.reset_parameters()
    assert_close(call(empty, *qkv()), call(operator, *qkv()), atol=1e-12, rtol=0)


def test_exports(operator):
    layer, inputs = Called(operator), qkv()
    if operator.data_dependent:
        with pytest.raises(RuntimeError, match="cannot be exported, as"):
            torch.export.export(layer, inputs)
        return
    exported = torch.export.export(layer, inputs).module()
    assert_close(exported(*inputs), layer(*inputs), atol=1e-10, rtol=0)


@pytest.mark.parametrize(
    ("wrap", "make"),
    [
        (lambda base: base, Gaussian),
        (lambda base: base, SparseCoding),
        (Twicing, Gaussian),
        (Sinkhorn, Gaussian),
        (Solved, SparseCoding),
        (lambda base: ReAttention(base, 4), Gaussian),
    ],
    ids=["gaussian", "sparse-coding", "twicing", "sinkhorn", "solved", "re-attention"],
)
def test_a_wrong_number_of_heads_is_named(wrap, make):
    operator = wrap(make(0.5, num_heads=4, learnable=True))
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
    torch.compiler.reset()  # after eight layers of a class it would give up
    layer = Called(operator)
    compiled = torch.compile(layer, fullgraph=True)
    if operator.data_dependent:
        with pytest.raises(torch._dynamo.exc.Unsupported, match="depends on the data"):
            compiled(*qkv())
        return
    assert_close(compiled(*qkv()), layer(*qkv()), atol=1e-10, rtol=0)


@pytest.mark.parametrize("name", ["sparse coding", "locally linear"])
def test_additive_biases_are_refused_where_they_mean_nothing(name):
    q, k, v = qkv()
    with pytest.raises(ValueError, match="masks may only hide keys"):
        OPERATORS[name]()(q, k, v, mask=torch.full((9, 9), 0.5))
    lowest = torch.zeros(9, 9).masked_fill(torch.eye(9, dtype=torch.bool), torch.finfo().min)
    found = OPERATORS[name]().double()(q, k, v, mask=lowest)
    expected = OPERATORS[name]().double()(q, k, v, mask=~torch.eye(9, dtype=torch.bool))
    assert_close(found, expected)


@pytest.mark.parametrize("is_causal", [False, True])
def test_a_smoother_that_says_its_logits_alone_attends_by_their_softmax(is_causal):
    class Scaled(SoftmaxSmoother):
        def logits(self, call):
            return call.q.shape[-1] ** -0.5 * call.q @ call.k.mT

    torch.manual_seed(0)
    q, k, v = torch.randn(3, 2, 4, 9, 5, dtype=torch.float64).unbind()
    found, expected = (
        layer(q, k, v, is_causal=is_causal) for layer in (Scaled(), layers.Softmax())
    )
    assert_close(found, expected, rtol=0, atol=1e-14)  # sums of 9 weights of a softmax
