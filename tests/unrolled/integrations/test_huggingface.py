"""Hugging Face models, tiny and at random weights; PEERS section 6 names the traps."""

import configparser
import copy
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from twinsolve.unrolled import (
    Gaussian,
    Local,
    LocallyLinear,
    Neutreno,
    Softmax,
    SparseCoding,
    TopK,
    Twicing,
    attach_huggingface,
    make_operator,
    operator_names,
)
from twinsolve.unrolled.integrations import caches, huggingface, register_huggingface
from twinsolve.unrolled.integrations.huggingface import OLDEST

from ..recording import record_calls
from .examples import FromFirst, WithPositions

transformers = pytest.importorskip("transformers")

GENERATOR = torch.Generator().manual_seed(0)
IDS = torch.randint(3, 50, (2, 9), generator=GENERATOR)
PIXELS = torch.randn(2, 1, 8, 8, generator=GENERATOR).double()
RIGHT = torch.ones(2, 9, dtype=torch.long)
RIGHT[1, 6:] = 0
LEFT = RIGHT.flip(1)

TEXT = {"vocab_size": 50, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
SIZES = {
    "hidden_size": 24, "intermediate_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4,
}  # fmt: skip
LLAMA = {**TEXT, **SIZES, "num_key_value_heads": 2, "max_position_embeddings": 64}
MODELS = {
    "vit": ("ViT", "Model", {**SIZES, "image_size": 8, "patch_size": 2, "num_channels": 1}),
    "bert": ("Bert", "Model", {**TEXT, **SIZES}),
    "bert decoder": ("Bert", "LMHeadModel", {**TEXT, **SIZES, "is_decoder": True}),
    "llama": ("Llama", "ForCausalLM", LLAMA),
    "llama as encoder": ("Llama", "ForCausalLM", {**LLAMA, "is_causal": False}),
    "mistral": ("Mistral", "ForCausalLM", {**LLAMA, "sliding_window": 4}),
    "gpt2": ("GPT2", "LMHeadModel", {**TEXT, "n_embd": 24, "n_layer": 3, "n_head": 4}),
    "gpt2 scaled": (
        "GPT2",
        "LMHeadModel",
        {**TEXT, "n_embd": 24, "n_layer": 3, "n_head": 4, "scale_attn_by_inverse_layer_idx": True},
    ),
}


@pytest.fixture(autouse=True, scope="module")
def registered():
    return register_huggingface()


def build(kind, implementation="sdpa", **settings):
    family, head, arguments = MODELS[kind]
    config = getattr(transformers, f"{family}Config")(**{**arguments, **settings})
    torch.manual_seed(0)
    model = getattr(transformers, family + head)._from_config(
        config, attn_implementation=implementation
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=GENERATOR.manual_seed(1)))
    return model.double().eval()


def outputs(model, padding=None, ids=IDS, **arguments):
    """What the model says of visible tokens."""
    if "ViT" in type(model).__name__:
        return model(PIXELS).last_hidden_state
    found = model(ids, attention_mask=padding, **arguments)[0]
    return found if padding is None else found[padding.bool()]


def exact(found, expected):
    assert_close(found, expected, atol=1e-11, rtol=1e-11)


@pytest.mark.parametrize("kind", MODELS)
def test_softmax_is_the_librarys_attention(kind):
    for padding in (None, LEFT, RIGHT):
        found = outputs(build(kind, "twinsolve_softmax"), padding)
        exact(found, outputs(build(kind, "sdpa"), padding))
        if padding is not LEFT:  # the library's explicit form computes its softmax in float32
            assert_close(found, outputs(build(kind, "eager"), padding), atol=1e-5, rtol=1e-5)


def decodes(name):
    operator = make_operator(name, num_heads=4, head_dim=6)
    if operator.gates or operator.query_gates:
        return False  # no replaced layer has a projection for them
    return operator.causal and operator.pair_masks and operator.outputs_kept is not None


@pytest.mark.parametrize(
    ("kind", "name"),
    [*(("llama", name) for name in operator_names() if decodes(name)), ("gpt2", "gaussian"),
     ("gpt2", "twicing"), ("llama", "iterated"), ("mistral", "softmax"), ("mistral", "twicing"),
     ("mistral", "neutreno")],
)  # fmt: skip
def test_every_operator_that_can_decodes_with_a_cache_as_without(kind, name):
    """In chunks and by single tokens, after left padding and without, in a window and without."""
    same_width = {"num_key_value_heads": 4} if name == "bilateral" else {}
    made = {
        "locally_linear": LocallyLinear(3), "top_k": TopK(3), "local": Local(2),
        "iterated": Neutreno(Softmax(), 0.3, n_iter=3),
    }.get(name, name)  # fmt: skip
    positions = torch.randn(64, 24, generator=GENERATOR.manual_seed(2)).double()
    model = attach_huggingface(build(kind, **same_width), made, positions=positions)
    for padding in (None, LEFT):
        whole = model(IDS, attention_mask=padding, use_cache=False).logits
        cache, parts = None, []
        for start, stop in ((0, 4), (4, 7), (7, 8), (8, 9)):
            given = None if padding is None else padding[:, :stop]
            out = model(IDS[:, start:stop], attention_mask=given, cache=cache, use_cache=True)
            cache = out.cache
            parts.append(out.logits)
        visible = slice(None) if padding is None else padding.bool()
        exact(torch.cat(parts, dim=1)[visible], whole[visible])


def test_what_takes_no_masks_of_pairs_decodes_by_single_tokens_and_refuses_other_chunks():
    """Causal rows of a chunk behind a cache are a mask of pairs to the library."""
    model = attach_huggingface(build("llama"), "token_statistics")
    whole = model(IDS, use_cache=False).logits
    cache, parts = None, []
    for start, stop in ((0, 6), (6, 7), (7, 8), (8, 9)):
        out = model(IDS[:, start:stop], cache=cache, use_cache=True)
        cache = out.cache
        parts.append(out.logits)
    exact(torch.cat(parts, dim=1), whole)
    with pytest.raises(ValueError, match="TokenStatistics couples all queries"):
        model(IDS[:, :3], cache=cache, use_cache=True)


ATTACHED = ["twicing", "neutreno", "symmetric"]
GENERATED = [
    ("llama", "sparse_coding"),
    *((kind, o) for kind in ("gpt2", "llama") for o in ATTACHED),
]


@pytest.mark.parametrize(
    "how", [{}, {"cache_implementation": "static"}, {"num_beams": 3}], ids=["", "static", "beams"]
)
@pytest.mark.parametrize(("kind", "name"), GENERATED)
def test_generation_with_a_cache_is_generation_without(kind, name, how):
    cache = how.get("cache_implementation")
    model = attach_huggingface(build(kind), name)
    settings = {
        "attention_mask": LEFT, "max_new_tokens": 3, "do_sample": False, "num_beams": 1,
        "return_dict_in_generate": True, "output_logits": True,
    } | {key: x for key, x in how.items() if key == "num_beams"}  # fmt: skip
    found = model.generate(IDS, use_cache=True, cache_implementation=cache, **settings)
    expected = model.generate(IDS, use_cache=False, **settings)
    assert found.sequences.equal(expected.sequences)
    for a, b in zip(found.logits, expected.logits, strict=True):
        assert_close(a, b, atol=1e-6, rtol=1e-6)  # generation returns float32


def test_what_needs_all_queries_refuses_a_cache_and_runs_without():
    model = build("llama", "twinsolve_twicing")
    with pytest.raises(ValueError, match=r"Twicing: needs .*use_cache=False, or with attach_"):
        model.generate(IDS, max_new_tokens=3, do_sample=False)
    assert model.generate(IDS, max_new_tokens=3, do_sample=False, use_cache=False).shape == (2, 12)


@torch.no_grad()
def test_what_is_kept_follows_the_cache():
    """A cache that is copied, cropped, selected, repeated or emptied gives what a new one does."""
    model = attach_huggingface(build("llama"), "twicing")
    whole = model(IDS, use_cache=False).logits
    cache = model(IDS[:, :6], use_cache=True).cache
    copied = copy.deepcopy(cache)
    model(IDS.flip(1)[:, 6:], cache=cache)
    cache.crop(-3)
    for kept in (cache, copied):
        exact(model(IDS[:, 6:], cache=kept).logits, whole[:, 6:])
    cache.batch_select_indices(torch.tensor([1]))
    cache.batch_repeat_interleave(2)
    cache.crop(-1)
    exact(model(IDS[[1, 1], 8:], cache=cache).logits, whole[[1, 1], 8:])
    cache.reset()
    exact(model(IDS, cache=cache).logits, whole)


def test_caches_that_cannot_hold_what_is_kept_are_refused():
    model = build("llama")
    filled = model(IDS, use_cache=True).cache
    attach_huggingface(model, "twicing")
    step = IDS[:, -1:]
    with pytest.raises(ValueError, match=r"its outputs of all 9 tokens in it; start with an empty"):
        model(step, cache=filled)
    with pytest.raises(ValueError, match=r"make it as DynamicCache\(config=model.config\), or"):
        model(step, cache=transformers.DynamicCache())
    offloaded = transformers.DynamicCache(config=model.config)
    offloaded.offloading = True
    with pytest.raises(ValueError, match=r"offloaded does not allow; decode with use_cache=False"):
        caches._check_cache(offloaded, Twicing(Softmax()))
    cache = model(IDS, use_cache=True).cache
    with pytest.raises(ValueError, match="output_attentions: Twicing has no matrix of the last 1"):
        model(step, cache=cache, output_attentions=True)


def test_a_registered_operator_without_outputs_to_keep_decodes():
    model = build("llama", "twinsolve_symmetric")
    settings = {"max_new_tokens": 3, "do_sample": False}
    found, expected = (model.generate(IDS, use_cache=x, **settings) for x in (True, False))
    assert found.equal(expected)


def attend(name, *tensors, mask=None, causal=False, **arguments):
    module = nn.Module().eval()
    module.is_causal = causal
    function = transformers.AttentionInterface()[name]
    return function(module, *tensors, mask, **arguments)[0]


def test_scaling_stands_for_the_scale_of_dot_products():
    """Half on either side: distances between queries and keys keep their meaning."""
    q, k, v = torch.randn(3, 1, 2, 5, 16, generator=GENERATOR).double()
    scaled = attend("twinsolve_gaussian", q, k, v, scaling=1.0)
    exact(scaled.transpose(1, 2), Gaussian()(2 * q, 2 * k, v))
    exact(attend("twinsolve_softmax", q, k, v, scaling=0.25), attend("twinsolve_softmax", q, k, v))
    with pytest.raises(ValueError, match="scale: must be positive"):
        attend("twinsolve_softmax", q, k, v, scaling=-1.0)


def test_a_causal_module_without_mask_is_causal():
    q, k, v = torch.randn(3, 1, 2, 5, 8, generator=GENERATOR).double()
    expected = Softmax()(q, k, v, is_causal=True).transpose(1, 2)
    exact(attend("twinsolve_softmax", q, k, v, causal=True), expected)
    full = Softmax()(q, k, v).transpose(1, 2)
    exact(attend("twinsolve_softmax", q, k, v, causal=True, is_causal=False), full)
    last = attend("twinsolve_softmax", q[..., -1:, :], k, v, causal=True)
    exact(last, expected[:, -1:])
    k_long, v_long = (torch.cat([x, torch.zeros_like(x)], dim=-2) for x in (k, v))  # static cache
    exact(attend("twinsolve_softmax", q, k_long, v_long, causal=True), expected)
    whole = attend("twinsolve_twicing", q, k, v, causal=True)
    exact(attend("twinsolve_twicing", q, k_long, v_long, causal=True), whole)


def test_arguments_that_are_not_served_are_refused():
    x = torch.randn(1, 2, 5, 8)
    for argument in ("softcap", "s_aux", "sinks", "cache", "block_indices"):
        with pytest.raises(ValueError, match=f"{argument}: Softmax does not serve"):
            attend("twinsolve_softmax", x, x, x, **{argument: 30.0})
        attend("twinsolve_softmax", x, x, x, **{argument: None})


def test_a_window_without_mask_and_a_causal_model_may_be_refused():
    x = torch.randn(1, 2, 5, 8)
    with pytest.raises(ValueError, match="sliding_window: Softmax needs a mask that holds it"):
        attend("twinsolve_softmax", x, x, x, sliding_window=3)
    attend("twinsolve_softmax", x, x, x, sliding_window=5)
    model = build("llama")
    backward = type("Backward", (Softmax,), {"causal": False})
    with pytest.raises(ValueError, match="Backward: does not support causal models"):
        attach_huggingface(model, backward())(IDS[:, :1])


def test_dropout_of_weights_is_not_applied_and_said_so():
    model = build("bert", "twinsolve_softmax", hidden_dropout_prob=0.0).train()
    with pytest.warns(UserWarning, match=r"dropout of attention weights \(0.1\) is not applied"):
        first = outputs(model)
    with pytest.warns(UserWarning, match="not applied"):
        exact(outputs(model), first)


def test_attention_maps_are_returned_on_request():
    model = build("llama", "twinsolve_twicing")
    maps = model(IDS, output_attentions=True).attentions
    weights = build("llama", "eager")(IDS, output_attentions=True).attentions[0].double()
    assert_close(maps[0], 2 * weights - weights @ weights, atol=1e-6, rtol=1e-5)


def test_names_are_checked_and_listed(registered):
    assert registered == [f"twinsolve_{name}" for name in operator_names()]
    assert register_huggingface(["twicing"]) == ["twinsolve_twicing"]
    with pytest.raises(ValueError, match=r"names: must be among .*softmax.*, got 'nothing'"):
        register_huggingface(["nothing"])


def test_without_transformers_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    for call in (register_huggingface, lambda: attach_huggingface(nn.Linear(2, 2), "softmax")):
        with pytest.raises(ImportError, match=rf"pip install 'transformers>={OLDEST}'"):
            call()


def test_an_old_version_of_transformers_is_named_with_the_one_that_is_needed(monkeypatch):
    monkeypatch.setattr(huggingface, "version", lambda _: "4.56.2")
    monkeypatch.delattr(transformers.masking_utils, "bidirectional_mask_function")
    with pytest.raises(ImportError, match=rf"{OLDEST} or newer .*; 4\.56\.2 is installed"):
        register_huggingface()
    needs = configparser.ConfigParser()
    needs.read(Path(__file__).parents[3] / "setup.cfg")
    assert needs["options.extras_require"]["integrations"].strip() == f"transformers>={OLDEST}"


def test_learning_operators_train_only_when_attached():
    model = build("llama", "twinsolve_sparse_coding").train()
    with pytest.raises(ValueError, match=r'learns parameters; call attach_huggingface\(model, "sp'):
        model(IDS)
    names = {name for name, _ in model.named_parameters()}
    assert attach_huggingface(model, "sparse_coding") is model
    model(IDS).logits.square().mean().backward()
    new = {name: p for name, p in model.named_parameters() if name not in names}
    assert len(new) == 6
    assert all(".self_attn.operator." in name for name in new)
    assert all(p.dtype == torch.float64 for p in new.values())
    assert all(p.grad is not None and (p.grad != 0).any() for p in new.values())
    assert model.model.layers[0].self_attn.operator.lam.num_heads == 4


def test_attached_models_load_old_checkpoints_and_copy():
    old = build("llama").state_dict()
    model = attach_huggingface(build("llama"), SparseCoding(0.2, learnable=True))
    model.load_state_dict(old)
    with torch.no_grad():
        model.model.layers[1].self_attn.operator.lam.log.add_(1)
    exact(outputs(copy.deepcopy(model)), outputs(model))


def test_layers_may_differ_or_be_left_alone():
    model = attach_huggingface(
        build("llama"), lambda name: Gaussian(0.5) if name == "model.layers.1.self_attn" else None
    )
    assert isinstance(model.model.layers[1].self_attn.operator, Gaussian)
    assert not hasattr(model.model.layers[0].self_attn, "operator")
    assert (outputs(model) - outputs(build("llama"))).abs().max() > 1e-3
    attach_huggingface(model, "softmax")
    exact(outputs(model, LEFT), outputs(build("llama"), LEFT))


def test_state_between_layers_needs_attaching_and_the_attached_model(monkeypatch):
    from twinsolve.unrolled import named_operators

    monkeypatch.setitem(named_operators._FACTORIES, "from_first", lambda heads, dim: FromFirst())
    register_huggingface(["from_first"])
    with pytest.raises(ValueError, match=r"needs first_values.*attach_huggingface\(model, \"from_"):
        build("llama", "twinsolve_from_first")(IDS)
    model = attach_huggingface(build("llama"), "from_first")
    with pytest.raises(ValueError, match=r"no forward pass of the model .* is under way"):
        model.model(IDS)


def test_positions_must_be_given_and_have_projections_to_go_through():
    with pytest.raises(ValueError, match=r"positions: WithPositions at .* needs them"):
        attach_huggingface(build("vit"), WithPositions())
    with pytest.raises(ValueError, match="GPT2Attention has no linear query and key projections"):
        attach_huggingface(build("gpt2"), WithPositions(), positions="transformer.wpe.weight")


def test_a_decoders_cross_attention_is_the_librarys_unless_asked_for():
    model = build("bert decoder", add_cross_attention=True)
    hidden = torch.randn(2, 4, 24, generator=GENERATOR).double()
    expected = model(IDS, encoder_hidden_states=hidden)[0]
    attach_huggingface(model, "softmax")
    with_operator = [name for name, m in model.named_modules() if name.endswith(".operator")]
    assert len(with_operator) == 3
    exact(model(IDS, encoder_hidden_states=hidden)[0], expected)
    attach_huggingface(model, "twicing")(IDS, encoder_hidden_states=hidden)
    attach_huggingface(model, lambda name: "softmax")
    exact(model(IDS, encoder_hidden_states=hidden)[0], expected)


def test_a_padding_mask_reaches_the_operator_as_one_row_of_keys():
    model = attach_huggingface(build("bert"), Softmax())
    seen = record_calls(next(m for m in model.modules() if isinstance(m, Softmax)))
    model(IDS, attention_mask=RIGHT)
    assert seen[0][1]["mask"].shape == (2, 1, 1, 9)
    model(IDS)
    assert seen[1][1]["mask"] is None


@pytest.mark.parametrize("kind", ["Bart", "T5", "Whisper"])
def test_cross_attention_is_known_by_its_name(kind):
    """The classes of these serve both, and say nothing of it."""
    transformers = pytest.importorskip("transformers")
    sizes = {
        "d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2,
        "decoder_attention_heads": 2, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32,
    }  # fmt: skip
    if kind == "T5":
        sizes = {"d_model": 16, "d_kv": 4, "d_ff": 32, "num_layers": 1, "num_heads": 4}
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=60, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=3,
        **sizes,
    )  # fmt: skip
    model = attach_huggingface(getattr(transformers, f"{kind}Model")(config), "gaussian")
    replaced = [name for name, m in model.named_modules() if hasattr(m, "operator")]
    assert len(replaced) == 2
    assert all("self" in name.lower() for name in replaced)
