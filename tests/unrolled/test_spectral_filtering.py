import numpy as np
import pytest
import torch
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

from twinsolve.solvers.spectral_filtering import high_frequency_gain, scale_frequencies
from twinsolve.unrolled import (
    AttnScale,
    FeatScale,
    Gaussian,
    ReAttention,
    Softmax,
    SparseCoding,
    Twicing,
)
from twinsolve.unrolled.spectral_filtering import LayerScale, visible_mean

N = 7


def tokens(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape or (2, 3, N, 4), generator=generator, dtype=torch.float64)


def attn_scale(base, omega=0.4, **arguments):
    layer = AttnScale(base, **arguments).double()
    torch.nn.init.constant_(layer.omega, omega)
    return layer


class Recorder(TorchDispatchMode):
    """Names of the operators that run, and the largest tensor of numbers that they make."""

    def __init__(self):
        super().__init__()
        self.names, self.largest = [], 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.names.append(func.__name__)
        for x in out if isinstance(out, tuple | list) else (out,):
            if isinstance(x, torch.Tensor) and x.is_floating_point():
                self.largest = max(self.largest, x.untyped_storage().nbytes())
        return out


def recorded(run):
    with Recorder() as recorder:
        run()
    return recorder


# AttnScale


@pytest.mark.parametrize("base", [Softmax(), Gaussian(0.8), Twicing(Softmax()), SparseCoding(0.3)])
@pytest.mark.parametrize("masks", [{}, {"is_causal": True}, {"mask": torch.arange(N) < 5}])
@pytest.mark.filterwarnings("ignore:AttnScale")
def test_starts_as_its_base_exactly(base, masks):
    masks = {key: x if x is True else x.expand(N, N) for key, x in masks.items()}
    q, k, v = tokens(), tokens(seed=1), tokens(seed=2)
    assert (AttnScale(base, num_heads=3)(q, k, v, **masks) == base(q, k, v, **masks)).all()


def test_matrix_in_its_three_forms():
    """AO-7 to AO-9: scaled high-pass part, fused form, scaled values."""
    q, k = tokens(), tokens(seed=1)
    A, w = Softmax().matrix(q, k), 0.4
    uniform = torch.full((N, N), 1 / N, dtype=torch.float64)
    identity = torch.eye(N, dtype=torch.float64)
    H = identity - uniform
    found = attn_scale(Softmax(), w).matrix(q, k)
    assert_close(found, uniform + (1 + w) * (A - uniform), atol=1e-12, rtol=0)
    assert_close(found, A @ (identity + w * H), atol=1e-12, rtol=0)
    printed = A @ (identity + w * (identity - 1))  # erratum E1-l: I - 1 1^T
    assert (found - printed).abs().max() > 0.1


def test_scales_all_eigenvalues_but_one():
    q, k = tokens(N, 4), tokens(N, 4, seed=1)
    mu = torch.linalg.eigvals(Softmax().matrix(q, k))
    found = torch.linalg.eigvals(attn_scale(Softmax(), 0.4).matrix(q, k))
    one = (mu - 1).abs().argmin()
    expected = torch.where(torch.arange(N) == one, mu, 1.4 * mu)
    for value in expected:
        assert (found - value).abs().min() < 1e-10


def test_the_uniform_filter_is_the_best_of_its_kind():
    """AO-L8; erratum E1-i: the filter is beta 1 1^T / N, not beta 1 1^T, where beta is 1 / N."""
    A = Softmax().matrix(tokens(N, 4), tokens(N, 4, seed=1))

    def best(filter):
        return ((A * filter).sum() / filter.square().sum()).item()

    assert best(torch.full_like(A, 1 / N)) == pytest.approx(1)
    assert best(torch.ones_like(A)) == pytest.approx(1 / N)


def test_one_layer_may_amplify_high_frequencies():
    """Erratum E1-g: attention does not erase them in every layer."""
    n = 40
    keys = torch.eye(n, dtype=torch.float64)
    queries = 1e3 * keys[[0] * (n // 2) + [1] * (n // 2)]
    values = keys[:, :1] - keys[:, 1:2]
    gain = high_frequency_gain(Softmax().matrix(queries, keys).numpy())
    assert gain == pytest.approx(np.sqrt(n / 2), rel=1e-6)
    for omega in (0.0, 0.5):
        out = attn_scale(Softmax(), omega)(queries, keys, values)
        ratio = out.std(correction=0) * n**0.5 / values.norm()
        assert ratio.item() == pytest.approx((1 + omega) * gain, rel=1e-6)


MASKS = {
    "boolean": torch.rand(N, N, generator=torch.Generator().manual_seed(0)) < 0.5,
    "padding": torch.tensor([[True, True, False, True, False, True, True]]),
    "rows": torch.tensor([True, False, True, True, True, True, False])[:, None],
    "heads": torch.rand(2, 3, N, N, generator=torch.Generator().manual_seed(1)) < 0.5,
    "batch": torch.rand(2, 1, 1, N, generator=torch.Generator().manual_seed(2)) < 0.5,
}


@pytest.mark.parametrize("additive", [False, True])
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("name", MASKS)
def test_means_are_over_what_each_query_sees(name, is_causal, additive):
    mask, v = MASKS[name], tokens()
    visible = mask.expand(2, 3, N, N) & (torch.ones(N, N).tril().bool() if is_causal else True)
    if additive:  # a finite bias hides nothing
        mask = torch.where(mask, tokens(*mask.shape, seed=3), -torch.inf)
    found = visible_mean(v, mask=mask, is_causal=is_causal).expand(2, 3, N, 4)
    for index in np.ndindex(2, 3, N):
        seen = v[index[:2]][visible[index]]
        expected = seen.mean(dim=0) if len(seen) else torch.zeros(4, dtype=torch.float64)
        assert_close(found[index], expected, atol=1e-14, rtol=0)


@pytest.mark.parametrize("n_queries", [3, N])
@pytest.mark.parametrize("base", [Softmax(), Gaussian(0.9)])
def test_causal_means_of_any_number_of_queries(base, n_queries):
    q, k, v = tokens(2, 3, n_queries, 4), tokens(seed=1), tokens(seed=2)
    layer = attn_scale(base)
    A = layer.matrix(q, k, is_causal=True)
    assert_close(layer(q, k, v, is_causal=True), A @ v, atol=1e-12, rtol=0)
    assert_close(A.sum(dim=-1), torch.ones(2, 3, n_queries, dtype=torch.float64))
    padding = torch.arange(N) > 0
    padded = layer(q, k, v, is_causal=True, mask=padding[None])
    explicit = padding & torch.ones(n_queries, N, dtype=torch.bool).tril(N - n_queries)
    assert_close(padded, layer(q, k, v, mask=explicit), atol=1e-12, rtol=0)
    assert (padded[..., 0, :] == 0).all() == (n_queries == N)


def test_a_bias_moves_attention_but_not_the_mean():
    q, k, v = tokens(), tokens(seed=1), tokens(seed=2)
    bias = tokens(N, N, seed=3)
    expected = 1.4 * Softmax()(q, k, v, mask=bias) - 0.4 * v.mean(dim=-2, keepdim=True)
    assert_close(attn_scale(Softmax())(q, k, v, mask=bias), expected)


@pytest.mark.parametrize("masks", ["none", "causal", "padding", "padding and causal"])
def test_builds_no_matrix_and_keeps_the_fused_kernel(masks):
    n, x = 700, torch.randn(1, 2, 700, 4)
    arguments = {"is_causal": True} if "causal" in masks else {}
    layer = AttnScale(Softmax(), num_heads=2)
    if masks == "padding and causal":  # the kernel itself needs the mask of pairs; the mean none
        mask = (torch.arange(n) < 600)[None]
        seen = recorded(lambda: visible_mean(x, mask=mask, is_causal=True))
        assert seen.largest <= 8 * x.nbytes
        return
    if masks == "padding":
        arguments["mask"] = (torch.arange(n) < 600).expand(1, 1, 1, n)
    seen = recorded(lambda: layer(x, x, x, **arguments).sum())
    assert "_scaled_dot_product_flash_attention_for_cpu.default" in seen.names
    assert seen.largest <= 8 * x.nbytes < 4 * n * n


def test_means_under_masks_of_pairs_take_no_more_than_the_mask():
    mask = torch.rand(2048, 2048) < 0.5
    v = torch.randn(1, 2, 2048, 4, requires_grad=True)
    seen = recorded(lambda: visible_mean(v, mask=mask).sum().backward())
    assert seen.largest <= mask.nbytes


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_means_of_many_large_values_neither_overflow_nor_drift(dtype):
    v = torch.full((5000, 1), 100.0, dtype=dtype)
    mask = torch.ones(1, 5000, dtype=torch.bool)
    for arguments in ({}, {"is_causal": True}, {"mask": mask}, {"mask": mask, "is_causal": True}):
        found = visible_mean(v, **arguments)
        assert found.dtype == dtype
        assert (found == 100).all()


def test_a_base_that_is_not_row_stochastic_is_warned_about_but_the_algebra_holds():
    with pytest.warns(UserWarning, match="AttnScale: SparseCoding is not row stochastic"):
        layer = attn_scale(SparseCoding(0.2).double())
    x = tokens()
    expected = 1.4 * layer.base(x, x, x) - 0.4 * x.mean(dim=-2, keepdim=True)
    assert_close(layer(x, x, x), expected)
    assert not layer.row_stochastic


def test_a_wrong_number_of_heads_is_named():
    layer = AttnScale(Softmax(), num_heads=4).double()
    for run in (lambda x: layer(x, x, x), lambda x: layer.matrix(x, x)):
        for x in (tokens(), tokens(N, 4)):
            with pytest.raises(ValueError, match="num_heads: AttnScale has 4, but q has"):
                run(x)
    with pytest.raises(ValueError, match="num_heads: must be a whole number >= 1"):
        AttnScale(Softmax(), num_heads=0)
    with pytest.raises(ValueError, match="base: must be an Operator"):
        AttnScale(3)


# FeatScale and LayerScale


def feat_scale(dim=4, seed=0):
    layer = FeatScale(dim, dtype=torch.float64)
    layer.s.data, layer.t.data = tokens(2, dim, seed=seed)
    return layer


def test_feat_scale_starts_as_the_identity_exactly():
    y = tokens()
    assert (FeatScale(4, dtype=torch.float64)(y) == y).all()


def test_feat_scale_is_the_solvers():
    layer, y = feat_scale(), tokens(N, 4)
    expected = scale_frequencies(y.numpy(), layer.s.detach().numpy(), layer.t.detach().numpy())
    assert_close(layer(y).detach().numpy(), expected, atol=1e-14, rtol=0)


def test_feat_scale_adds_its_correction_once():
    """The published code adds it twice: constants come out times 1 + 2 s."""
    layer = feat_scale()
    constant = torch.ones(N, 4, dtype=torch.float64)
    assert_close(layer(constant), (1 + layer.s) * constant)
    assert (layer(constant) - (1 + 2 * layer.s)).abs().max() > 0.1
    centred = tokens(N, 4)
    centred -= centred.mean(dim=0)
    assert_close(layer(centred), (1 + layer.t) * centred)


@pytest.mark.parametrize("circle", [True, False])
def test_feat_scale_is_attn_scale_for_doubly_stochastic_attention_alone(circle):
    """AO-12: points on a circle have circulant, hence doubly stochastic, Gaussian attention."""
    angle = torch.arange(N, dtype=torch.float64) * 2 * torch.pi / N
    q = torch.stack([angle.cos(), angle.sin()], dim=-1) if circle else tokens(N, 2)
    v, w = tokens(N, 4, seed=1), 0.4
    layer = FeatScale(4, dtype=torch.float64)
    torch.nn.init.constant_(layer.t, w)
    A = Gaussian(0.7).matrix(q, q)
    doubly = (A.sum(dim=0) - 1).abs().max() < 1e-12
    difference = (layer(A @ v) - attn_scale(Gaussian(0.7), w)(q, q, v)).abs().max()
    assert bool(doubly) == circle
    assert difference < 1e-12 if circle else difference > 1e-2


@pytest.mark.parametrize("additive", [False, True])
def test_hidden_tokens_do_not_move_the_others(additive):
    layer, y = feat_scale(), tokens(2, N, 4)
    hidden = torch.tensor([[False] * 5 + [True] * 2, [False] * N])
    mask = torch.zeros(2, N).masked_fill(hidden, -torch.inf) if additive else hidden
    changed = y.clone()
    changed[hidden] = 1e6
    found = layer(changed, mask)
    assert_close(found[~hidden], layer(y, mask)[~hidden], atol=0, rtol=0)
    assert_close(found[0, :5], layer(y[0, :5]))
    assert_close(found[1], layer(y[1]))
    assert_close(layer(y[0], torch.ones(N, dtype=torch.bool)), (1 + layer.t) * y[0])


@pytest.mark.parametrize("make", [FeatScale, LayerScale])
def test_scales_are_modules_like_any_other(make):
    layer = make(4, dtype=torch.float64)
    y = tokens(2, 5, 4).requires_grad_()
    initial = layer(y).detach()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter += tokens(4)
    changed = layer(y)
    values = tuple(p.detach().clone().requires_grad_() for p in layer.parameters())
    names = [name for name, _ in layer.named_parameters()]

    def run(y, *values):
        return torch.func.functional_call(layer, dict(zip(names, values, strict=True)), (y,))

    assert torch.autograd.gradcheck(run, (y, *values))
    assert_close(torch.export.export(layer, (y,)).module()(y), changed)
    other = make(4, dtype=torch.float64)
    other.load_state_dict(layer.state_dict())
    assert (other(y) == changed).all()
    layer.reset_parameters()
    assert (layer(y) == initial).all()
    empty = make(4, device="meta").to_empty(device="cpu").double()
    empty.reset_parameters()
    assert_close(empty(y), initial)
    assert layer(y.bfloat16()).dtype == torch.bfloat16
    assert repr(layer).startswith(f"{make.__name__}(4")
    nothing = layer(y[:, :0])
    nothing.sum().backward()
    assert nothing.shape == (2, 0, 4)
    assert all(p.grad.isfinite().all() for p in layer.parameters())
    for wrong in (y[..., :3], y[0, 0]):
        with pytest.raises(ValueError, match=r"y: must be \(\.\.\., n_tokens, 4\), got"):
            layer(wrong)
    with pytest.raises(ValueError, match="dim: must be a whole number >= 1"):
        make(0)


def test_each_token_has_the_mean_of_those_that_it_sees():
    layer, y = feat_scale(), tokens(2, 7, 4)
    hidden = torch.rand(2, 7, 7, generator=torch.Generator().manual_seed(0)) > 0.6
    padding = torch.zeros(2, 7, dtype=torch.bool)
    padding[1, 5:] = True
    past = torch.ones(7, 7).tril().bool()
    for arguments, seen in (
        ({"attn_mask": hidden}, ~hidden),
        ({"is_causal": True}, past.expand(2, 7, 7)),
        ({"attn_mask": hidden, "is_causal": True, "key_padding_mask": padding},
         ~hidden & past & ~padding[:, None]),
    ):  # fmt: skip
        found = layer(y, **arguments)
        for b in range(2):
            for i in range(7):
                visible = y[b][seen[b, i]]
                mean = visible.mean(dim=0) if len(visible) else torch.zeros(4).double()
                expected = y[b, i] + layer.s * mean + layer.t * (y[b, i] - mean)
                assert_close(found[b, i], expected, atol=1e-12, rtol=0)
    for bad in (hidden[:, :3], hidden.double()):
        with pytest.raises(ValueError, match=r"attn_mask: must be bool of shape \(\.\.\., 7, 7\)"):
            layer(y, attn_mask=bad)


def test_a_mask_that_does_not_fit_is_named():
    with pytest.raises(ValueError, match=r"key_padding_mask: must have shape \(\.\.\., 7\)"):
        feat_scale()(tokens(), torch.ones(2, 5, dtype=torch.bool))


def test_layer_scale_is_blind_to_frequencies():
    layer, both = LayerScale(4, initial=0.3, dtype=torch.float64), FeatScale(4).double()
    for weights in (both.s, both.t):
        torch.nn.init.constant_(weights, 0.3 - 1)
    assert_close(layer(tokens()), both(tokens()))
    assert (LayerScale(4).gamma == torch.tensor(1e-5)).all()
    for initial in (float("nan"), "0.1"):
        with pytest.raises(ValueError, match="initial: must be a finite number"):
            LayerScale(4, initial=initial)


# Re-attention


def re_attention(base=None, seed=0):
    layer = ReAttention(base or Softmax(), 3, dtype=torch.float64)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter += 0.3 * tokens(*parameter.shape, seed=seed)
    return layer


def test_re_attention_mixes_and_normalises_over_heads():
    q, k, v = tokens(), tokens(seed=1), tokens(seed=2)
    layer, A = re_attention(), Softmax().matrix(tokens(), tokens(seed=1))
    expected = torch.empty_like(A)
    for b, i, j in np.ndindex(2, N, N):
        mixed = layer.theta.T @ A[b, :, i, j]
        deviation = (mixed - mixed.mean()) / (mixed.var(correction=0) + 1e-5).sqrt()
        expected[b, :, i, j] = layer.norm.weight * deviation + layer.norm.bias
    assert_close(layer.matrix(q, k), expected)
    assert_close(layer(q, k, v), expected @ v)


def test_heads_that_agree_leave_the_bias():
    q, k = tokens(1, N, 4).expand(3, -1, -1), tokens(1, N, 4, seed=1).expand(3, -1, -1)
    layer = ReAttention(Softmax(), 3, dtype=torch.float64)
    torch.nn.init.constant_(layer.norm.bias, 0.25)
    assert_close(layer.matrix(q, k), torch.full((3, N, N), 0.25, dtype=torch.float64))


def test_hidden_pairs_stay_hidden_whatever_the_norm():
    layer, q, k = re_attention(), tokens(), tokens(seed=1)
    for name in ("boolean", "heads", "batch"):
        A = layer.matrix(q, k, mask=MASKS[name])
        assert (A[~MASKS[name].expand_as(A)] == 0).all()
    future = torch.ones(N, N, dtype=torch.bool).triu(1)
    assert (layer.matrix(q, k, is_causal=True)[..., future] == 0).all()


def test_re_attention_takes_blocks_of_queries():
    x = torch.randn(1, 3, 2048, 4, requires_grad=True)
    layer = ReAttention(Softmax(), 3)
    seen = recorded(lambda: layer(x, x, x).sum().backward())
    assert seen.largest <= 4 * 3 * 256 * 2048


@pytest.mark.parametrize("base", [SparseCoding(0.3), Twicing(Softmax()), None])
def test_bases_whose_maps_do_not_come_in_blocks_are_refused(base):
    with pytest.raises(ValueError, match=r"base: must be Softmax\(\) or Gaussian\(\)"):
        ReAttention(base, 3)


def test_re_attention_needs_its_heads():
    for x in (tokens(2, 4, N, 4), tokens(N, 4)):
        with pytest.raises(ValueError, match="num_heads: ReAttention has 3, but q has"):
            re_attention()(x, x, x)
