"""Layers that learn at test time: one definition in all forms, gates, states and refusals."""

import numpy as np
import pytest
import torch
from torch.autograd import forward_ad
from torch.testing import assert_close

from twinsolve.solvers import online_regression as solvers
from twinsolve.unrolled import (
    Attention,
    Context,
    LanguageModel,
    Linear,
    Twicing,
    VisionTransformer,
    attach_huggingface,
    replace_attention,
)
from twinsolve.unrolled import online_regression as layers
from twinsolve.unrolled.online_regression import (
    DeltaRule,
    GatedLinear,
    HeavyBall,
    Mesa,
    MiniBatch,
    ProximalPoint,
    chunks,
)
from twinsolve.unrolled.online_regression.chunks import _Decays, split
from twinsolve.unrolled.online_regression.rules import nearly_unit

from .draws import moved, tokens, uniform
from .operator_cases import quiet

D, E = 5, 3
LENGTHS = (1, 2, 15, 16, 17, 63, 64, 65, 130)
# What forgets (None, one number a token, one a feature), and how many gates are shut.
FORGETTING = [(0, None), (1, 0.0), (1, 0.3), (1, 1.0), (D, 0.0), (D, 0.3), (D, 1.0)]


def drawn(n, width, shut, seed=0):
    """Arrays of the rules for n tokens in two heads; a share of the gates is exactly 0."""
    rng = np.random.default_rng([seed, n])
    x = {name: rng.standard_normal((2, n, D)) / np.sqrt(D) for name in "qk"}
    x |= {"v": rng.standard_normal((2, n, E)), "state": rng.standard_normal((2, D, E))}
    x |= {"beta": rng.uniform(0, 1, (2, n)), "metric": rng.uniform(0.7, 1, (2, n, D))}
    if width:
        forget = rng.uniform(0, 1, (2, n, width))
        x["forget"] = forget * (rng.random(forget.shape) >= shut)
    return x


def of_sums(x):
    return {name: y for name, y in x.items() if name not in ("beta", "metric")}


RULES = {
    "delta rule": (layers.chunked_delta_rule, solvers.delta_rule, lambda x: x),
    "sums": (layers.chunked_linear_attention, solvers.recurrent_linear_attention, of_sums),
}


def on_layer(x, dtype):
    """The same arguments for the layer's form, which takes logarithms of gates."""
    x = dict(x)
    if "forget" in x:
        with np.errstate(divide="ignore"):
            x["log_forget"] = np.log(x.pop("forget"))
    return {name: torch.from_numpy(y).to(dtype) for name, y in x.items()}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(("width", "shut"), FORGETTING)
def test_recurrent_chunked_and_parallel_forms_are_the_solver(rule, width, shut):
    """From a state, to outputs and the last state.

    Sums of up to 130 tokens round to about 130 eps: 3e-14 and 1.5e-5 of outputs of size 3.
    """
    function, solve, select = RULES[rule]
    for n in LENGTHS:
        x = select(drawn(n, width, shut))
        expected = solve(**x)
        for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 1e-5)):
            given = on_layer(x, dtype)
            for chunk in (1, 16, 64, n):
                for found, exact in zip(function(**given, chunk=chunk), expected, strict=True):
                    error = np.abs(found.numpy() - exact).max() / max(1, np.abs(exact).max())
                    assert error < tolerance, (n, dtype, chunk)


GATES = {
    "delta rule": lambda f, x: f.chunked_delta_rule(*x[:3], beta=x[3], log_forget=x[4][..., None]),
    "by features": lambda f, x: f.chunked_delta_rule(
        *x[:3], beta=x[3], log_forget=x[4][..., None].expand(*x[4].shape, D)
    ),
    "sums": lambda f, x: f.chunked_linear_attention(*x[:3], log_forget=x[4][..., None]),
    "heavy ball": lambda f, x: f.chunked_heavy_ball(
        *x[:3], step=x[3] / 2, log_momentum=x[4], log_keep=x[4]
    ),
    "mini-batches": lambda f, x: f.chunked_mini_batch(*x[:3], eta=x[3] / 8, batch_size=8),
    "exact Mesa": lambda f, x: f.chunked_mesa(*x[:3], beta=x[3], lam=torch.tensor(1.0)),
    "forgetting Mesa": lambda f, x: f.chunked_mesa(
        *x[:3], beta=x[3], lam=torch.tensor(1.0), log_forget=x[4][..., None], n_iter=2
    ),
}


@pytest.mark.parametrize("rule", GATES)
@pytest.mark.parametrize("axes", [(), (1, 1), (1, 2), (3, 1), (3, 2)])
def test_gates_may_be_shared_by_leading_axes(rule, axes):
    """Of batch, of heads or of both, in more chunks than one."""
    q, k, v = (tokens(3, 2, 130, D, seed=i) / 2 for i in range(3))
    beta, forget = (tokens(*axes, 130, seed=i).sigmoid() for i in (3, 4))
    shared = GATES[rule](layers, (q, k, v, beta, forget.log()))
    whole = [x.expand(3, 2, 130) for x in (beta, forget.log())]
    assert_close(shared, GATES[rule](layers, (q, k, v, *whole)), rtol=0, atol=1e-13)


def inputs_of_gates():
    q, k, v = (tokens(2, 130, D, seed=i) / 2 for i in range(3))
    beta, forget = (tokens(2, 130, seed=i).sigmoid() for i in (3, 4))
    return q, k, v, beta, forget.log()


@pytest.mark.parametrize("rule", GATES)
def test_functions_keep_autocast_out(rule):
    """Sums of 16 bits would lose the state; some operations do not take them at all."""
    x = [a.float() for a in inputs_of_gates()]
    expected = GATES[rule](layers, x)
    with torch.autocast("cpu", torch.bfloat16):
        assert_close(GATES[rule](layers, x), expected, rtol=0, atol=0)


@pytest.mark.parametrize("rule", GATES)
def test_forward_mode_is_the_gradient(rule):
    x = inputs_of_gates()
    with forward_ad.dual_level():
        moved_by = [forward_ad.make_dual(a, a.cos()) for a in x]
        change = forward_ad.unpack_dual(GATES[rule](layers, moved_by)[0]).tangent
    x = [a.requires_grad_() for a in x]
    out = GATES[rule](layers, x)[0]
    weights = out.detach().cos()
    gradients = torch.autograd.grad(out, x, weights, materialize_grads=True)
    along = sum((g * a.detach().cos()).sum() for g, a in zip(gradients, x, strict=True))
    assert_close((change * weights).sum(), along, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("rule", RULES)
def test_a_sequence_continues_from_a_state(rule):
    function, _, select = RULES[rule]
    given = on_layer(select(drawn(70, D, 0.3)), torch.float64)
    whole, last = function(**given)
    for cut in (1, 33, 64, 69):
        first, second = (
            {name: x if name == "state" else x.split([cut, 70 - cut], 1)[part]
             for name, x in given.items()}
            for part in range(2)
        )  # fmt: skip
        out, state = function(**first)
        rest, state = function(**second | {"state": state})
        assert_close(torch.cat([out, rest], dim=1), whole, atol=1e-12, rtol=0)
        assert_close(state, last, atol=1e-12, rtol=0)


def test_no_tokens_leave_the_state_as_it_is():
    x = on_layer(drawn(0, 1, 0.0), torch.float64)
    q, k, v, beta, forget, S = (x[n] for n in ("q", "k", "v", "beta", "log_forget", "state"))
    H = torch.eye(D, dtype=torch.float64).expand(2, D, D)
    found = [
        layers.chunked_delta_rule(q, k, v, beta=beta, log_forget=forget, state=S),
        layers.chunked_linear_attention(q, k, v, state=S),
        layers.chunked_mesa(q, k, v, beta=beta, lam=torch.tensor(1.0), state=(H, S)),
        layers.chunked_mesa(q, k, v, beta=beta, lam=torch.tensor(1.0), n_iter=2, state=(H, S)),
        layers.chunked_heavy_ball(
            q, k, v, step=beta, log_momentum=-beta, log_keep=-beta, state=(S, S)
        ),
        layers.chunked_mini_batch(q, k, v, eta=beta, batch_size=4, state=(S, S)),
    ]
    kept = [S, S, (H, S), (H, S), (S, S), (S, S)]
    for (out, last), state in zip(found, kept, strict=True):
        assert out.shape == (2, 0, E)
        assert_close(last, state, atol=0, rtol=0)


@pytest.mark.parametrize("rule", RULES)
def test_packed_sequences_are_apart_where_the_first_token_forgets_all(rule):
    function, _, select = RULES[rule]
    given = on_layer(select(drawn(70, D, 0.3)), torch.float64)
    del given["state"]
    starts, lengths = torch.tensor([0, 5, 6, 40]), [5, 1, 34, 30]
    given["log_forget"][:, starts] = -torch.inf
    packed, _ = function(**given)
    parts = [
        function(**dict(zip(given, part, strict=True)))[0]
        for part in zip(*(x.split(lengths, 1) for x in given.values()), strict=True)
    ]
    assert_close(packed, torch.cat(parts, dim=1), atol=1e-12, rtol=0)


def of_one_head(x):
    """Arrays of one head: finite differences move every entry alone."""
    return {name: y[:1] if y.ndim > 1 else y for name, y in x.items()}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("width", [0, 1, D])
def test_gradients_are_those_of_finite_differences(rule, width):
    function, _, select = RULES[rule]
    given = on_layer(of_one_head(select(drawn(6, width, 0.0))), torch.float64)
    names = list(given)

    def call(*values):
        return function(**dict(zip(names, values, strict=True)), chunk=4)

    inputs = [x.requires_grad_() for x in given.values()]
    assert torch.autograd.gradcheck(call, inputs, atol=1e-8)
    assert torch.autograd.gradgradcheck(call, inputs, atol=1e-6)


def outputs_and_gradients(function, given, chunk):
    inputs = {name: x.clone().requires_grad_() for name, x in given.items()}
    out, state = function(**inputs, chunk=chunk)
    gradients = torch.autograd.grad(out.sin().sum() + state.sum(), list(inputs.values()))
    return out.detach(), state.detach(), *gradients


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("width", [1, D])
@pytest.mark.parametrize("n", [64, 67])
def test_shut_gates_leave_outputs_and_gradients_finite_and_right(rule, width, n):
    """From logarithms of -0.01 to -1e4 and -inf, at a length that no chunk divides, in float32."""
    function, _, select = RULES[rule]
    given = on_layer(select(drawn(n, width, 0.3)), torch.float32)
    place = torch.arange(n)[:, None]
    given["log_forget"] = torch.where(place % 5 == 0, -1e4, given["log_forget"])
    wide = {name: x.double() for name, x in given.items()}
    found = outputs_and_gradients(function, given, 64)
    for one, exact in zip(found, outputs_and_gradients(function, wide, 1), strict=True):
        assert one.isfinite().all()
        assert (one - exact).abs().max() <= 3e-5 * max(1.0, float(exact.abs().max()))


def of_mesa(n, width, shut):
    """Arguments of the solver and of the layer, from a state that other tokens left."""
    x = drawn(n, width, shut)
    rng = np.random.default_rng(n)
    H, G = rng.standard_normal((2, D, D)), x.pop("state")
    x |= {"state": (H @ H.swapaxes(1, 2), G), "lam": rng.uniform(0.5, 2, D)}
    del x["metric"]
    solved = x | ({"forget": x["forget"][..., 0]} if width else {})
    given = {name: y for name, y in x.items() if name != "state"}
    return solved, given, x["state"]


def of_heavy_ball(n, shut):
    """Arguments of the solver and of the layer, with a share of momenta and decays of 0 and 1."""
    x, rng = drawn(n, 0, None), np.random.default_rng(n)
    gates = {name: rng.uniform(0, 1, (2, n)) for name in ("momentum", "keep")}
    for gate in gates.values():
        gate[rng.random(gate.shape) < shut] = 0
        gate[rng.random(gate.shape) < shut / 3] = 1
    tokens = {name: x[name] for name in "qkv"} | {"step": 0.4 * x["beta"]}
    start = x["state"], rng.standard_normal((2, D, E))
    solved = tokens | {"momentum": gates["momentum"], "decay": 1 - gates["keep"], "state": start}
    with np.errstate(divide="ignore"):
        given = tokens | {f"log_{name}": np.log(gate) for name, gate in gates.items()}
    return solved, given, start


def test_decays_have_two_derivatives_where_gates_are_shut():
    """Several gates of a chunk may be 0: the gradient never divides by them."""
    forget = torch.rand(3, 6, 1, dtype=torch.float64)
    forget[1, 2] = forget[2, 0] = forget[2, 3] = forget[2, 5] = 0
    inputs = forget.requires_grad_(), torch.float64
    assert torch.autograd.gradcheck(_Decays.apply, inputs)
    assert torch.autograd.gradgradcheck(_Decays.apply, inputs)


@pytest.mark.parametrize(("steepest", "size"), [(0.1, 64), (1.5, 32), (6.0, 4), (40.0, 1)])
def test_blocks_that_forget_little_have_the_numbers_of_single_tokens(steepest, size, monkeypatch):
    """Outputs and gradients, to the rounding of exponentials of 30."""
    q, k, v = (tokens(2, 130, D, seed=i) / 2 for i in range(3))
    forget = -steepest * uniform(2, 130, D, seed=3)
    assert chunks._block_size(split(forget, 64)) == size
    given = [x.requires_grad_() for x in (q, k, v, uniform(2, 130, seed=4), forget)]

    def run():
        out, _ = layers.chunked_delta_rule(*given[:3], beta=given[3], log_forget=given[4])
        return out.detach(), *torch.autograd.grad((out * out.detach().cos()).sum(), given)

    found = run()
    monkeypatch.setattr(chunks, "_block_size", lambda log_forget: 1)
    assert_close(found, run(), rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("shut", [0.0, 0.3, 1.0])
def test_heavy_ball_is_the_solver_in_all_forms(shut):
    for n in LENGTHS:
        solved, given, start = of_heavy_ball(n, shut)
        out, last = solvers.titans_memory(**solved)
        for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 1e-5)):
            tensors, state = on_layer(given, dtype), tuple(map(torch.from_numpy, start))
            for chunk in (1, 16, 64, n):
                found, ends = layers.chunked_heavy_ball(**tensors, state=state, chunk=chunk)
                for one, exact in zip((found, *ends), (out, *last), strict=True):
                    error = np.abs(one.numpy() - exact).max() / max(1, np.abs(exact).max())
                    assert error < tolerance, (n, dtype, chunk)


def test_gradients_of_heavy_ball_are_those_of_finite_differences():
    _, given, start = of_heavy_ball(6, 0.0)
    given = on_layer(of_one_head(given), torch.float64)
    names, state = list(given), [torch.from_numpy(x[:1]).requires_grad_() for x in start]

    def call(*values):
        x = dict(zip(names, values, strict=False))
        out, (M, Z) = layers.chunked_heavy_ball(**x, state=values[len(x) :], chunk=4)
        return out, M, Z

    inputs = [*(x.requires_grad_() for x in given.values()), *state]
    assert torch.autograd.gradcheck(call, inputs, atol=1e-8)
    assert torch.autograd.gradgradcheck(call, inputs, atol=1e-6)
    given["log_momentum"] = torch.full_like(given["log_momentum"], -torch.inf).requires_grad_()
    out = call(*given.values(), *state)[0]
    assert all(x.isfinite().all() for x in torch.autograd.grad(out.sum(), list(given.values())))


def test_heavy_ball_without_momentum_and_decay_is_the_delta_rule():
    x = on_layer(drawn(9, 0, None), torch.float64)
    zero = torch.zeros_like(x["beta"])
    q, k, v = (x[name] for name in "qkv")
    gates = {"step": x["beta"] / 2, "log_momentum": zero - torch.inf, "log_keep": zero}
    found, (M, _) = layers.chunked_heavy_ball(q, k, v, **gates)
    out, state = layers.chunked_delta_rule(q, k, v, beta=x["beta"])
    assert_close((found, M), (out, state))


@pytest.mark.parametrize("eta", [0.5, 0.7, 0.9])
def test_heavy_ball_grows_where_momentum_corrects_more_than_twice_an_error(eta):
    """Random keys, and gates on both sides of theta = 1 - eta."""
    k = torch.nn.functional.normalize(tokens(4000, 16), dim=-1)
    v, eta = tokens(4000, 2, seed=1), torch.full((4000,), eta, dtype=torch.float64)

    def largest(theta):
        given = {"step": theta, "log_momentum": eta.log(), "log_keep": 0 * eta}
        return float(layers.chunked_heavy_ball(k, k, v, **given)[1][0].abs().max())

    assert largest(0.9 * (1 - eta)) < 100
    assert largest(1.5 * (1 - eta)) > 1e6


def of_batches(n, batch_size):
    """Arguments of the rule of mini-batches, with steps that sum to 1 a batch at most."""
    x = drawn(n, 0, None)
    return {name: x[name] for name in "qkv"} | {"eta": x["beta"] / batch_size}, x["state"]


@pytest.mark.parametrize("batch_size", [1, 3, 16, 64, 100])
def test_mini_batches_are_the_solver_in_all_forms(batch_size):
    """Batches shorter and longer than a chunk, and than the sequence; seen are 1e-15 and 9e-7."""
    for n in LENGTHS:
        x, start = of_batches(n, batch_size)
        out, last = solvers.mini_batch_rule(**x, state=start, batch_size=batch_size)
        whole = n - n % batch_size
        before = solvers.mini_batch_rule(
            **{name: y[:, : max(whole, 1)] for name, y in x.items()}, state=start,
            batch_size=batch_size,
        )[1] if whole else start  # fmt: skip
        for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 1e-5)):
            given, S = on_layer(x, dtype), torch.from_numpy(start).to(dtype)
            for chunk in (1, 16, 64, n):
                found, ends = layers.chunked_mini_batch(
                    **given, state=(S, torch.full_like(S, torch.nan)), batch_size=batch_size,
                    chunk=chunk,
                )  # fmt: skip
                for one, exact in zip((found, *ends), (out, last, before), strict=True):
                    error = np.abs(one.numpy() - exact).max() / max(1, np.abs(exact).max())
                    assert error < tolerance, (n, dtype, chunk)


@pytest.mark.parametrize("batch_size", [1, 7, 64, 100])
def test_a_sequence_continues_in_the_middle_of_a_batch(batch_size):
    """Also token by token, and with hidden tokens, which take no places."""
    x, start = of_batches(70, batch_size)
    given, S = on_layer(x, torch.float64), torch.from_numpy(start)
    for hides in (False, True):
        visible = torch.arange(70) % 5 != 3 if hides else torch.ones(70, dtype=torch.bool)
        given = {name: torch.where(visible[:, None] if y.ndim > 2 else visible, y, 0)
                 for name, y in given.items()}  # fmt: skip
        rule = {"batch_size": batch_size}
        whole, last = layers.chunked_mini_batch(**given, **rule, visible=visible, state=(S, S))
        for cuts in ([33, 37], [1] * 70):
            outs, state, place = [], (S, S), 0
            parts = [y.split(cuts, 1) for y in given.values()]
            for *part, seen in zip(*parts, visible.split(cuts), strict=True):
                out, state = layers.chunked_mini_batch(
                    **dict(zip(given, part, strict=True)), **rule, visible=seen, state=state,
                    place=place,
                )  # fmt: skip
                outs.append(out)
                place = (place + int(seen.sum())) % batch_size
            assert_close(torch.cat(outs, dim=1), whole, atol=1e-12, rtol=0)
            assert_close(state, last, atol=1e-12, rtol=0)


@pytest.mark.parametrize(("batch_size", "place"), [(1, 0), (2, 1), (3, 0), (9, 4)])
def test_gradients_of_mini_batches_are_those_of_finite_differences(batch_size, place):
    x, start = of_batches(6, batch_size)
    given, S = on_layer(of_one_head(x), torch.float64), torch.from_numpy(start[:1])
    names = list(given)

    def call(*values):
        out, (last, before) = layers.chunked_mini_batch(
            **dict(zip(names, values, strict=False)), state=values[4:], batch_size=batch_size,
            place=place, chunk=4,
        )  # fmt: skip
        return out, last, before

    inputs = [y.requires_grad_() for y in (*given.values(), S, S.cos())]
    assert torch.autograd.gradcheck(call, inputs, atol=1e-8)
    assert torch.autograd.gradgradcheck(call, inputs, atol=1e-6)


def test_batches_of_one_are_the_delta_rule_and_one_batch_is_linear_attention():
    x = on_layer(of_batches(20, 1)[0], torch.float64)
    found, (last, _) = layers.chunked_mini_batch(**x, batch_size=1)
    eta = x.pop("eta")
    assert_close((found, last), layers.chunked_delta_rule(**x, beta=eta))
    found, (last, _) = layers.chunked_mini_batch(**x, eta=torch.ones_like(eta), batch_size=20)
    assert_close((found, last), layers.chunked_linear_attention(**x))
    q, k, v = (tokens(2, 3, 9, D, seed=seed) for seed in range(3))
    gates = Context(gates=tokens(2, 3, 9, 1, seed=3))
    for causal in (False, True):
        assert_close(
            MiniBatch(1, 2.0)(q, k, v, is_causal=causal, context=gates),
            DeltaRule(largest_step=2.0)(q, k, v, is_causal=causal, context=gates),
        )


@pytest.mark.parametrize("largest_step", [2.0, 2.1])
def test_equal_keys_reach_the_longest_legal_step_of_a_batch(largest_step):
    """With steps that sum to 2 errors change sign from batch to batch, and longer ones grow."""
    k, v = torch.ones(640, 1, dtype=torch.float64), torch.zeros(640, 1, dtype=torch.float64)
    S, eta = torch.ones(1, 1, dtype=torch.float64), torch.full_like(k[:, 0], largest_step / 16)
    _, (last, _) = layers.chunked_mini_batch(k, k, v, eta=eta, batch_size=16, state=(S, S))
    assert_close(last, (1 - largest_step) ** 40 * S)


@pytest.mark.parametrize("n_iter", [None, 1, 3])
@pytest.mark.parametrize(("width", "shut"), FORGETTING[:4])
def test_mesa_is_the_solver_in_all_forms(width, shut, n_iter):
    """A matrix of condition 20 or so multiplies the rounding; seen are 1e-15 and 4e-7."""
    for n in (1, 2, 17, 64, 130):
        solved, given, state = of_mesa(n, width, shut)
        steps = {} if n_iter is None else {"n_iter": n_iter}
        solve = solvers.mesa if n_iter is None else solvers.mesa_by_cg
        out, last = solve(**solved, **steps)
        for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 1e-5)):
            tensors, start = on_layer(given, dtype), tuple(map(torch.from_numpy, state))
            for chunk in (1, 16, n):
                found, sums = layers.chunked_mesa(
                    **tensors, state=start, n_iter=n_iter, chunk=chunk
                )
                for one, exact in zip((found, *sums), (out, *last), strict=True):
                    error = np.abs(one.numpy() - exact).max() / max(1, np.abs(exact).max())
                    assert error < tolerance, (n, dtype, chunk)


@pytest.mark.parametrize(("n_iter", "width"), [(None, 0), (None, 1), (2, 1)])
def test_gradients_of_mesa_are_those_of_finite_differences(n_iter, width):
    _, given, state = of_mesa(5, width, 0.0)
    given = on_layer(of_one_head(given), torch.float64)
    names, start = list(given), tuple(torch.from_numpy(x[:1]) for x in state)

    def call(*values):
        x = dict(zip(names, values, strict=True))
        out, (H, G) = layers.chunked_mesa(**x, state=start, n_iter=n_iter, chunk=2)
        return out, H, G

    inputs = [x.requires_grad_() for x in given.values()]
    assert torch.autograd.gradcheck(call, inputs, atol=1e-8)
    assert torch.autograd.gradgradcheck(call, inputs, atol=1e-5)


def test_both_exact_forms_of_mesa_have_the_same_gradients_at_weights_of_zero():
    """One solves prefixes of chunks, the other, which can forget, every token."""
    _, given, state = of_mesa(70, 0, None)
    given = on_layer(given, torch.float64)
    given["beta"][:, ::3] = 0
    H, G = (torch.from_numpy(x).requires_grad_() for x in state)
    inputs = [*(x.requires_grad_() for x in given.values()), H, G]
    start, found = ((H + H.mT) / 2, G), []
    for log_forget in (None, torch.zeros(2, 70, 1, dtype=torch.float64)):
        out, (H, G) = layers.chunked_mesa(**given, log_forget=log_forget, state=start)
        loss = out.sin().sum() + H.sin().sum() + G.sin().sum()
        found.append(torch.autograd.grad(loss, inputs, retain_graph=True))
    for prefixes, tokens_alone in zip(*found, strict=True):
        assert_close(prefixes, tokens_alone, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("size", [1e-10, 1e-20, 1e20])
def test_the_size_of_weights_and_penalty_together_does_not_matter(size):
    q, k, v = (x.float() for x in (tokens(1, 12, D), tokens(1, 12, D, seed=1), tokens(1, 12, E)))
    beta, lam = torch.ones(1, 12), torch.tensor(1.0)
    beta[:, 3] = 0
    exact, _ = layers.chunked_mesa(q, k, v, beta=beta, lam=lam)
    found, _ = layers.chunked_mesa(q, k, v, beta=size * beta, lam=size * lam)
    assert_close(found, exact, atol=1e-5, rtol=0)


def test_second_derivatives_at_weights_of_zero_are_right_or_refused():
    """Those of hidden tokens, whose keys are zero, are right."""
    q, k, v = tokens(1, 6, D), tokens(1, 6, D, seed=1), tokens(1, 6, E)
    beta = torch.ones(1, 6, dtype=torch.float64)
    beta[0, 0] = 0

    def hessian(k, **settings):
        def loss(beta):
            out, _ = layers.chunked_mesa(q, k, v, beta=beta, lam=torch.tensor(1.0), **settings)
            return out.sin().sum()

        return torch.autograd.functional.hessian(loss, beta)

    with pytest.raises(RuntimeError, match="no second derivative where a weight is below 1e-08"):
        hessian(k)
    others = {"log_forget": torch.zeros(1, 6, 1, dtype=torch.float64)}
    assert hessian(k, **others)[0, 0, 0, 0] != 0
    hidden = k.clone()
    hidden[0, 0] = 0
    assert_close(hessian(hidden), hessian(hidden, **others), atol=1e-12, rtol=0)


@pytest.mark.parametrize("lam", [1e-2, 1e-3, 1e-4])
def test_a_small_penalty_costs_no_more_digits_than_the_matrix_has(lam):
    """After 64 keys in one direction; with errors of q, H has a condition of 64 / lam."""
    generator = torch.Generator().manual_seed(0)
    U = torch.linalg.qr(torch.randn(8, 8, generator=generator))[0]
    k = torch.cat([torch.randn(1, 64, 1, generator=generator) @ U[:1],
                   torch.randn(1, 64, 8, generator=generator)], dim=1)  # fmt: skip
    k = k / k.norm(dim=-1, keepdim=True)
    q, v = torch.randn(2, 1, 128, 8, generator=generator)
    weights = torch.ones(1, 128)
    out, exact = (
        layers.chunked_mesa(
            *(x.to(dtype) for x in (q, k, v)), beta=weights.to(dtype), lam=torch.tensor(lam)
        )[0]
        for dtype in (torch.float32, torch.float64)
    )
    error = (out - exact).abs().max() / exact.abs().max()
    assert error < 3 * torch.finfo(torch.float32).eps * 64 / lam


def test_steps_past_the_solution_change_nothing():
    """With d steps and more the residual is rounding; zero queries have none from the start."""
    _, given, _ = of_mesa(20, 0, None)
    given = on_layer(given, torch.float64)
    given["q"][:, ::3] = 0
    given["q"].requires_grad_()
    exact, _ = layers.chunked_mesa(**given)
    for n_iter in (D + 3, 60):
        found, _ = layers.chunked_mesa(**given, n_iter=n_iter)
        assert_close(found, exact, atol=1e-10, rtol=0)
        (gradient,) = torch.autograd.grad(found.sum(), given["q"])
        assert gradient.isfinite().all()


def mesa_gradients(given, **settings):
    """Outputs, and gradients of a loss in all that is given, for H of symmetric changes."""
    inputs = {name: x.clone().requires_grad_() for name, x in given.items()}
    inputs["H"], inputs["G"] = inputs.pop("H"), inputs.pop("G")
    named = {name: x for name, x in inputs.items() if name not in "HG"}
    out, sums = layers.chunked_mesa(**named, state=(inputs["H"], inputs["G"]), **settings)
    loss = out.sin().sum() + sum(x.sum() for x in sums)
    gradients = dict(zip(inputs, torch.autograd.grad(loss, list(inputs.values())), strict=True))
    gradients["H"] = gradients["H"] + gradients["H"].mT
    return out.detach(), gradients


def given_to_mesa(n=20, width=1):
    _, given, (H, G) = of_mesa(n, width, 0.0)
    return on_layer(given | {"H": H, "G": G}, torch.float64)


@pytest.mark.parametrize("width", [0, 1])
def test_implicit_gradients_are_those_of_the_solution_once_steps_have_converged(width):
    """TR-5g; the condition of 20 or so multiplies a rounding, seen are 1e-14."""
    given = given_to_mesa(width=width)
    exact, expected = mesa_gradients(given)
    found, gradients = mesa_gradients(given, n_iter=D + 5, implicit=True, chunk=4)
    assert_close(found, exact, atol=1e-12, rtol=0)
    for name, gradient in gradients.items():
        size = max(1.0, float(expected[name].abs().max()))
        assert (gradient - expected[name]).abs().max() < 1e-11 * size, name


def test_implicit_gradients_of_few_steps_are_two_solves():
    """TR-5g, from matrices that are written out; the residual bounds their error, TR-5b."""
    given = given_to_mesa(7, 0)
    q, k, v, beta, lam = (given[name] for name in ("q", "k", "v", "beta", "lam"))
    pairs = (beta[..., None, None] * k[..., :, None] * k[..., None, :]).cumsum(dim=1)
    A = given["H"][:, None] + pairs + torch.diag(lam)
    sums = (beta[..., None, None] * k[..., :, None] * v[..., None, :]).cumsum(dim=1)
    G = given["G"][:, None] + sums

    def steps(b):
        return torch.stack([
            torch.from_numpy(solvers.ridge._solve_by_cg(A[:, t].numpy(), b[:, t, None].numpy(), 2))
            for t in range(7)
        ], dim=1)[..., 0, :]  # fmt: skip

    x = steps(q)
    out = (x[..., None, :] @ G)[..., 0, :]
    dx = (G @ out.cos()[..., None])[..., 0]
    y = steps(dx)
    assert_close(mesa_gradients(given, n_iter=2, implicit=True)[0], out)
    _, found = mesa_gradients(given, n_iter=2, implicit=True)
    assert_close(found["q"], y)
    assert_close(found["lam"], -(y * x).sum(dim=(0, 1)))
    residual = (dx - (y[..., None, :] @ A)[..., 0, :]).norm(dim=-1)
    missed = (torch.linalg.solve(A, dx) - y).norm(dim=-1)
    assert 0.1 < (missed / (residual / lam.min())).max() <= 1


def test_implicit_gradients_of_two_steps_are_not_the_derivative_of_the_steps():
    """TR-5g: for random keys they are more than 18 percent apart, in nearly every draw."""
    apart = []
    for seed in range(20):
        q, k, v = (tokens(1, 30, 16, seed=3 * seed + part) for part in range(3))
        given = {"q": nearly_unit(q), "k": nearly_unit(k), "v": v, "lam": tokens(16).exp()}
        zero = torch.zeros(1, 16, 16).double()
        given |= {"beta": torch.ones(1, 30).double(), "H": zero, "G": zero}
        _, implicit = mesa_gradients(given, n_iter=2, implicit=True)
        _, of_steps = mesa_gradients(given, n_iter=2)
        apart.append(float((implicit["q"] - of_steps["q"]).norm() / of_steps["q"].norm()))
    assert np.mean(np.array(apart) > 0.18) >= 0.9


@pytest.mark.parametrize("causal", [False, True])
def test_implicit_gradients_of_the_layer(causal):
    """Right where the state is read at once too; second derivatives and torch.func are refused."""
    q, k, v = (tokens(2, 3, 9, D, seed=seed).requires_grad_() for seed in range(3))
    found = Mesa(0.7, n_iter=30, implicit=True)(q, k, v, is_causal=causal)
    exact = Mesa(0.7)(q, k, v, is_causal=causal)
    gradients, expected = (
        torch.autograd.grad(out.sin().sum(), (q, k, v), create_graph=True) for out in (found, exact)
    )
    assert_close(gradients, expected, atol=1e-12, rtol=0)
    with pytest.raises(RuntimeError, match="implicit gradients have no second derivative"):
        torch.autograd.grad(gradients[1].sum(), k)
    with pytest.raises(RuntimeError, match="neither be exported nor transformed"):
        torch.func.grad(lambda q: Mesa(n_iter=3, implicit=True)(q, k, v).sum())(q)
    with torch.no_grad():
        assert_close(Mesa(0.7, n_iter=30, implicit=True)(q, k, v, is_causal=causal), exact)


def test_implicit_gradients_keep_nothing_of_the_steps():
    """Tensors that a backward pass keeps, counted for 2 and 9 steps."""
    given = given_to_mesa()

    def n_kept(**settings):
        kept = []
        with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x), lambda x: x):
            inputs = {name: x.clone().requires_grad_() for name, x in given.items()}
            state = inputs.pop("H"), inputs.pop("G")
            layers.chunked_mesa(**inputs, state=state, **settings)
        return len(kept)

    assert n_kept(n_iter=9, implicit=True) == n_kept(n_iter=2, implicit=True)
    assert n_kept(n_iter=9) > 2 * n_kept(n_iter=2)


def test_a_large_penalty_makes_mesa_linear_attention():
    """TR-1: |lam S - G| is at most |H| / (|H| + lam) of |G|."""
    q, k, v = (tokens(2, 9, D, seed=seed) for seed in range(3))
    found = 1e9 * Mesa(1e9)(q, k, v, is_causal=True)
    summed, _ = layers.chunked_linear_attention(nearly_unit(q), nearly_unit(k), v)
    assert_close(found, summed, atol=1e-6, rtol=0)


def test_a_hundred_thousand_tokens_do_not_drift():
    """float32 beside float64; the error does not grow from the first tenth to the last."""
    x = on_layer(drawn(100_000, 1, 0.0), torch.float64)
    x["log_forget"] = 0.01 * x["log_forget"]
    x["k"] = nearly_unit(x["k"])
    exact, _ = layers.chunked_delta_rule(**x)
    found, _ = layers.chunked_delta_rule(**{name: y.float() for name, y in x.items()})
    first, *_, last = (found - exact).abs().split(10_000, dim=1)
    assert last.max() < 3 * first.max() < 3e-5


DECAYING = {
    "delta rule": lambda x, log_forget, S: layers.chunked_delta_rule(
        x, x, x, beta=x[..., 0], log_forget=log_forget, state=S
    ),
    "sums": lambda x, log_forget, S: layers.chunked_linear_attention(
        x, x, x, log_forget=log_forget, state=S
    ),
    "heavy ball": lambda x, log_forget, S: layers.chunked_heavy_ball(
        x, x, x, step=x[..., 0], log_momentum=x[..., 0], log_keep=log_forget[..., 0],
        state=(S, 0 * S),
    ),
    "Mesa": lambda x, log_forget, S: layers.chunked_mesa(
        x, x, x, beta=x[..., 0], lam=torch.tensor(1.0), log_forget=log_forget, n_iter=1,
        state=(S, S),
    ),
}  # fmt: skip


@pytest.mark.parametrize("rate", [2.9e-8, 1e-6, 1e-4, 1e-2])
@pytest.mark.parametrize(
    ("rule", "width"), [*((rule, 1) for rule in DECAYING), ("delta rule", 4), ("sums", 4)]
)
def test_weak_gates_forget_at_their_rate_in_float32(rule, width, rate):
    """float32 has no number between 1 and 1 - 6e-8; each of 100 chunks rounds the state once.

    A gate of another feature that is shut must not change this.
    """
    x, forget = torch.zeros(6400, 4), torch.full((6400, width), -rate)
    forget[-1, 3:] = -torch.inf
    for apply in (lambda f: f, torch.func.vmap):
        call = apply(lambda x, forget, S: DECAYING[rule](x, forget, S)[1])
        state = call(x[None], forget[None], torch.ones(1, 4, 4))
        left = (state if isinstance(state, torch.Tensor) else state[0])[0, :3]
        assert_close(left.double(), torch.full_like(left, -6400 * rate).double().exp(),
                     rtol=1e-5, atol=0)  # fmt: skip


@pytest.mark.parametrize("step", [1.0, 2.0])
def test_equal_keys_and_the_longest_step_do_not_explode(step):
    """TR-4: rows of the chunk's inverse stay below beta sqrt(1 + n beta^2) for unit keys."""
    k = nearly_unit(torch.ones(1, 512, D, dtype=torch.float64))
    v, beta = tokens(1, 512, E), torch.full((1, 512), step, dtype=torch.float64)
    exact, _ = solvers.delta_rule(*(x.numpy() for x in (k, k, v)), beta=beta.numpy())
    found, _ = layers.chunked_delta_rule(k, k, v, beta=beta)
    assert np.abs(found.numpy() - exact).max() < 1e-11 * np.abs(exact).max()


def test_a_state_of_16_bit_tokens_is_float32():
    """In bfloat16 a sum would stand still at 256."""
    one = torch.ones(400, 1, dtype=torch.bfloat16)
    out, state = layers.chunked_linear_attention(one, one, one, chunk=1)
    assert (out.dtype, state.dtype, float(state)) == (torch.bfloat16, torch.float32, 400.0)
    more = layers.chunked_linear_attention(one, one, one, state=state)[1]
    assert float(more) == 800.0


def test_a_step_of_one_stores_a_value_exactly():
    k = torch.eye(4, dtype=torch.float64)
    v = tokens(4, E)
    out, state = layers.chunked_delta_rule(k, k, v, beta=torch.ones(4, dtype=torch.float64))
    assert_close(out, v)
    assert_close(k @ state, v)


OPERATORS = {
    "sums": GatedLinear,
    "sums per feature": lambda: GatedLinear(forget="feature"),
    "delta": DeltaRule,
    "gated": lambda: DeltaRule("token"),
    "preconditioned": lambda: DeltaRule("feature", preconditioned=True),
    "heavy ball": HeavyBall,
    "mesa": lambda: Mesa(forget="token"),
    "mini-batches": lambda: MiniBatch(4),
    "mesa by steps": lambda: Mesa(n_iter=3, num_heads=3, learnable=True, dtype=torch.float64),
    "proximal": lambda: ProximalPoint("feature"),
}


def test_operators_start_at_their_origins():
    q, k, v = (tokens(2, 3, 9, D, seed=seed) for seed in range(3))
    unit = nearly_unit(q), nearly_unit(k), v
    for causal in (False, True):
        assert_close(
            GatedLinear(0.3, "feature")(q, k, v, is_causal=causal),
            Linear(0.3)(q, k, v, is_causal=causal),
        )
        plain = DeltaRule()(q, k, v, is_causal=causal)
        for same in (DeltaRule("token"), DeltaRule("feature", preconditioned=True)):
            assert_close(same(q, k, v, is_causal=causal), plain)
        assert_close(ProximalPoint()(q, k, v, is_causal=causal), plain, atol=1e-5, rtol=0)
    assert_close(
        plain, layers.chunked_delta_rule(*unit, beta=torch.full((2, 3, 9), 0.5).double())[0]
    )
    assert_close(
        DeltaRule(largest_step=2.0)(q, k, v, is_causal=True),
        layers.chunked_delta_rule(*unit, beta=torch.ones(2, 3, 9).double())[0],
    )


@pytest.mark.parametrize("name", OPERATORS)
def test_the_shell_projects_the_keys_to_gates(name):
    layer = Attention(12, 3, operator=OPERATORS[name](), dtype=torch.float64)
    x, y = tokens(2, 7, 12), tokens(2, 9, 12, seed=1)
    layer(x, x, x, is_causal=True, need_weights=False)[0].square().sum().backward()
    started = layer.gate_proj.weight.grad
    assert started.abs().sum() > 0
    moved(layer)
    q, k, v = layer.project(x, y, y)
    gates = layer.gate_proj(y).unflatten(-1, (3, -1)).transpose(1, 2)
    expected = layer.operator(q, k, v, context=Context(gates=gates))
    expected = layer.out_proj(expected.transpose(1, 2).flatten(2))
    assert_close(layer(x, y, y, need_weights=False)[0], expected)
    copied = Attention(12, 3, operator=OPERATORS[name](), dtype=torch.float64)
    copied.load_state_dict(layer.state_dict())
    assert_close(copied(x, y, y, need_weights=False)[0], expected)
    copied.reset_parameters()
    assert not any(p.any() for p in copied.gate_proj.parameters())
    assert Attention(12, 3, operator=Linear()).gate_proj is None


def test_a_correction_has_the_gates_of_its_base():
    corrected = quiet(Twicing, DeltaRule("feature"))
    assert corrected.gates == {"beta": "token", "log_forget": "feature"}
    assert Attention(12, 3, operator=corrected).gate_proj.out_features == 3 * (1 + 4)


@pytest.mark.parametrize("name", OPERATORS)
def test_hidden_keys_of_later_chunks_do_nothing_either(name):
    layer = moved(Attention(12, 3, operator=OPERATORS[name](), dtype=torch.float64), 0.05)
    x, hidden = tokens(1, 150, 12), torch.arange(150)[None] % 7 == 3
    found = layer(x, x, x, key_padding_mask=hidden, is_causal=True, need_weights=False)[0]
    short = x[:, ~hidden[0]]
    expected = layer(short, short, short, is_causal=True, need_weights=False)[0]
    assert_close(found[:, ~hidden[0]], expected, atol=1e-11, rtol=0)


def test_gates_are_not_handed_to_the_next_layer():
    layer, x = Attention(12, 3, operator=DeltaRule(), dtype=torch.float64), tokens(2, 7, 12)
    *_, context = layer(x, x, x, is_causal=True, need_weights=False, context=Context())
    assert context.gates is None


@pytest.mark.parametrize("name", OPERATORS)
def test_hidden_keys_neither_write_nor_forget(name):
    """Padding on either side, and in the middle; corrections hand the gates on."""
    operator = quiet(Twicing, OPERATORS[name]())
    layer = moved(Attention(12, 3, operator=operator, dtype=torch.float64))
    x = tokens(1, 9, 12)
    for seen in (range(2, 9), range(7), [0, 1, 4, 5, 8]):
        seen = torch.tensor(seen)
        hidden = torch.ones(1, 9, dtype=torch.bool)
        hidden[:, seen] = False
        padded = x.masked_fill(hidden[..., None], 1e3)
        found = layer(
            padded, padded, padded, key_padding_mask=hidden, is_causal=True, need_weights=False
        )[0][:, seen]
        short = x[:, seen]
        expected = layer(short, short, short, is_causal=True, need_weights=False)[0]
        assert_close(found, expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize("name", OPERATORS)
def test_a_causal_mask_is_the_causal_layer(name):
    operator, q = OPERATORS[name](), tokens(2, 3, 9, D)
    lower = torch.ones(9, 9, dtype=torch.bool).tril()
    expected = operator(q, q, q, is_causal=True)
    for masks in ({"mask": lower}, {"mask": lower, "is_causal": True}):
        assert torch.equal(operator(q, q, q, **masks), expected)


@pytest.mark.parametrize(
    "name",
    [
        "delta_rule",
        "gated_delta_rule",
        "gated_linear",
        "heavy_ball",
        "mesa",
        "mini_batch",
        "proximal_point",
    ],
)
def test_models_take_it_by_name(name):
    model = LanguageModel(11, 12, 2, 3, 16, operator=name)
    ids = torch.randint(11, (2, 16), generator=torch.Generator().manual_seed(0))
    model.loss(ids).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    changed = ids.clone()
    changed[:, 9:] = 0
    assert_close(model(changed)[:, :9], model(ids)[:, :9])
    VisionTransformer(8, 2, 1, 5, 12, 2, 3, operator=name)(torch.rand(2, 1, 8, 8)).sum().backward()


@pytest.mark.parametrize("name", OPERATORS)
def test_a_program_for_any_batch_and_length_has_the_same_numbers(name):
    class Causal(torch.nn.Module):
        operator = OPERATORS[name]()

        def forward(self, q, k, v, gates):
            return self.operator(q, k, v, is_causal=True, context=Context(gates=gates))

    def inputs(n, batch):
        width = sum(Causal.operator.gate_widths(D).values())
        gates = tokens(batch, 3, n, width, seed=4)
        return *(tokens(batch, 3, n, D, seed=seed) for seed in range(3)), gates

    axes = {0: torch.export.Dim("batch"), 2: torch.export.Dim("tokens", min=2)}
    program = torch.export.export(Causal(), inputs(20, 2), dynamic_shapes=(axes,) * 4).module()
    for n, batch in ((2, 1), (20, 3), (130, 2)):
        assert_close(program(*inputs(n, batch)), Causal()(*inputs(n, batch)), atol=1e-10, rtol=0)


Q = tokens(2, 4, D)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: DeltaRule("all"), "forget: must be None, 'token' or 'feature', got 'all'"),
        (lambda: GatedLinear(forget=None), "forget: must be 'token' or 'feature', got None"),
        (lambda: DeltaRule(largest_step=2.5), r"largest_step: must be in \(0, 2\], got 2.5"),
        (lambda: HeavyBall(1.5), r"largest_step: must be in \(0, 1\], got 1.5"),
        (lambda: DeltaRule(largest_step=0.0), "largest_step: must be"),
        (
            lambda: DeltaRule(preconditioned=True, largest_step=1.5),
            "largest_step: must be at most 4/3 for preconditioned=True, as m reaches 3/2, got 1.5",
        ),
        (
            lambda: layers.chunked_mesa(
                Q, Q, Q, beta=Q[..., 0], lam=torch.tensor(1.0), state=(Q, Q.mT @ Q)
            ),
            r"state: must have shape \(2, 5, 5\) on cpu, got \(2, 4, 5\)",
        ),
        (
            lambda: layers.chunked_heavy_ball(
                Q, Q, Q, step=Q[..., 0], log_momentum=Q[..., 0], log_keep=Q[..., 0],
                state=(Q.mT @ Q, Q),
            ),
            r"state: must have shape \(2, 5, 5\) on cpu, got \(2, 4, 5\)",
        ),
        (
            lambda: DeltaRule("feature")(Q, Q, Q, context=Context(gates=Q)),
            r"context.gates: DeltaRule needs 6 numbers a token, .* got shape \(2, 4, 5\)",
        ),
        (
            lambda: DeltaRule()(Q, Q, Q, context=Context(gates=torch.zeros(3, 2, 4, 1))),
            r"with the leading axes \(2,\) or 1; got shape \(3, 2, 4, 1\)",
        ),
        (
            lambda: DeltaRule()(Q, Q, Q, context=Context(gates=Q[:, :3, :1])),
            "context.gates: must have as many tokens as the keys, 4, got",
        ),
        (
            lambda: layers.chunked_delta_rule(Q, Q[:, :3], Q[:, :3], beta=Q[..., :3, 0]),
            "q: must have as many tokens as k, 3, got 4",
        ),
        (
            lambda: layers.chunked_delta_rule(Q, Q, Q, beta=Q[:, :3, 0]),
            "beta: must have one number, or 5, for each of the 4 tokens",
        ),
        (
            lambda: layers.chunked_linear_attention(Q, Q, Q, log_forget=Q[..., :2]),
            "log_forget: must have one number, or 5, for each of the 4 tokens",
        ),
        (
            lambda: layers.chunked_delta_rule(Q, Q, Q, beta=Q[..., 0], state=Q),
            r"state: must have shape \(2, 5, 5\)",
        ),
        (
            lambda: layers.chunked_delta_rule(Q, Q, Q, beta=torch.ones(3, 2, 4)),
            r"beta: must have the leading axes \(2,\) or 1, got shape \(3, 2, 4, 1\)",
        ),
        (
            lambda: layers.chunked_mesa(Q, Q, Q, beta=Q[..., 0], lam=torch.ones(7)),
            r"lam: must broadcast to \(2, 1, 5\) on cpu, got \(7,\)",
        ),
        (
            lambda: layers.chunked_mini_batch(
                Q, Q, Q, eta=Q[..., 0], batch_size=2, visible=torch.ones(4)
            ),
            r"visible: must be bool and broadcast to \(2, 4\), got torch.float32",
        ),
        (
            lambda: layers.chunked_delta_rule(Q, Q, Q, beta=0.5),
            "beta: must be a Tensor with a number for each token, got 0.5",
        ),
        (
            lambda: layers.chunked_linear_attention(Q, Q, Q, log_forget=-0.1),
            "log_forget: must be a Tensor, got float",
        ),
        (
            lambda: layers.chunked_linear_attention(Q, Q, Q, state=(Q.mT @ Q).cfloat()),
            "state: must be a real Tensor, got torch.complex64",
        ),
        (
            lambda: layers.chunked_mesa(Q, Q, Q, beta=Q[..., 0], lam=-1.0),
            "lam: must be a finite number > 0, got -1.0",
        ),
        (
            lambda: layers.chunked_mesa(Q, Q, Q, beta=Q[..., 0], lam=torch.zeros(()), n_iter=2),
            "lam: must be > 0, got 0",
        ),
        (lambda: Mesa(forget="feature"), "forget: must be None or 'token', got 'feature'"),
        (lambda: Mesa(0.0), "lam: must be"),
        (lambda: Mesa(n_iter=0), "n_iter: must be"),
        (lambda: Mesa(implicit=True), "implicit: needs n_iter; the exact solution has exact"),
        (lambda: MiniBatch(0), "batch_size: must be a whole number >= 1, got 0"),
        (lambda: MiniBatch(4, 2.5), r"largest_step: must be in \(0, 2\], got 2.5"),
        (
            lambda: layers.chunked_mini_batch(Q, Q, Q, eta=Q[..., 0], batch_size=4, place=4),
            r"place: must be a whole number in \[0, 3\], got 4",
        ),
        (
            lambda: layers.chunked_mini_batch(
                Q, Q, Q, eta=Q[..., 0], batch_size=2, state=(Q.mT @ Q, Q)
            ),
            r"state: must have shape \(2, 5, 5\) on cpu, got \(2, 4, 5\)",
        ),
        (
            lambda: layers.chunked_mesa(
                Q, Q, Q, beta=Q[..., 0], lam=torch.tensor(1.0), log_forget=Q
            ),
            "log_forget: must have one number for each token",
        ),
        (lambda: layers.chunked_delta_rule(Q, Q, Q, beta=Q[..., 0], chunk=0), "chunk: must be"),
        (
            lambda: replace_attention(
                torch.nn.TransformerEncoderLayer(12, 3, batch_first=True), DeltaRule()
            ),
            "takes beta from the tokens by a projection of its own",
        ),
    ],
)  # fmt: skip
def test_bad_input_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_models_of_hugging_face_have_no_gates():
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=11, n_positions=16)
    with pytest.raises(ValueError, match="which no replaced layer has"):
        attach_huggingface(transformers.GPT2LMHeadModel(config), DeltaRule())


def packed_mask(lengths, hidden=()):
    """Whether a token sees another: an earlier one of its own sequence that is not hidden."""
    number = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))
    mask = (number[:, None] == number).tril()
    if hidden:
        mask[:, list(hidden)] = False
    return mask


@pytest.mark.parametrize("name", [n for n in OPERATORS if OPERATORS[n]().takes_packed])
@pytest.mark.parametrize("hidden", [(), (0, 1), (3, 6, 70)])
def test_packed_sequences_are_computed_as_if_alone(name, hidden):
    """Also across chunks, with padding at their start, within and at the end, and by row."""
    layer = moved(Attention(12, 3, operator=OPERATORS[name](), dtype=torch.float64))
    lengths = [6, 1, 64]
    x = tokens(2, 71, 12)
    masks = torch.stack([packed_mask(lengths, hidden), packed_mask([71], hidden)])[:, None]
    for row in hidden:  # a library may let hidden tokens see all before, as a softmax needs some
        masks[0, 0, row, :row] = True
    found = layer(x, x, x, attn_mask=~masks, need_weights=False)[0]
    for row, parts in enumerate((lengths, [71])):
        for start, length in zip(np.cumsum([0, *parts]), parts, strict=False):
            seen = [t for t in range(start, start + length) if t not in hidden]
            if seen:
                own = x[row : row + 1, seen]
                alone = layer(own, own, own, is_causal=True, need_weights=False)[0]
                assert_close(found[row : row + 1, seen], alone, atol=1e-11, rtol=0)


@pytest.mark.parametrize(
    ("operator", "mask"),
    [
        (HeavyBall, packed_mask([3, 4])),
        (lambda: MiniBatch(2), packed_mask([3, 4])),
        (DeltaRule, packed_mask([7]).triu(-3)),  # a window
        (DeltaRule, packed_mask([7]).tril(-1)),  # no token sees itself
        (DeltaRule, packed_mask([3, 1, 3])[[0, 1, 2, 3, 0, 0, 6]]),
        (DeltaRule, packed_mask([3, 4]) | packed_mask([3, 4]).mT),  # both directions
    ],
)
def test_other_masks_of_pairs_are_refused(operator, mask):
    q = tokens(2, 7, D)
    with pytest.raises(ValueError, match="may only hide whole keys"):
        operator()(q, q, q, mask=mask)
