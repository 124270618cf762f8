from functools import partial
from itertools import product

import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.testing import assert_close

from twinsolve.unrolled import Attention, Context, Gaussian, Softmax, Twicing, operator_names
from twinsolve.unrolled.attention import Positive, fused_attention
from twinsolve.unrolled.attention.blocked import blocked_attention

from .recording import BLOCKED, EXPLICIT, FUSED, dispatched_attention


def make_pair(**options):
    """PyTorch's attention and ours with the same weights."""
    torch.manual_seed(0)
    options["dtype"] = torch.float64
    theirs = nn.MultiheadAttention(12, 3, batch_first=True, **options).eval()
    for name, parameter in theirs.named_parameters():
        if name.endswith("bias"):
            nn.init.normal_(parameter)
    ours = Attention(12, 3, operator=Softmax(), **options)
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


@pytest.fixture
def pair():
    return make_pair()


X = torch.randn(2, 7, 12, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
Y = torch.randn(2, 5, 12, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
PADDING = torch.zeros(2, 7, dtype=torch.bool)
PADDING[1, 4:] = True
CAUSAL = torch.ones(7, 7, dtype=torch.bool).triu(1)
OF_HEADS = torch.rand(6, 7, 7, generator=torch.Generator().manual_seed(3)) < 0.4
OF_HEADS[:, range(7), range(7)] = False


def additive(mask):
    return torch.zeros(mask.shape, dtype=torch.float64).masked_fill(mask, -torch.inf)


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"key_padding_mask": PADDING},
        {"key_padding_mask": additive(PADDING)},
        {"attn_mask": CAUSAL},
        {"attn_mask": additive(CAUSAL)},
        {"attn_mask": 0.3 * torch.arange(49.0, dtype=torch.float64).reshape(7, 7)},
        {"attn_mask": CAUSAL, "is_causal": True},
        {"attn_mask": CAUSAL, "key_padding_mask": PADDING},
        {"attn_mask": additive(CAUSAL), "key_padding_mask": additive(PADDING)},
        {"attn_mask": OF_HEADS},
        {"average_attn_weights": False},
    ],
)
def test_equals_multihead_attention(pair, arguments):
    theirs, ours = pair
    expected, weights = theirs(X, X, X, **arguments)
    found, matrix = ours(X, X, X, **arguments)
    assert_close(found, expected, atol=1e-12, rtol=0)
    assert_close(matrix, weights, atol=1e-12, rtol=0)
    output, none = ours(X, X, X, need_weights=False, **arguments)
    assert none is None
    assert_close(output, expected, atol=1e-12, rtol=0)


def test_cross_attention_and_unbatched_input(pair):
    theirs, ours = pair
    assert_close(ours(Y, X, X.sin())[0], theirs(Y, X, X.sin())[0], atol=1e-12, rtol=0)
    found, weights = ours(X[0], X[0], X[0], key_padding_mask=PADDING[1])
    expected, expected_weights = theirs(X[0], X[0], X[0], key_padding_mask=PADDING[1])
    assert_close(found, expected, atol=1e-12, rtol=0)
    assert_close(weights, expected_weights, atol=1e-12, rtol=0)


def test_is_causal_alone_needs_no_mask(pair):
    _, ours = pair
    assert_close(ours(X, X, X, is_causal=True)[0], ours(X, X, X, attn_mask=CAUSAL)[0])


DTYPES = (torch.bool, torch.float16, torch.bfloat16, torch.float32, torch.float64)


@pytest.mark.parametrize("dtype", DTYPES[1:])
def test_masks_of_any_two_dtypes_meet(dtype):
    """From 16 tokens on the kernel of PyTorch takes the bytes of float32 for float64."""
    torch.manual_seed(0)
    layer = Attention(16, 2, operator=Softmax())
    x, hidden = torch.randn(2, 20, 16), torch.rand(2, 20) < 0.3
    pairs = torch.ones(20, 20, dtype=torch.bool).triu(1)
    pairs[0] = True  # sees nothing

    def in_dtype(mask, dtype, number):
        if dtype == torch.bool:
            return mask
        return torch.zeros(mask.shape, dtype=dtype).masked_fill(mask, number(dtype))

    def attend(layer, x, of_keys, of_pairs, number):
        masks = in_dtype(hidden, of_keys, number), in_dtype(pairs, of_pairs, number)
        return layer(x, x, x, key_padding_mask=masks[0], attn_mask=masks[1])

    layer, x = layer.to(dtype), x.to(dtype)
    exact = attend(layer.double(), x.double(), torch.bool, torch.bool, None)
    layer.to(dtype)
    tolerance = {torch.float64: 1e-13, torch.float32: 1e-5}.get(dtype, 0.03)
    for of_keys, of_pairs in product(DTYPES, DTYPES):
        for number in (lambda dtype: -torch.inf, lambda dtype: torch.finfo(dtype).min):
            found = attend(layer, x, of_keys, of_pairs, number)
            for y, expected in zip(found, exact, strict=True):
                assert_close(y.double(), expected, atol=tolerance, rtol=0)


def test_encoder_layer_uses_it_in_evaluation_mode():
    """A subclass of nn.MultiheadAttention would be bypassed here."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(12, 2, 24, batch_first=True).eval()
    plain = Attention(12, 2, operator=Softmax())
    plain.load_state_dict(layer.self_attn.state_dict())
    x = X.float()
    with torch.no_grad():
        expected = layer(x, src_key_padding_mask=PADDING)
        layer.self_attn = plain
        same = layer(x, src_key_padding_mask=PADDING)
        plain.operator = Gaussian(0.3)
        other = layer(x, src_key_padding_mask=PADDING)
    visible = ~PADDING
    assert_close(same[visible], expected[visible], atol=1e-5, rtol=1e-5)
    assert (other[visible] - expected[visible]).abs().max() > 1e-3


class Recorder(Softmax):
    needs = ("projected_positions", "first_values", "previous_values", "first_tokens")

    def attend(self, call):
        self.seen = call.context
        return super().attend(call)


@pytest.mark.parametrize("reads", [("k", "q", "v"), ("v", "k", "q"), ("q", "k")])
def test_positions_go_through_the_projections_that_the_operator_names(reads):
    class Ordered(Recorder):
        pass

    Ordered.reads = reads
    layer = Attention(12, 3, operator=Ordered(), dtype=torch.float64)
    rows = dict(zip(reads, layer.in_proj_weight.chunk(len(reads)), strict=True))
    for found, name in zip(layer.project_positions(X), "qk", strict=True):
        expected = (X @ rows[name].T).unflatten(-1, (3, 4)).transpose(-3, -2)
        assert_close(found, expected, atol=1e-12, rtol=0)
    Ordered.reads = ("k", "v")
    layer = Attention(12, 3, operator=Ordered(), dtype=torch.float64)
    with pytest.raises(ValueError, match=r"Ordered needs positions .* does not read q"):
        layer(X, X, X, context=Context(positions=X))


def test_missing_context_is_named():
    layer = Attention(12, 3, operator=Recorder(), dtype=torch.float64)
    with pytest.raises(ValueError, match=r"Recorder needs positions, .*positions="):
        layer(X, X, X)


def test_a_constant_is_exact_in_every_dtype():
    constant = Positive(0.7).to(torch.bfloat16)
    assert float(constant()) == 0.7
    assert not constant.state_dict()


@pytest.mark.parametrize(("shape", "width", "n_values"), [((4,), 32, 16), ((4, 2, 3), 16, 32)])
def test_fused_attention_of_widths_far_apart(shape, width, n_values):
    """The matrix of few pairs, and padding of the same, give the same and the same gradients."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (
        torch.randn(*shape[1:], n, w, generator=generator, dtype=torch.float64, requires_grad=True)
        for n, w in ((shape[0], width), (6, width), (6, n_values))
    )
    everything = torch.ones(shape[0], 6, dtype=torch.bool)

    def gradients(mask):
        out = fused_attention(q, k, v, mask=mask, scale=0.4)
        return out, *torch.autograd.grad(out.square().sum(), (q, k, v))

    assert dispatched_attention(lambda: gradients(None)) == set()
    assert dispatched_attention(lambda: gradients(everything)) == {FUSED, f"{FUSED}_backward"}
    for found, expected in zip(gradients(None), gradients(everything), strict=True):
        assert_close(found, expected, atol=1e-12, rtol=0)
    assert torch.autograd.gradgradcheck(
        lambda *x: fused_attention(*x, scale=0.4)[..., :1, :2], (q, k, v), fast_mode=True
    )


def test_fused_attention_of_widths_far_apart_builds_no_large_matrix():
    for n_keys, kernels in ((256, set()), (257, {BLOCKED})):
        q, k, v = torch.randn(256, 32), torch.randn(n_keys, 32), torch.randn(n_keys, 16)
        assert dispatched_attention(lambda x=(q, k, v): fused_attention(*x)) == kernels
    q, k, v = torch.randn(256, 16), torch.randn(257, 16), torch.randn(257, 32)
    assert dispatched_attention(lambda: fused_attention(q, k, v)) == {FUSED}


@pytest.mark.parametrize(("n_queries", "n_keys"), [(3, 515), (300, 600)])
def test_blocked_attention(n_queries, n_keys):
    """Blocks that are not full, on both sides, and logits that overflow without their maximum."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (
        torch.randn(2, 3, n, w, generator=generator, dtype=torch.float64, requires_grad=True)
        for n, w in ((n_queries, 5), (n_keys, 5), (n_keys, 2))
    )
    ways = [blocked_attention(300 * q, k, v), torch.softmax(300 * q @ k.mT, dim=-1) @ v]
    assert_close(*ways, atol=1e-12, rtol=0)
    weight = torch.randn(ways[0].shape, generator=generator, dtype=torch.float64)
    gradients = [torch.autograd.grad((weight * way).sum(), (q, k, v)) for way in ways]
    for found, expected in zip(*gradients, strict=True):
        # Logits of about 1,000 lose three digits, and multiply the gradient by 300.
        assert_close(found, expected, atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize(("shape", "additive"), [((600,), True), ((2, 1, 300, 600), False)])
def test_blocked_attention_with_masks(shape, additive):
    """Logits in float64, and weights and values in float32."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 3, n, 5, generator=generator).double() for n in (300, 600, 600))
    q, k, v = (x.requires_grad_() for x in (q, k, v))
    mask = torch.rand(shape, generator=generator) > 0.4
    if additive:
        mask = torch.randn(shape, generator=generator).masked_fill(~mask, -torch.inf)
    mask = mask[None] if mask.ndim == 1 else mask
    found = blocked_attention(q, k, v.float(), mask=mask)
    bias = torch.zeros(mask.shape).masked_fill(~mask, -torch.inf) if not additive else mask
    exact = torch.softmax(q @ k.mT + bias, dim=-1) @ v
    assert found.dtype == torch.float32
    assert_close(found.double(), exact, atol=3e-6, rtol=0)  # some eps of values up to 5
    weight = torch.randn(exact.shape, generator=generator).double()
    gradients = [torch.autograd.grad((weight * way).sum(), (q, k, v)) for way in (found, exact)]
    for ours, expected in zip(*gradients, strict=True):
        assert (ours - expected).abs().max() < 3e-6 * expected.abs().max()


def test_blocked_attention_is_differentiated_twice():
    generator = torch.Generator().manual_seed(0)
    tensors = [
        torch.randn(2, n, w, generator=generator, dtype=torch.float64, requires_grad=True)
        for n, w in ((4, 3), (5, 3), (5, 2))
    ]
    mask = torch.ones(4, 5, dtype=torch.bool)
    mask[0], mask[2, 1] = False, False  # a row without keys, and a key that causality shows
    attend = partial(blocked_attention, mask=mask, is_causal=True)
    assert torch.autograd.gradcheck(attend, tensors)
    assert torch.autograd.gradgradcheck(attend, tensors)
    plain, again = (
        torch.autograd.grad(attend(*tensors).sin().sum(), tensors, create_graph=graph)
        for graph in (False, True)
    )
    assert_close(again, plain, atol=1e-12, rtol=0)


@pytest.mark.parametrize("context", [sdpa_kernel(SDPBackend.MATH), torch.autocast("cpu")])
def test_blocks_leave_to_pytorch_what_it_does_otherwise(context):
    q, k, v = torch.randn(300, 32), torch.randn(300, 32), torch.randn(300, 16)
    with context:
        assert BLOCKED not in dispatched_attention(lambda: fused_attention(q, k, v))


def test_blocks_leave_to_pytorch_leading_shapes_that_broadcast():
    q, k, v = torch.randn(3, 300, 32), torch.randn(1, 300, 32), torch.randn(1, 300, 16)
    assert_close(fused_attention(q, k, v), torch.softmax(q @ k.mT / 32**0.5, dim=-1) @ v)


LEAVING = {
    "three dimensions": lambda q, v, mask: (q[0], q[0], v[0], None),
    "two dimensions": lambda q, v, mask: (q[0, 0], q[0, 0], v[0, 0], None),
    "mask of three dimensions": lambda q, v, mask: (q, q, v, mask[0]),
    "features apart in memory": lambda q, v, mask: (q.mT.contiguous().mT, q, v, None),
    "values apart in memory": lambda q, v, mask: (q, q, v.mT.contiguous().mT, None),
    "widths": lambda q, v, mask: (q, q, v[..., :15], None),
}


@pytest.mark.parametrize("case", LEAVING)
def test_what_makes_sdpa_leave_its_fused_kernel_does_not(case):
    generator = torch.Generator().manual_seed(0)
    q, v = torch.randn(2, 1, 3, 300, 16, generator=generator)
    mask = torch.ones(1, 3, 300, 300, dtype=torch.bool)
    q, k, v, mask = LEAVING[case](q, v, mask)
    plain = partial(torch.nn.functional.scaled_dot_product_attention, q, k, v, attn_mask=mask)
    assert EXPLICIT in dispatched_attention(plain)
    assert dispatched_attention(partial(fused_attention, q, k, v, mask=mask)) == {FUSED}
    assert_close(fused_attention(q, k, v, mask=mask), plain())


@pytest.mark.parametrize("name", operator_names())
def test_a_named_operator_starts_where_it_returns_to(name):
    """Numbers were rounded to float32 on their way to a shell in float64."""
    shell = Attention(12, 3, operator=name, dtype=torch.float64)
    numbers = [x for x in shell.operator.modules() if isinstance(x, Positive) and x.log is not None]
    before = [x.log.detach().clone() for x in numbers]
    for number, start in zip(numbers, before, strict=True):
        number.reset_parameters()
        assert (number.log == start).all()


def test_an_operator_may_be_named():
    named, made = (Attention(12, 3, operator=x) for x in ("twicing", Twicing(Softmax())))
    x = torch.randn(2, 5, 12)
    named.load_state_dict(made.state_dict())
    assert_close(named(x, x, x)[0], made(x, x, x)[0])
    lam = Attention(12, 3, operator="sparse_coding", dtype=torch.float64).operator.lam
    assert (lam.num_heads, lam.log.dtype) == (3, torch.float64)
    with pytest.raises(ValueError, match=r"operator: must be one of .*'twicng'; close is twicing"):
        Attention(12, 3, operator="twicng")
