"""Decoding from a state: however a sequence is split, its outputs are those of the whole."""

import pytest
import torch
from torch.testing import assert_close

from twinsolve.unrolled import (
    Attention,
    AttnScale,
    Context,
    LanguageModel,
    Neutreno,
    Softmax,
    Symmetric,
    Twicing,
)
from twinsolve.unrolled.models.language_model import DecodingState
from twinsolve.unrolled.online_regression import DeltaRule, HeavyBall, Mesa, MiniBatch

from .draws import moved
from .operator_calls import qkv, tokens
from .operator_cases import OPERATORS, make, quiet

PARTS = (4, 1, 1, 3)
IDS = torch.randint(11, (2, 9), generator=torch.Generator().manual_seed(0))


def can_decode(operator):
    try:
        operator.check_decodes()
    except ValueError:
        return False
    return True


DECODERS = [name for name in OPERATORS if can_decode(make(name))]
REFUSED = {
    "nystrom": "does not support is_causal",
    "self-expression": "as many queries as keys",
    "tupe": "needs positions",
}


def in_parts(decode, *sequences, parts=PARTS):
    """The outputs of sequences that are handed over a few tokens at a time, and the last state."""
    state, outputs = None, []
    for part in zip(*(x.split(parts, dim=-2) for x in sequences), strict=True):
        out, state = decode(*part, state)
        outputs.append(out)
    return torch.cat(outputs, dim=-2), state


# Operators with rows of several outputs of earlier tokens, and those of explicit and fused passes.
BY_TURNS = {
    "neutreno iterated": lambda: Neutreno(Softmax(), 0.3, n_iter=3),
    "relaxed": lambda: Neutreno(Softmax(), relaxed=True, n_iter=2),
    "twicing in two passes": lambda: two_passes(Twicing(Softmax())),
    "twicing of a rule": lambda: quiet(Twicing, DeltaRule()),
}


def two_passes(twicing):
    twicing.max_explicit = 0
    return twicing


@pytest.mark.parametrize("name", [*DECODERS, *BY_TURNS])
def test_operators_go_on_where_they_stopped(name):
    operator, inputs = BY_TURNS[name]() if name in BY_TURNS else make(name), qkv()
    whole = operator(*inputs, is_causal=True, context=first_values(inputs[2]))

    def decode(q, k, v, state):
        return operator.decode(q, k, v, state, context=first_values(v))

    for parts in (PARTS, (0, 5, 0, 4, 0)):
        out, _ = in_parts(decode, *inputs, parts=parts)
        assert_close(out, whole, rtol=0, atol=1e-12)


def first_values(v):
    return Context(first_values=torch.sin(v))


@pytest.mark.parametrize("make_operator", [lambda: Symmetric(), lambda: Twicing(Softmax())])
def test_rows_by_turns_take_masks_that_hide_keys(make_operator):
    operator, (q, k, v) = make_operator(), qkv()
    mask = torch.ones(9, 9, dtype=torch.bool).tril() & (torch.arange(9) != 1)
    mask[1] = False
    whole, kept, outputs = operator(q, k, v, mask=mask), [], []
    for start, stop in ((0, 4), (4, 5), (5, 9)):
        out = operator(
            q[..., start:stop, :], k[..., :stop, :], v[..., :stop, :],
            mask=mask[start:stop, :stop], kept=kept,
        )  # fmt: skip
        outputs.append(out)
    assert_close(torch.cat(outputs, dim=-2), whole, rtol=0, atol=1e-12)
    assert all(x.shape == v.shape for x in kept)


def test_what_is_kept_must_be_of_the_tokens_before():
    q, k, v = qkv()
    for kept in ([], [v[..., :2, :]], [v[..., :-1, :]] * 2, [v[..., :-1, :].float()]):
        with pytest.raises(
            ValueError, match=r"kept: Twicing needs 1 tensors of shape \(2, 3, 8, 4"
        ):
            Twicing(Softmax())(q[..., -1:, :], k, v, kept=kept)
    with pytest.raises(ValueError, match="Twicing: needs as many queries as keys, all in one call"):
        Twicing(Symmetric())(q, k, v, kept=[])


@pytest.mark.parametrize(("name", "reason"), REFUSED.items())
def test_operators_that_cannot_go_on_say_why(name, reason):
    with pytest.raises(ValueError, match=reason):
        make(name).decode(*qkv())


GATED = [DeltaRule("feature"), Mesa(n_iter=2), HeavyBall(), quiet(AttnScale, DeltaRule("token"))]


@pytest.mark.parametrize("operator", GATED, ids=lambda operator: type(operator).__name__)
def test_shells_hand_over_gates_of_the_new_tokens_alone(operator):
    layer, x = moved(Attention(12, 3, operator=operator), 0.5).double(), tokens(2, 9, 12)

    def decode(x, state):
        context = Context(states=(state,))
        out, _, context = layer(x, x, x, need_weights=False, context=context)
        return out, context.states[0]

    expected, _ = layer(x, x, x, need_weights=False, is_causal=True)
    assert_close(in_parts(decode, x)[0], expected, rtol=0, atol=1e-12)


MODELS = {
    "softmax": {},
    "delta_rule": {"operator": "delta_rule", "tie_weights": False},
    "three kinds": {"operator": ["mesa", "token_statistics", "alibi"]},
    "rows of earlier outputs": {"operator": ["twicing", "neutreno", "symmetric"]},
    "positions in a layer": {"operator": ["alibi", "heavy_ball", "softmax"]},
}


def language_model(**options):
    torch.manual_seed(0)
    return moved(LanguageModel(11, 12, 3, 3, 9, **options), 0.2).double().eval()


@pytest.mark.parametrize("options", MODELS.values(), ids=MODELS)
def test_language_models_go_on_where_they_stopped(options):
    model, state, scores = language_model(**options), None, []
    for ids in IDS.split(PARTS, dim=1):
        part, state = model.decode(ids, state)
        scores.append(part)
    assert_close(torch.cat(scores, dim=1), model(IDS), rtol=0, atol=1e-12)
    assert state.n_tokens == 9
    with pytest.raises(ValueError, match="ids: must have at most 0 tokens, got 1"):
        model.decode(IDS[:, :1], state)


def test_models_refuse_the_state_of_another_depth():
    model = language_model()
    _, (n_tokens, layers) = model.decode(IDS[:, :2])
    wrong = [DecodingState(n_tokens, layers[:2]), DecodingState(n_tokens, layers * 2), layers]
    for state in wrong:
        with pytest.raises(ValueError, match="state: must be what a call of a model of 3 layers"):
            model.decode(IDS[:, 2:], state)


def test_states_of_rules_do_not_grow():
    model, state = language_model(operator=["delta_rule", "mesa", "token_statistics"]), None
    sizes = []
    for ids in IDS.split(3, dim=1):
        _, state = model.decode(ids, state)
        tensors = [
            x for layer in state.layers for x in (layer if type(layer) is tuple else [layer])
        ]
        sizes.append([x.shape for x in tensors])
    assert sizes[0] == sizes[1] == sizes[2]


def test_gradients_reach_the_tokens_of_a_state():
    operator = DeltaRule("token")
    q, k, v = (x.requires_grad_() for x in qkv())
    whole = torch.autograd.grad(operator(q, k, v, is_causal=True)[..., -3:, :].sum(), (q, k, v))
    out, _ = in_parts(operator.decode, q, k, v)
    parts = torch.autograd.grad(out[..., -3:, :].sum(), (q, k, v))
    for got, expected in zip(parts, whole, strict=True):
        assert_close(got, expected, rtol=0, atol=1e-12)


WRONG_STATES = [
    (Softmax(), torch.ones(3), "state: must be the 2 tensors"),
    (Softmax(), (torch.ones(2, 3, 1, 4),) * 2, "state: must fit tokens of shape"),
    (DeltaRule(), (torch.ones(3),), "state: must be a real Tensor, got tuple"),
    (Mesa(), torch.ones(3), "state: must be a pair, got Tensor"),
    (HeavyBall(), (torch.ones(3),) * 2, "state: must have shape"),
    (MiniBatch(), ((torch.ones(3),) * 2, torch.ones(3)), r"state\[1\]: must be"),
    (Softmax(), (1, 2), "state: must hold tensors, got int"),
    (MiniBatch(), torch.ones(3), "state: must be a pair, got Tensor"),
]


@pytest.mark.parametrize(("operator", "state", "message"), WRONG_STATES)
def test_states_that_do_not_fit_are_refused(operator, state, message):
    with pytest.raises(ValueError, match=message):
        operator.double().decode(*qkv(), state)


def test_decoding_takes_no_mask_and_gives_no_matrix():
    layer, x, context = Attention(12, 3, operator=Softmax()), torch.ones(2, 4, 12), (None,)
    padding = torch.zeros(2, 4, dtype=torch.bool)
    with pytest.raises(ValueError, match="decoding from a state takes no mask"):
        layer(x, x, x, padding, need_weights=False, context=Context(states=context))
    with pytest.raises(ValueError, match="need_weights: decoding from a state gives no matrix"):
        layer(x, x, x, context=Context(states=context))
    with pytest.raises(ValueError, match=r"context\.states: must have an entry"):
        layer(x, x, x, need_weights=False, context=Context(states=()))
