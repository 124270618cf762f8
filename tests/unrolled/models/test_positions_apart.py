"""Positions that operators take as a feature of their own are in no tokens."""

import math
from functools import partial

import pytest
import torch
from torch.testing import assert_close

from twinsolve.unrolled import (
    ALiBi,
    Biased,
    Bilateral,
    Call,
    ClassAttentionTransformer,
    LanguageModel,
    Neutreno,
    Softmax,
    Tupe,
    Twicing,
    VisionTransformer,
    WindowedTransformer,
    make_operator,
    operator_names,
    replace_attention,
)
from twinsolve.unrolled.models import SequenceClassifier

from ..recording import record_calls

GENERATOR = torch.Generator().manual_seed(0)
IMAGES = torch.randn(2, 1, 8, 8, generator=GENERATOR, dtype=torch.float64)
IDS = torch.randint(9, (2, 10), generator=GENERATOR)
MODELS = {
    "vision": partial(VisionTransformer, 8, 2, 1, 5, 12, 2, 3),
    "mean": partial(VisionTransformer, 8, 2, 1, 5, 12, 2, 3, pool="mean"),
    "class attention": partial(ClassAttentionTransformer, 8, 2, 1, 5, 12, 2, 3),
    "windowed": partial(WindowedTransformer, 8, 1, 1, 5, 12, (2,), (3,), window_size=4),
    "language": partial(LanguageModel, 9, 12, 2, 3, 10),
    "sequence": partial(SequenceClassifier, 5, 12, 2, 3, 10, vocab_size=9),
}
MODELS_AND_STAGES = {
    **MODELS,
    "two stages": partial(WindowedTransformer, 8, 1, 1, 5, 6, (1, 1), (3, 3), window_size=4),
}
APART = {
    "alibi": lambda: ALiBi(3),
    "bilateral": lambda: Bilateral(),
    "nlsa": lambda: Bilateral(math.inf),
    "tupe": lambda: Tupe(12, 3),
    "twicing of alibi": lambda: Twicing(ALiBi(3)),
    "neutreno of nlsa": lambda: Neutreno(Bilateral(math.inf)),
}


def build(name, **options):
    torch.manual_seed(0)
    model = MODELS[name](dtype=torch.float64, **options)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model.eval()


def inputs(name):
    return IDS if name in ("language", "sequence") else IMAGES


def embedded(model, name):
    """What enters the first block of a model without positions."""
    if name in ("language", "sequence"):
        return model.embedding(IDS) * 12**0.5
    x = model.patch_embedding(IMAGES)
    if name == "vision":
        return torch.cat([model.class_token.expand(2, 1, 12), x], dim=1)
    if name == "windowed":
        x = model.stages[0].windows[0].split(x.unflatten(1, (8, 8)))
    return x


def positions_of(model, name):
    if name == "windowed":
        p = model.stages[0].positions.weight.unflatten(0, (8, 8))[None]
        return model.stages[0].windows[0].split(p).repeat(2, 1, 1)
    return model.positions.weight


def first_layer(model, name):
    """What enters the first block, and what its operator gets."""
    seen = {}
    block = model.stages[0].blocks[0] if name == "windowed" else model.blocks[0]
    handles = [
        block.register_forward_pre_hook(lambda module, args: seen.update(tokens=args[0])),
        block.attention.operator.register_forward_pre_hook(
            lambda module, args, kwargs: seen.update(qkv=args, **kwargs), with_kwargs=True
        ),
    ]
    model(inputs(name))
    for handle in handles:
        handle.remove()
    return block, seen


def heads(x, weight, bias=None):
    y = torch.nn.functional.linear(x, weight, bias)
    return y.unflatten(-1, (3, 4)).transpose(-3, -2)


@pytest.mark.parametrize("name", ["vision", "windowed"])
@pytest.mark.parametrize("operator", ["bilateral", "tupe", "alibi", "nlsa"])
def test_logits_of_the_first_layer_are_those_of_the_equations(name, operator):
    """IF-21, IF-30 and IF-ALI, of embedded tokens and positions; no cross terms."""
    model = build(name, operator=APART[operator]())
    block, seen = first_layer(model, name)
    made = block.attention.operator
    y, p = block.attention_norm(embedded(model, name)), positions_of(model, name)
    (w_q, w_k, _), (b_q, b_k, _) = (
        x.chunk(3) for x in (block.attention.in_proj_weight, block.attention.in_proj_bias)
    )
    content = heads(y, w_q, b_q) @ heads(y, w_k, b_k).mT
    if operator == "bilateral":
        expected = (content + heads(p, w_q) @ heads(p, w_k).mT) / 4**0.5
    elif operator == "tupe":
        h_q, h_k = made.position_weight.chunk(2)
        expected = (content + heads(p, h_q) @ heads(p, h_k).mT) / 8**0.5
    elif operator == "alibi":
        i = torch.arange(y.shape[1], dtype=torch.float64)
        slopes = made.slopes_for(seen["qkv"][0])
        expected = content / 4**0.5 - slopes * (i[:, None] - i).abs()
    else:
        expected = content / 4**0.5
    found = made.logits(Call(*seen["qkv"], context=seen["context"]))
    assert_close(found, expected, atol=1e-10, rtol=0)


@pytest.mark.parametrize("name", MODELS)
def test_tokens_carry_no_positions_for_such_operators_unless_asked_to(name):
    for make in APART.values():
        assert make().positions_apart
        if name == "language" and not make().causal:
            continue
        model = build(name, operator=make())
        bare, p = embedded(model, name), positions_of(model, name)
        assert_close(first_layer(model, name)[1]["tokens"], bare, atol=0, rtol=0)
        model = build(name, operator=make(), add_positions=True)
        assert_close(first_layer(model, name)[1]["tokens"], bare + p, atol=0, rtol=0)


@pytest.mark.parametrize("name", MODELS)
def test_other_operators_have_them_in_the_tokens_or_add_them_to_queries_and_keys(name):
    """The latter in mixed models; and neither where they are told not to."""
    model = build(name)
    bare, p = embedded(model, name), positions_of(model, name)
    assert_close(first_layer(model, name)[1]["tokens"], bare + p, atol=0, rtol=0)
    for options in ({"add_positions": False}, {"operator": ["softmax", "alibi"]}):
        model = build(name, **options)
        bare, p = embedded(model, name), positions_of(model, name)
        block, seen = first_layer(model, name)
        assert_close(seen["tokens"], bare, atol=0, rtol=0)
        y = block.attention_norm(bare)
        keys = block.attention_norm(bare + p) if "operator" in options else y
        q, k, _ = block.attention.project(keys, keys, keys)
        expected = q, k, block.attention.project(y, y, y)[2]
        assert_close(seen["qkv"], expected, atol=1e-12, rtol=0)


def test_class_attention_adds_them_to_the_keys_of_patches():
    model = build("class attention", operator="bilateral")
    seen = record_calls(model.class_blocks[0].attention.operator)
    x = model.forward_features(IMAGES)
    entered = record_calls(model.class_blocks[0])
    assert_close(model.forward_features(IMAGES), x)
    token, patches = entered[0][0][0], entered[0][1]["memory"]
    block = model.class_blocks[0]
    values = block.attention_norm(torch.cat([patches, token], dim=1))
    keys = block.attention_norm(torch.cat([patches + model.positions.weight, token], dim=1))
    expected = block.attention.project(keys[:, -1:], keys, values)
    assert_close(seen[0][0], expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize("name", ["vision", "windowed"])
def test_replaced_operators_keep_them_apart_too(name):
    replaced = replace_attention(build(name), "alibi")
    assert_close(first_layer(replaced, name)[1]["tokens"], embedded(replaced, name), atol=0, rtol=0)


def test_the_default_is_by_what_operators_need_and_can_be_set():
    made = {name: make_operator(name, num_heads=3, head_dim=4) for name in operator_names()}
    apart = {name for name, operator in made.items() if operator.positions_apart}
    assert apart == {"alibi", "bilateral", "tupe"}

    class Reads(Softmax):
        needs = ("positions",)

    class ReadsBoth(Reads):
        positions_apart = False

    assert Reads().positions_apart
    assert not ReadsBoth().positions_apart
    assert not Twicing(ReadsBoth()).positions_apart
    assert Biased(Bilateral(math.inf), torch.zeros(3, 3)).positions_apart


@pytest.mark.parametrize("add", [True, False, None])
def test_positions_are_trained_where_something_reads_them(add):
    """On several processes a parameter without gradient stops the training."""
    nlsa = APART["nlsa"]
    for name, make in MODELS_AND_STAGES.items():
        for made in ("softmax", nlsa(), "alibi", "bilateral", [nlsa(), "softmax"]):
            model = make(operator=made, add_positions=add, dtype=torch.float64)
            model(inputs(name)).square().sum().backward()
            parameters = dict(model.named_parameters())
            trained = {n for n, p in parameters.items() if p.requires_grad}
            assert trained == {n for n, p in parameters.items() if p.grad is not None}, name
