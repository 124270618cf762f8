"""Local linear attention: exact and learned probes, gates of the queries, degenerate keys."""

import pytest
import torch
from torch.testing import assert_close

from twinsolve.solvers import online_regression as solvers
from twinsolve.solvers.kernel_smoothing import local_linear_regression
from twinsolve.unrolled import (
    Attention,
    Context,
    LanguageModel,
    Softmax,
    Twicing,
    replace_attention,
)
from twinsolve.unrolled.block_size import small_blocks
from twinsolve.unrolled.online_regression import LocalLinear
from twinsolve.unrolled.online_regression.rules import nearly_unit

from .draws import moved, tokens
from .operator_cases import quiet

Q, K, V = tokens(2, 3, 9, 5), tokens(2, 3, 9, 5, seed=1), tokens(2, 3, 9, 4, seed=2)


def test_keys_of_equal_norm_make_the_exact_probe_local_linear_regression():
    """TR-9: with the Gaussian kernel of bandwidth scale^(-1/2); seen are 1e-13."""
    k = 2 * K / K.norm(dim=-1, keepdim=True)
    found = LocalLinear("exact", reg=0.05, scale=0.6)(Q, k, V)
    for place in ((0, 0), (1, 2)):
        q, keys, v = (x[place].numpy() for x in (Q, k, V))
        exact = local_linear_regression(q, keys, v, bandwidth=0.6**-0.5, reg=0.05)
        assert_close(found[place].numpy(), exact, atol=1e-10, rtol=0)
    found = LocalLinear("exact", reg=0.05, scale=0.6)(Q, K, V)[0, 0].numpy()
    q, k, v = (x[0, 0].numpy() for x in (Q, K, V))
    other = local_linear_regression(q, k, v, bandwidth=0.6**-0.5, reg=0.05)
    assert abs(found - other).max() > 0.01


def test_causal_rows_are_those_of_the_solvers_loop():
    q, k, v = (x.numpy() for x in (Q, K, V))
    r = solvers.local_linear_probe(q, k, scale=0.6, reg=0.05)
    expected, _ = solvers.parallax(q, k, v, probe=r, scale=0.6)
    found = LocalLinear("exact", reg=0.05, scale=0.6)(Q, K, V, is_causal=True)
    assert_close(found.numpy(), expected, atol=1e-10, rtol=0)
    r = tokens(2, 3, 9, 5, seed=3)
    expected, _ = solvers.parallax(q, k, v, probe=r.numpy(), scale=0.6)
    learned = LocalLinear(scale=0.6)
    found = learned(Q, K, V, is_causal=True, context=Context(query_gates=r))
    assert_close(found.numpy(), expected, atol=1e-12, rtol=0)
    last = learned(Q[..., 6:, :], K, V, is_causal=True, context=Context(query_gates=r[..., 6:, :]))
    assert_close(last, found[..., 6:, :])
    with small_blocks(2):
        assert_close(learned(Q, K, V, is_causal=True, context=Context(query_gates=r)), found)


def test_affine_values_are_reproduced():
    v = K @ tokens(5, 4, seed=4) + 3
    found = LocalLinear("exact", reg=1e-9)(Q, K, v)
    assert_close(found, Q @ tokens(5, 4, seed=4) + 3, atol=1e-4, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("centre", [0.0, 1.0, 1e3])
def test_equal_keys_have_no_slope(centre, dtype):
    """A thousand eps of the mean of the values, where rounding alone would be a slope."""
    k = (centre + K[..., :1, :] / 3).expand_as(K).to(dtype).clone().requires_grad_()
    q, v = Q.to(dtype), V.to(dtype)
    found = LocalLinear("exact", reg=1e-3)(q, k, v)
    expected = v.mean(dim=-2, keepdim=True).expand_as(v)
    assert_close(found, expected, atol=1e3 * torch.finfo(dtype).eps, rtol=0)
    assert torch.autograd.grad(found.square().sum(), k)[0].isfinite().all()
    assert_close(LocalLinear("exact")(q, k[..., :1, :], v[..., :1, :]), v[..., :1, :].expand_as(v))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_keys_that_differ_by_rounding_have_no_slope(dtype):
    eps, (q, v) = torch.finfo(dtype).eps, (Q.to(dtype), V.to(dtype))
    signs = torch.randint(-1, 2, K.shape, generator=torch.Generator().manual_seed(0))
    k = 3.3 * K[..., :1, :].to(dtype) * (1 + eps * signs.to(dtype))
    expected = v.mean(dim=-2, keepdim=True).expand_as(v)
    assert_close(LocalLinear("exact")(q, k, v), expected, atol=1e3 * eps, rtol=0)


def test_far_keys_keep_their_slope():
    """Moved by 1e6, keys have 1e-10 of their digits left in float64; squares would have none."""
    q, k = (x / x.norm(dim=-1, keepdim=True) for x in (Q, K))
    layer, mask = LocalLinear("exact", scale=1e-9), torch.zeros(9, 9, dtype=torch.float64)
    assert_close(layer(q + 1e6, k + 1e6, V, mask=mask), layer(q, k, V), atol=0.02, rtol=0)


@pytest.mark.parametrize("probe", ["exact", "learned"])
def test_gradients_are_those_of_finite_differences(probe):
    inputs = [x[0, :1, :4].clone().requires_grad_() for x in (Q, K, V, tokens(2, 3, 9, 5, seed=3))]
    layer = LocalLinear(probe, reg=0.1)

    def call(q, k, v, r):
        return layer(q, k, v, is_causal=True, context=Context(query_gates=r)) + 0 * r.sum()

    assert torch.autograd.gradcheck(call, inputs, atol=1e-8)
    assert torch.autograd.gradgradcheck(call, inputs, atol=1e-6)


def test_the_shell_projects_the_queries_to_probes_and_starts_as_softmax():
    torch.manual_seed(0)
    layer = Attention(12, 3, operator=LocalLinear(), dtype=torch.float64)
    plain = Attention(12, 3, operator=Softmax(), dtype=torch.float64)
    plain.load_state_dict({n: x for n, x in layer.state_dict().items() if "gate" not in n})
    x, y = tokens(2, 7, 12), tokens(2, 9, 12, seed=1)
    out = layer(x, y, y, need_weights=False)[0]
    assert_close(out, plain(x, y, y, need_weights=False)[0])
    out.square().sum().backward()
    assert layer.query_gate_proj.weight.grad.abs().sum() > 0
    assert layer.gate_proj is None
    moved(layer)
    q, k, v = layer.project(x, y, y)
    probes = layer.query_gate_proj(x).unflatten(-1, (3, -1)).transpose(1, 2)
    expected = layer.operator(q, k, v, context=Context(query_gates=probes))
    expected = layer.out_proj(expected.transpose(1, 2).flatten(2))
    found, weights, context = layer(x, y, y, context=Context())
    assert_close(found, expected)
    assert context.query_gates is None
    assert_close(weights.sum(dim=-1), torch.ones(2, 7, dtype=torch.float64))
    copied = Attention(12, 3, operator=LocalLinear(), dtype=torch.float64)
    copied.load_state_dict(layer.state_dict())
    assert_close(copied(x, y, y)[0], expected)
    copied.reset_parameters()
    assert not any(p.any() for p in copied.query_gate_proj.parameters())


def test_a_correction_has_the_probe_of_its_base():
    corrected = quiet(Twicing, LocalLinear())
    assert corrected.query_gates == {"probe": "feature"}
    assert Attention(12, 3, operator=corrected).query_gate_proj.out_features == 12


def test_a_language_model_takes_it_by_name():
    model = LanguageModel(11, 12, 2, 3, 16, operator="local_linear")
    ids = torch.randint(11, (2, 16), generator=torch.Generator().manual_seed(0))
    model.loss(ids).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: LocalLinear("none"), "probe: must be 'learned' or 'exact', got 'none'"),
        (lambda: LocalLinear("exact", reg=0.0), "reg: must be"),
        (lambda: LocalLinear(scale=-1.0), "scale: must be"),
        (
            lambda: LocalLinear()(Q, K, V, context=Context(query_gates=Q[..., :4])),
            r"context.query_gates: LocalLinear needs 5 numbers a token, .* got shape \(2, 3, 9, 4",
        ),
        (
            lambda: LocalLinear()(Q[..., 2:, :], K, V, context=Context(query_gates=K)),
            r"context.query_gates: must have as many tokens as the queries, 7, got",
        ),
        (
            lambda: replace_attention(
                torch.nn.TransformerEncoderLayer(12, 3, batch_first=True), LocalLinear()
            ),
            "takes probe from the tokens by a projection of its own",
        ),
    ],
)
def test_bad_input_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_half_inputs_are_computed_in_float32():
    q, k, v = (x.bfloat16() for x in (Q, K, V))
    found = LocalLinear("exact").matrix(q, k)
    exact = LocalLinear("exact").matrix(q.float(), k.float())
    assert found.dtype == torch.bfloat16
    assert_close(found, exact.bfloat16())
    assert LocalLinear("exact")(q, k, v).dtype == torch.bfloat16
    assert nearly_unit(q).dtype == torch.bfloat16
