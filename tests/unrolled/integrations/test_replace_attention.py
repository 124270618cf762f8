import copy
import pickle
import threading
import warnings

import pytest
import torch
from torch import nn
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

from twinsolve.unrolled import (
    Bilateral,
    Gaussian,
    Softmax,
    SparseCoding,
    Twicing,
    replace_attention,
)

from ..recording import FUSED, dispatched_attention, record_calls
from .examples import FromFirst, WithPositions, tokens, vision_model

X, Y = tokens(1), tokens(2)
PADDING = torch.zeros(2, 7, dtype=torch.bool)
PADDING[1, 4:] = True
CAUSAL = torch.ones(7, 7, dtype=torch.bool).triu(1)


def exact(found, expected):
    assert_close(found, expected, atol=1e-12, rtol=1e-12)


def randomise(model, seed=0):
    """Biases and norms too, which start at constants that hide mistakes."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    return model


def encoder(depth=2, **arguments):
    settings = {"dropout": 0.0, "batch_first": True, **arguments}
    layer = nn.TransformerEncoderLayer(12, 2, 24, dtype=torch.float64, **settings)
    nested = settings["batch_first"] and not layer.norm_first  # else PyTorch warns
    return randomise(nn.TransformerEncoder(layer, depth, enable_nested_tensor=nested)).eval()


# Vision transformers


@pytest.mark.parametrize("arguments", [{}, {"scale": 0.1, "qk_norm": True}])
def test_vision_model_with_softmax_is_the_model_itself(arguments):
    model = randomise(vision_model(**arguments))
    original = copy.deepcopy(model)
    parameters = [*model.parameters()]
    assert replace_attention(model, "softmax") is model
    assert all(a is b for a, b in zip(model.parameters(), parameters, strict=True))
    assert model.state_dict().keys() == original.state_dict().keys()
    exact(model(X), original(X))
    assert isinstance(model.blocks[0].attn.operator, Softmax)


def test_operators_by_name_by_factory_and_by_layer():
    base = Gaussian(0.7, learnable=True)
    model = replace_attention(vision_model(), base)
    operators = [block.attn.operator for block in model.blocks]
    assert len({id(o) for o in (*operators, base)}) == 4
    model = replace_attention(
        vision_model(), lambda heads, width: SparseCoding(1 / width, num_heads=heads)
    )
    assert model.blocks[0].attn.operator.lam.num_heads == 3
    assert model.blocks[0].attn.operator.lam.initial == 0.25
    model = vision_model()
    untouched = model.blocks[2].attn
    choice = {"blocks.0.attn": "gaussian", "blocks.1.attn": lambda heads, width: Softmax()}
    replace_attention(model, lambda name: choice.get(name))
    assert isinstance(model.blocks[0].attn.operator, Gaussian)
    assert isinstance(model.blocks[1].attn.operator, Softmax)
    assert model.blocks[2].attn is untouched


def test_a_second_call_puts_in_another_operator():
    model = vision_model(scale=0.3)
    original = copy.deepcopy(model)
    replace_attention(model, "gaussian")
    assert (model(X) - original(X)).abs().max() > 1e-3
    replace_attention(model, "softmax")
    exact(model(X), original(X))
    stack = encoder()
    expected = stack(X)
    replace_attention(replace_attention(stack, "gaussian"), "softmax")
    exact(stack(X), expected)


def test_shared_modules_stay_shared():
    model = vision_model()
    model.blocks[2].attn = model.blocks[0].attn
    replace_attention(model, "softmax")
    assert model.blocks[2].attn is model.blocks[0].attn is not model.blocks[1].attn


def test_old_checkpoints_load_and_new_ones_round_trip():
    old = randomise(vision_model(3)).state_dict()
    model = replace_attention(vision_model(), SparseCoding(0.2, num_heads=3, learnable=True))
    with torch.no_grad():
        model.blocks[0].attn.operator.lam.log.add_(0.5)
    own = model.blocks[0].attn.operator.lam().clone()
    model.load_state_dict(old)
    exact(model.blocks[0].attn.operator.lam(), own)
    exact(model.blocks[0].attn.qkv.weight, old["blocks.0.attn.qkv.weight"])
    fresh = replace_attention(vision_model(), SparseCoding(0.2, num_heads=3, learnable=True))
    fresh.load_state_dict(model.state_dict())
    exact(fresh(X), model(X))
    broken = {k: v for k, v in old.items() if k != "blocks.0.attn.qkv.weight"}
    with pytest.raises(RuntimeError, match=r"Missing key.*blocks\.0\.attn\.qkv\.weight"):
        model.load_state_dict(broken)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_copies_are_whole_and_separate(copied):
    model = vision_model()
    del model.run  # lambdas of the example cannot be pickled
    model.run = [call] * 3
    replace_attention(model, FromFirst())
    model(X).sum().backward()
    twin = copied(model)
    exact(twin(X), model(X))
    assert not {id(p) for p in twin.parameters()} & {id(p) for p in model.parameters()}
    own = {id(block.attn.passes) for block in twin.blocks}
    assert len(own) == 1
    assert own != {id(model.blocks[0].attn.passes)}
    with torch.no_grad():
        twin.blocks[0].attn.qkv.weight.mul_(2)
    assert (twin(X) != model(X)).any()


def call(block, x):
    return block(x)


# nn.MultiheadAttention


@pytest.mark.parametrize(
    ("batch_first", "bias", "widths"),
    [(True, True, {}), (False, False, {"kdim": 5, "vdim": 9}), (True, False, {"vdim": 9})],
)
def test_multihead_attention_with_softmax_is_itself(batch_first, bias, widths):
    torch.manual_seed(0)
    theirs = nn.MultiheadAttention(
        12, 3, bias=bias, batch_first=batch_first, dtype=torch.float64, **widths
    )
    randomise(theirs).eval()
    ours = replace_attention(copy.deepcopy(theirs), "softmax")
    names = [name for name, _ in theirs.named_parameters()]
    assert [name for name, _ in ours.named_parameters()] == names
    ours.load_state_dict(theirs.state_dict())
    key = torch.randn(2, 7, widths.get("kdim", 12), dtype=torch.float64)
    value = torch.randn(2, 7, widths.get("vdim", 12), dtype=torch.float64)
    calls = [(tokens(4, 5), key, value)] + ([] if widths else [(X, X, X), (X, X, Y)])
    for inputs in calls:
        inputs = inputs if batch_first else [x.transpose(0, 1) for x in inputs]
        for arguments in ({}, {"average_attn_weights": False}, {"key_padding_mask": PADDING}):
            for found, expected in zip(
                ours(*inputs, **arguments), theirs(*inputs, **arguments), strict=True
            ):
                exact(found, expected)
        single = [x[:, 0] if not batch_first else x[0] for x in inputs]
        exact(ours(*single)[0], theirs(*single)[0])
    assert ours(*inputs, need_weights=False)[1] is None


@pytest.mark.parametrize("padding", [None, PADDING])
def test_encoder_uses_the_operator_in_evaluation_mode(padding):
    """PyTorch's fast paths (fused layer, nested tensors) would pass it by, or fail in it."""
    layer = nn.TransformerEncoderLayer(12, 2, 24, dropout=0.0, batch_first=True).double()
    original = nn.TransformerEncoder(layer, 2, enable_nested_tensor=True).eval()
    model = replace_attention(copy.deepcopy(original), Gaussian(0.3))
    calls = []
    for part in model.modules():
        if isinstance(part, Gaussian):
            forward = part.attend
            part.attend = lambda *a, forward=forward: calls.append(1) or forward(*a)
    model.requires_grad_(False)
    with torch.no_grad():
        found = model(X, src_key_padding_mask=padding)
        expected = original(X, src_key_padding_mask=padding)
    assert len(calls) == 2
    visible = ~PADDING if padding is not None else slice(None)
    assert (found[visible] - expected[visible]).abs().max() > 1e-3


def test_decoder_keeps_its_cross_attention_unless_asked():
    layer = nn.TransformerDecoderLayer(12, 2, 24, dropout=0.0, batch_first=True).double()
    original = randomise(nn.TransformerDecoder(layer, 2)).eval()
    memory = tokens(5, 4)
    arguments = {"tgt_mask": CAUSAL, "tgt_is_causal": True}
    model = replace_attention(copy.deepcopy(original), "twicing")
    assert isinstance(model.layers[0].multihead_attn, nn.MultiheadAttention)
    assert isinstance(model.layers[0].self_attn.operator, Twicing)
    model = replace_attention(copy.deepcopy(original), lambda name: "softmax")
    assert isinstance(model.layers[0].multihead_attn.operator, Softmax)
    exact(model(X, memory, **arguments), original(X, memory, **arguments))
    with pytest.raises(ValueError, match=r"cannot serve the cross attention layers\.0\.multihead"):
        replace_attention(copy.deepcopy(original), lambda name: "twicing")


def test_a_whole_transformer_keeps_encoder_and_decoder_apart():
    """Values of the encoder are not the decoder's first, even where shapes would allow it."""
    model = nn.Transformer(12, 2, 2, 2, 24, dropout=0.0, batch_first=True).double().eval()
    replace_attention(model, FromFirst())
    parts = replace_attention(copy.deepcopy(model.encoder), FromFirst())
    memory = parts(X)
    decoder = replace_attention(copy.deepcopy(model.decoder), FromFirst())
    exact(model(X, Y), decoder(Y, memory))


# State between layers


def by_hand(model, x):
    """The vision model with FromFirst(), written out."""
    x = x + model.pos_embed
    first = previous = None
    for block in model.blocks:
        attn = block.attn
        parts = attn.qkv(block.norm(x)).unflatten(-1, (3, 3, 4)).permute(2, 0, 3, 1, 4)
        q, k, v = parts.unbind(0)
        first = v if first is None else first
        out = torch.softmax(q @ k.mT / 2, dim=-1) @ v + 0.6 * (first * v.sigmoid() - v)
        if previous is not None:
            out = out + 0.2 * previous * v.cos()
        previous = v
        x = x + attn.proj(out.transpose(1, 2).flatten(2))
        x = x + block.mlp(x)
    return model.head(x.mean(dim=1))


def gradients(model, loss):
    return torch.autograd.grad(loss, [*model.parameters()])


def test_layers_of_one_pass_share_their_state():
    model = replace_attention(vision_model(), FromFirst())
    for x in (X, Y, X[:1], tokens(3)):
        exact(model(x), by_hand(model, x))
    with torch.no_grad():
        exact(model(X), by_hand(model, X))
    exact(gradients(model, model(X).sum()), gradients(model, by_hand(model, X).sum()))


def test_no_state_is_left_after_a_pass_even_a_failed_one():
    model = replace_attention(vision_model(), FromFirst())
    expected = model(X)

    def fail(*_):
        raise RuntimeError("on purpose")

    handle = model.blocks[1].register_forward_pre_hook(fail)
    with pytest.raises(RuntimeError, match="on purpose"):
        model(Y)
    handle.remove()
    exact(model(X), expected)
    assert model.blocks[0].attn.passes.threads.stack == []
    with pytest.raises(ValueError, match=r"no forward pass of the model .* is under way"):
        model.blocks[1](X)


def test_nested_and_repeated_passes_have_their_own_state():
    model = replace_attention(vision_model(), FromFirst())
    expected = model(X)
    inner = []

    def again(block, x):
        if not inner:
            inner.append(None)
            inner[0] = model(Y)
        return block(x)

    model.run = [call, again, call]
    exact(model(X), expected)
    exact(inner[0], by_hand(model, Y))
    outer = nn.Sequential(model, nn.Identity())
    exact(outer(X), expected)


def test_threads_have_their_own_state():
    model = replace_attention(vision_model(), FromFirst())
    barrier = threading.Barrier(2, timeout=20)
    model.run = [call, lambda block, x: (barrier.wait(), block(x))[1], call]
    results = {}
    inputs = {1: X, 2: Y}

    def work(key):
        results[key] = model(inputs[key])

    threads = [threading.Thread(target=work, args=(key,)) for key in inputs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for key, x in inputs.items():
        exact(results[key], by_hand(model, x))


def not_reentrant(block, x):
    return checkpoint(block, x, use_reentrant=False)


@pytest.mark.parametrize("where", [(0, 1, 2), (1,)])
def test_recomputation_sees_the_same_first_values(where):
    model = replace_attention(vision_model(), FromFirst())
    model.run = [not_reentrant if i in where else call for i in range(3)]
    exact(gradients(model, model(X).sum()), gradients(model, by_hand(model, X).sum()))


def test_recomputation_for_an_earlier_pass_is_refused():
    """It is never given the context of another pass: backward comes before the next forward."""
    model = replace_attention(vision_model(), FromFirst())
    model.run = [not_reentrant] * 3
    losses = [model(x).square().sum() for x in (X, Y, X)]
    for loss in losses[1:2]:
        with pytest.raises(ValueError, match="not those of one call in the model's latest forward"):
            gradients(model, loss)
    with torch.no_grad():
        model(Y)
    exact(gradients(model, losses[2]), gradients(model, by_hand(model, X).square().sum()))
    for x in (Y, X):
        exact(gradients(model, model(x).sum()), gradients(model, by_hand(model, x).sum()))


def test_calls_of_one_layer_that_cannot_be_told_apart_are_refused():
    """A layer that is called twice knows its calls by their values."""
    model = replace_attention(vision_model(), FromFirst())
    model.blocks[2] = model.blocks[1]
    model.run = [not_reentrant] * 3
    exact(gradients(model, model(X).sum()), gradients(model, by_hand(model, X).sum()))
    with torch.no_grad():
        model.blocks[1].attn.qkv.weight[24:] = 0
        model.blocks[1].attn.qkv.bias[24:] = 0
    with pytest.raises(ValueError, match="not those of one call in the model's latest forward"):
        model(X).sum().backward()


def test_reentrant_checkpoints_are_refused_where_gradients_would_be_lost():
    model = replace_attention(vision_model(), FromFirst())
    model.run = [lambda block, x: checkpoint(block, x, use_reentrant=True)] * 3
    with pytest.raises(ValueError, match="use_reentrant=False"):
        model(X).sum().backward()


def test_stages_of_different_size_are_refused_by_name():
    model = vision_model()
    model.run = [call, lambda block, x: block(x[:, ::2]), call]
    replace_attention(model, FromFirst())
    with pytest.raises(
        ValueError, match=r"first_values: must .* \(2, 3, 4, 4\) .* got \(2, 3, 7, 4\)"
    ):
        model(X)


# Positions


@pytest.mark.filterwarnings("ignore:positions. .* takes them as a separate feature")
@pytest.mark.parametrize("given", ["name", "tensor"])
def test_positions_go_through_each_layers_projections(given):
    model = vision_model()
    positions = {"name": "pos_embed", "tensor": tokens(6)[0]}[given]
    keys = model.state_dict().keys()
    replace_attention(model, WithPositions(), positions=positions)
    assert model.state_dict().keys() == keys
    values = model.pos_embed if given == "name" else positions
    attn, seen = model.blocks[1].attn, {}
    attn.register_forward_pre_hook(lambda module, args: seen.update(x=args[0]))
    attn.register_forward_hook(lambda module, args, out: seen.update(out=out))
    model(X)
    split = attn.qkv(seen["x"]).unflatten(-1, (3, 3, 4)).permute(2, 0, 3, 1, 4)
    p_q, p_k, _ = (
        (values @ attn.qkv.weight.T).unflatten(-1, (3, 3, 4)).movedim(-3, 0).transpose(-3, -2)
    )
    q, k, v = split
    A = torch.softmax((q @ k.mT + p_q @ p_k.mT) / 2, dim=-1)
    exact(seen["out"], attn.proj((A @ v).transpose(1, 2).flatten(2)))
    exact(copy.deepcopy(model)(X), model(X))


@pytest.mark.parametrize(("batch_first", "widths"), [(False, {}), (True, {"vdim": 9})])
def test_positions_go_through_the_projections_of_multihead_attention(batch_first, widths):
    """Whose weights are packed, or separate."""
    model = nn.MultiheadAttention(12, 2, batch_first=batch_first, dtype=torch.float64, **widths)
    weights = (
        (model.q_proj_weight, model.k_proj_weight) if widths else model.in_proj_weight.chunk(3)[:2]
    )
    positions = tokens(6)[0]
    expected = [(positions @ w.T).unflatten(-1, (2, 6)).transpose(-3, -2) for w in weights]
    model = replace_attention(model, WithPositions(), positions=positions)
    seen = record_calls(model.operator)
    x = X if batch_first else X.transpose(0, 1)
    model(x, x, x[..., : widths.get("vdim", 12)])
    exact(seen[0][1]["context"].projected_positions, tuple(expected))


def test_positions_that_a_model_adds_itself_are_counted_twice_and_said_so():
    for positions in ("pos_embed", None):
        model = vision_model()
        own = model.pos_embed if positions is None else positions
        with pytest.warns(UserWarning, match="adds 'pos_embed' to its tokens .* they count twice"):
            replace_attention(model, "bilateral", positions=own)


def test_positions_handed_over_are_in_no_tokens_and_learn():
    model = vision_model()
    positions = nn.Parameter(model.pos_embed.detach().clone())
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error")
        model.pos_embed.requires_grad_(False).zero_()
        replace_attention(model, Bilateral(), positions=positions)
    assert dict(model.named_parameters())["twinsolve_positions"] is positions
    model(X).sum().backward()
    assert positions.grad.any()


@pytest.mark.parametrize("make", [encoder, vision_model])
def test_positions_of_another_number_than_the_tokens_are_refused(make):
    model = replace_attention(make(), "bilateral", positions=tokens(6, 20)[0]).eval()
    with pytest.raises(ValueError, match=r"context.positions: .* as the keys, 7, got \(20, 12\)"):
        model(X)


# What cannot be served


def test_dropout_of_weights_is_not_applied_and_said_so():
    for model in (vision_model(dropout=0.2), encoder(dropout=0.3)):
        with pytest.warns(
            UserWarning, match=r"dropout of attention weights is not applied \(\d la"
        ):
            replace_attention(model, "softmax")
    model = encoder(1, dropout=0.3)
    with pytest.warns(UserWarning, match="not applied"):
        attention = replace_attention(model, "softmax").layers[0].self_attn.train()
    exact(attention(X, X, X)[0], attention(X, X, X)[0])


def test_the_fused_kernel_is_used():
    """The replacement hands queries, keys and values on in the form that SDPA's kernel takes."""
    model = replace_attention(vision_model(), "softmax").float()
    assert dispatched_attention(lambda: model(X.float())) == {FUSED}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # Dynamo
@pytest.mark.parametrize("operator", ["gaussian", FromFirst()])
def test_compiles(operator):
    model = replace_attention(vision_model(), operator)
    model.run = [call] * 3
    expected = model(X)
    assert_close(torch.compile(model)(X), expected, atol=1e-10, rtol=0)


def test_an_encoder_changed_layer_by_layer_says_what_to_do_in_evaluation():
    """Its fast path makes nested tensors, which `replace_attention` on the whole switches off."""
    layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2).eval()
    for part in encoder.layers:
        replace_attention(part, "gaussian")
    hidden = torch.tensor([[False, False, True], [False] * 3])
    with (
        torch.no_grad(),
        pytest.warns(UserWarning, match="nested tensors"),
        pytest.raises(ValueError, match="query: must not be a nested tensor; replace the attenti"),
    ):
        encoder(torch.randn(2, 3, 16), src_key_padding_mask=hidden)
