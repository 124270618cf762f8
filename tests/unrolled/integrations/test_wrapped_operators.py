"""Whatever is put where an operator was attached runs it, or is an error: never another attention.

In forward, in save and in load; and attention that was wrapped before is replaced, or refused.
"""

import copy
import json
import pickle

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

from twinsolve.unrolled import (
    ALiBi,
    Attention,
    Gaussian,
    Softmax,
    SparseCoding,
    Symmetric,
    attach_huggingface,
    replace_attention,
)
from twinsolve.unrolled.integrations import load_huggingface, save_huggingface

transformers = pytest.importorskip("transformers")

IDS = torch.tensor([[3, 9, 4, 7], [5, 3, 8, 6]])
X = torch.randn(2, 5, 12, generator=torch.Generator().manual_seed(0))
SIZES = {
    "vocab_size": 16, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2,
    "num_attention_heads": 2, "max_position_embeddings": 8, "initializer_range": 0.5,
}  # fmt: skip


@pytest.fixture(autouse=True)
def traced(request):
    """Compiled modules call what they compiled; only slow tests trace it, which takes seconds."""
    if "slow" in request.keywords:
        yield
    else:
        with torch.compiler.set_stance("force_eager"):
            yield


def compiled(module):
    return torch.compile(module, backend="eager")


class Held(nn.Module):
    """As DataParallel and adapters hold a module, and `Passing` as wrappers that stand for it."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, *args, **options):
        return self.module(*args, **options)


class Passing(Held):
    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("module"), name)


class Twice(nn.Module):
    def forward(self, x):
        return 2 * x


def build():
    torch.manual_seed(0)
    return transformers.LlamaModel(transformers.LlamaConfig(**SIZES)).eval()


def attached(operator="sparse_coding"):
    return attach_huggingface(build(), operator)


@torch.no_grad()
def run(model):
    return model(IDS).last_hidden_state


LIBRARY, EXPECTED = run(build()), run(attached())


def is_right(found):
    assert (EXPECTED - LIBRARY).abs().max() > 0.1
    torch.testing.assert_close(found, EXPECTED, atol=1e-4, rtol=1e-4)


WRAPPERS = {
    "compiled": compiled, "held": Held, "passing": Passing, "data parallel": nn.DataParallel,
    "sequential": nn.Sequential, "identity": lambda _: nn.Identity(), "none": lambda _: None,
    "function": lambda operator: lambda *args, **options: operator(*args, **options),
    "class": type,
}  # fmt: skip


@pytest.mark.parametrize("name", WRAPPERS)
def test_what_stands_for_an_operator_runs_it_or_is_an_error(name, tmp_path):
    """An operator that torch compiled runs, and comes back as it was before; all else raises."""
    model, state = attached(), attached().state_dict()
    for layer in model.layers:
        operator = layer.self_attn.operator
        if name in ("function", "class"):  # which torch puts in no module's place
            del layer.self_attn.operator
        layer.self_attn.operator = WRAPPERS[name](operator)
    if name == "compiled":
        is_right(run(model))
        model.save_pretrained(tmp_path)
        is_right(run(load_huggingface(tmp_path)))
        with pytest.raises(RuntimeError, match=r"Missing key.*operator\._orig_mod\.lam\.log"):
            model.load_state_dict(state)
        return
    for act in (run, lambda x: x.save_pretrained(tmp_path), lambda x: x.load_state_dict(state)):
        with pytest.raises(ValueError, match=r"operator: LlamaAttention had one attached, but h"):
            act(model)
    is_right(run(attach_huggingface(model, "sparse_coding")))


def test_another_operator_put_in_by_hand_has_the_masks_that_it_needs():
    model = attached("softmax")
    model.layers[0].self_attn.operator = ALiBi(2)
    with pytest.raises(ValueError, match=r"implementation: 'twinsolve' leaves out .*d_positional'"):
        run(model)
    model.set_attn_implementation("twinsolve_attached_positional")
    assert (run(model) - LIBRARY).abs().max() > 1e-3


@pytest.mark.parametrize("name", ["sdpa", "eager"])
def test_an_implementation_that_passes_operators_by_is_an_error(name, tmp_path):
    model = attached()
    for change in (model.set_attn_implementation, lambda x: vars(model.config).update(x)):
        change(name if change == model.set_attn_implementation else {"_attn_implementation": name})
    for act in (run, lambda x: save_huggingface(x, tmp_path)):
        with pytest.raises(ValueError, match=f"'{name}' leaves out the operator of LlamaAttention"):
            act(model)
    model.set_attn_implementation("twinsolve")
    is_right(run(model))


def test_attention_that_was_never_offered_an_operator_is_an_error():
    """A new model of an attached model's configuration, and a layer that was put in afterwards."""
    model = attached()
    model.layers[1] = copy.deepcopy(build().layers[1])
    model.layers[1].self_attn.config = model.config
    for other in (transformers.LlamaModel(model.config), model):
        with pytest.raises(ValueError, match="LlamaAttention has none, as it was not in the model"):
            run(other)
    one = attached(lambda name: "sparse_coding" if name == "layers.0.self_attn" else None)
    assert (run(one) - LIBRARY).abs().max() > 1e-3  # the other was, and is left alone
    run(copy.deepcopy(one))


@pytest.mark.parametrize("wrap", [compiled, Held, Passing])
@pytest.mark.parametrize("place", ["attention", "layer", "model"])
def test_wrapped_attention_layers_and_models_run_operators(wrap, place, tmp_path):
    """Whether they were wrapped before or afterwards; what a folder cannot hold is not saved."""
    before, after = build(), attached()
    for model in (before, after):
        for i, layer in enumerate(model.layers):
            if place == "attention":
                layer.self_attn = wrap(layer.self_attn)
            elif place == "layer":
                model.layers[i] = wrap(layer)
    is_right(run(wrap(after) if place == "model" else after))
    if place == "model":
        for act in (lambda x: attach_huggingface(x, "softmax"), lambda x: save_huggingface(x, "")):
            with pytest.raises(ValueError, match=r"must be a PreTrainedModel, got .* inside"):
                act(wrap(before))
        return
    is_right(run(attach_huggingface(before, "sparse_coding")))
    assert len({id(layer) for layer in before.modules() if "operator" in layer._modules}) == 2
    for model in (before, after):
        with pytest.raises(ValueError, match="cannot be loaded again, as a new LlamaModel differs"):
            model.save_pretrained(tmp_path)


def test_adapters_and_parametrizations_are_run_and_not_saved(tmp_path):
    adapted, enlarged, of_weights, of_operators = (attached() for _ in range(4))
    for model in (adapted, enlarged, of_weights, of_operators):
        attention = model.layers[0].self_attn
        if model is enlarged:
            attention.register_parameter("gate", nn.Parameter(torch.ones(2)))
        elif model is adapted:
            attention.q_proj = Held(attention.q_proj)
        elif model is of_weights:
            parametrize.register_parametrization(attention.q_proj, "weight", Twice())
        else:
            parametrize.register_parametrization(attention.operator.lam, "log", Twice())
        with pytest.raises(ValueError, match=r"cannot be (loaded again|saved, it is not what)"):
            model.save_pretrained(tmp_path)
    for model in (adapted, enlarged):
        is_right(run(model))
    assert all((run(model) - EXPECTED).abs().max() > 1e-3 for model in (of_weights, of_operators))
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_copies_refuse_and_run_as_the_model_does(copied):
    model = copied(attached())
    is_right(run(model))
    older = model.gradient_checkpointing_enable
    getattr(model, "activation_checkpointing_enable", older)()
    is_right(model.train()(IDS, use_cache=False).last_hidden_state)
    model.layers[1].self_attn.operator = None
    with pytest.raises(ValueError, match="holds nothing"):
        run(model)
    model.set_attn_implementation("sdpa")
    with pytest.raises(ValueError, match="'sdpa' leaves out the operator"):
        run(model)


def test_a_record_that_names_another_part_does_not_load(tmp_path):
    attached().save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(path.read_text().replace("layers.0.self_attn", "layers.0.mlp"))
    assert "layers.0.mlp" in json.loads(path.read_text())["twinsolve"]["attached"][0]["layers"]
    with pytest.raises(ValueError, match="LlamaMLP had one attached, but holds nothing"):
        load_huggingface(tmp_path)


# replace_attention


def encoder():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(12, 2, 24, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 2).eval()


@pytest.mark.parametrize(
    "already_ran", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["new", "ran"]
)
@torch.no_grad()
@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("place", ["attention", "layer", "model"])
def test_compiled_attention_is_replaced_or_refused(place, inplace, already_ran):
    def compile_(module):
        if not inplace:
            return compiled(module)
        module.compile(backend="eager")
        return module

    model, expected = encoder(), replace_attention(encoder(), "gaussian")(X)
    assert (encoder()(X) - expected).abs().max() > 0.1
    last = model.layers[-1]
    if place == "attention":
        last.self_attn = compile_(last.self_attn)
    elif place == "layer":
        model.layers[-1] = compile_(last)
    else:
        model = compile_(model)
    if already_ran:
        model(X)
    if place == "attention" and not inplace:
        names = [name for name, _ in model.named_modules()]
        with pytest.raises(ValueError, match=r"attention at 'layers.1.self_attn' is compiled"):
            replace_attention(model, "gaussian")
        assert [name for name, _ in model.named_modules()] == names
    else:
        torch.testing.assert_close(replace_attention(model, "gaussian")(X), expected)


@pytest.mark.parametrize(
    "make", [nn.MultiheadAttention, lambda *sizes: Attention(*sizes, operator=Softmax())]
)
def test_compiled_attention_itself_is_refused(make):
    model = compiled(make(12, 2))
    with pytest.raises(ValueError, match=r"is compiled, and its compiled form would still run"):
        replace_attention(model, "gaussian")


@torch.no_grad()
def test_operators_of_replaced_attention_run_compiled_and_nothing_else_does():
    model = replace_attention(encoder(), "gaussian")
    expected, state = model(X), model.state_dict()
    attention = model.layers[0].self_attn
    attention.operator = compiled(attention.operator)
    torch.testing.assert_close(model(X), expected)
    for other in (Held(Gaussian()), nn.Identity(), None):
        attention.operator = other
        for act in (lambda: model(X), lambda: model.load_state_dict(state)):
            with pytest.raises(ValueError, match="MultiheadReplacement had one attached, but h"):
                act()


def test_an_operator_put_in_by_hand_reads_nothing_that_is_not_projected():
    layer = Attention(12, 2, operator=Symmetric())
    layer.operator = SparseCoding(0.1)
    with pytest.raises(ValueError, match="SparseCoding reads q, which this layer does not project"):
        layer(X, X, X)
