"""Checks of whole models: each layer on the tokens that reach it."""

import functools
import types

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import twinsolve
from twinsolve.unrolled import (
    LISTA,
    ALiBi,
    Attention,
    AttnScale,
    ClassAttentionTransformer,
    FeatScale,
    Gaussian,
    GeneralizedResidual,
    LanguageModel,
    Local,
    Neutreno,
    Operator,
    Softmax,
    Solved,
    SparseCoding,
    Symmetric,
    Twicing,
    UnrolledADMM,
    UnrolledSelfExpression,
    VisionTransformer,
    WindowedTransformer,
    attach_huggingface,
    replace_attention,
)
from twinsolve.unrolled.spectral_filtering import LayerScale

from ..unrolled.draws import moved

pytestmark = pytest.mark.usefixtures("no_laws")
GENERATOR = torch.Generator().manual_seed(0)
IMAGES = torch.randn(3, 1, 8, 8, generator=GENERATOR)
IDS = torch.randint(0, 11, (3, 12), generator=GENERATOR)
PADDED = torch.zeros(3, 12, dtype=torch.bool)
PADDED[1, 8:] = True


def vit(**options):
    torch.manual_seed(0)
    return moved(VisionTransformer(8, 2, 1, 5, 12, 2, 3, **options), scale=0.05)


def judged(report):
    return [finding for finding in report.findings if finding.verdict != "not judged"]


def verdicts(report):
    return {finding.where: finding.verdict for finding in judged(report)}


def kinds(report):
    return {finding.details["dtype"] for finding in judged(report)}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_operator_and_shell_of_a_model_is_judged_at_its_parameters(dtype):
    model = vit(operator="gaussian").to(dtype)
    report = twinsolve.check(model, IMAGES.to(dtype))
    assert report
    assert str(report).startswith("VisionTransformer: 8 hold, ")
    names = {f"blocks.{i}.attention{part}" for i in range(2) for part in ("", ".operator")}
    assert names <= set(verdicts(report))
    kind = str(dtype).removeprefix("torch.")
    assert kinds(report) == {kind if dtype != torch.bfloat16 else f"float64 copy of {kind}"}
    table = report.to_frame().set_index("where")
    assert table.loc["blocks.0.attention.operator", "rows"] == 2 * 8
    assert table.loc["head", "why"] == "has no twin"
    assert table.loc["blocks.0.dropout", "why"] == "does nothing in evaluation mode"
    assert model.training


MODELS = {
    "neutreno": lambda: (vit(operator=Neutreno(Softmax())), IMAGES),
    "scaled": lambda: (vit(operator=AttnScale(Softmax(), num_heads=3), scale=FeatScale), IMAGES),
    "symmetric": lambda: (vit(operator=Symmetric()), IMAGES),
    "grid": lambda: (vit(operator=[Local(1, width=4, n_class_tokens=1), "sparsemax"]), IMAGES),
    "solved": lambda: (vit(operator=Solved(SparseCoding(0.5))), IMAGES),
    "residual": lambda: (vit(residual=GeneralizedResidual, scale=LayerScale), IMAGES),
    "windows": lambda: (
        moved(WindowedTransformer(8, 1, 1, 5, 8, window_size=4, scale=FeatScale)), IMAGES
    ),
    "class attention": lambda: (
        moved(ClassAttentionTransformer(8, 2, 1, 5, 12, 2, 3)), IMAGES
    ),
    "padded words": lambda: (
        moved(LanguageModel(11, 12, 2, 3, 12, operator=ALiBi(3))), (IDS, PADDED)
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.filterwarnings("ignore")
def test_models_of_every_kind_pass(name):
    model, batch = MODELS[name]()
    report = twinsolve.check(model.double(), to_double(batch))
    assert report, str(report)
    operators = [name for name, m in model.named_modules() if isinstance(m, Attention)]
    assert operators
    assert {f"{name}.operator" for name in operators} <= set(verdicts(report)), str(report)


def to_double(batch):
    if isinstance(batch, tuple):
        return batch
    return batch.double() if batch.is_floating_point() else batch


def double_heads(operator, heads):
    """One head's output is that of another: head 0 for all, also with a cache."""
    attend, attend_last = operator.attend, operator.attend_last

    def wrong(out):
        out = out.clone()
        out[:, heads] = out[:, :1].expand_as(out[:, heads])
        return out

    def wrong_last(call, kept):
        out, rows = attend_last(call, kept)
        return wrong(out), rows

    operator.attend = lambda call: wrong(attend(call))
    operator.attend_last = wrong_last


def forget(**fields):
    """Plants an operator that forgets these of its call."""

    def plant(operator):
        attend = operator.attend
        operator.attend = lambda call: attend(call._replace(**fields))

    return plant


@pytest.mark.parametrize(
    "plant",
    [lambda o: double_heads(o, slice(1, None)), forget(is_causal=False), forget(mask=None)],
    ids=["heads", "causality", "masks"],
)
def test_a_fault_in_one_block_is_found_there_and_nowhere_else(plant):
    model = moved(LanguageModel(11, 12, 3, 3, 12))
    batch = IDS, PADDED
    assert twinsolve.check(model, batch)
    plant(model.blocks[1].attention.operator)
    report = twinsolve.check(model, batch)
    assert not report
    broken = {finding.where for finding in report.broken}
    assert broken == {"blocks.1.attention.operator"}
    said = str(report).splitlines()[1:]
    assert [x.split(": ")[0] for x in said if ": broken in float32, " in x] == [
        "  softmax-attention [SE-7, identity]"
    ]
    assert "at blocks.1.attention.operator" in str(report)


@pytest.mark.parametrize("part", ["k", "out"])
def test_a_wrong_projection_is_found_at_its_shell(part):
    model = vit()
    shell = model.blocks[1].attention
    project = shell.project

    def wrong(self, *tokens):
        made = dict(zip("qkv", project(*tokens), strict=True))
        made[part] = made[part].flip(1)
        return tuple(made.values())

    if part == "out":
        shell.out_proj.register_forward_hook(lambda module, inputs, out: out - module.bias)
    else:
        shell.project = types.MethodType(wrong, shell)
    broken = twinsolve.check(model, IMAGES).broken
    assert [finding.where for finding in broken] == ["blocks.1.attention"]


class Shared(nn.Module):
    """Runs a part twice, another one never, and one that has no twin."""

    def __init__(self):
        super().__init__()
        self.attention = Attention(6, 2, operator=Gaussian())
        self.spare = Attention(6, 2, operator=Gaussian())
        self.unknown = Attention(6, 2, operator=Unknown())

    def forward(self, x):
        for layer in (self.attention, self.attention, self.unknown):
            x = layer(x, x, x, need_weights=False)[0]
        return x


class Unknown(Operator):
    def attend(self, call):
        return call.v


def test_what_is_not_judged_is_said():
    report = twinsolve.check(Shared(), torch.randn(2, 9, 6, generator=GENERATOR))
    found = {finding.where: finding for finding in report.findings}
    assert report
    assert found["attention.operator"].details["rows"] == 2 * 2 * 8  # two calls, two sequences
    assert found["spare.operator"].why == "did not run on this batch"
    assert "no twin is registered for Unknown" in found["unknown.operator"].why
    assert found["unknown"].verdict == "holds"
    assert "not judged" in str(report)


def test_a_finite_bias_is_judged_where_its_solver_takes_one():
    x, bias = torch.randn(1, 9, 6, generator=GENERATOR), torch.randn(9, 9, generator=GENERATOR)
    layer = Attention(6, 2, operator=Softmax())
    assert verdicts(twinsolve.check(layer, (x, x, x, None, False, bias)))["operator"] == "holds"
    forget(mask=None)(layer.operator)
    assert not twinsolve.check(layer, (x, x, x, None, False, bias))
    layer = Attention(6, 2, operator=Twicing(Softmax()))
    findings = twinsolve.check(layer, (x, x, x, None, False, bias)).findings
    assert ["finite bias" in x.why for x in findings if x.where == "operator"] == [True]


@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")
@pytest.mark.filterwarnings("ignore:replace_attention. dropout of attention weights")
def test_replaced_attention_is_judged_with_its_masks():
    layer = nn.TransformerEncoderLayer(12, 3, 24, batch_first=True)
    model = replace_attention(nn.TransformerEncoder(layer, 2), "twicing")
    x = torch.randn(3, 12, 12, generator=GENERATOR)
    batch = {"src": x, "src_key_padding_mask": PADDED}
    report = twinsolve.check(model, batch)
    assert report
    assert sum(x.law == "twicing-attention" for x in judged(report)) == 2
    forget(mask=None)(model.layers[0].self_attn.operator)
    assert not twinsolve.check(model, batch)


def test_hugging_face_models_are_judged():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"vocab_size": 50, "n_embd": 24, "n_layer": 2, "n_head": 4}
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes))
    attach_huggingface(model, "twicing")
    hidden = (~PADDED).long()
    report = twinsolve.check(model, {"input_ids": IDS, "attention_mask": hidden})
    assert report, str(report)
    assert [x.where for x in judged(report)] == [
        f"transformer.h.{i}.attn.operator" for i in range(2)
    ]
    double_heads(model.transformer.h[1].attn.operator, slice(1, None))
    report = twinsolve.check(model, {"input_ids": IDS, "attention_mask": hidden})
    assert verdicts(report)["transformer.h.0.attn.operator"] == "holds"
    assert not report


def test_learned_solvers_inside_a_model_are_judged():
    class Coded(nn.Module):
        def __init__(self):
            super().__init__()
            self.admm, self.ista = UnrolledADMM(10, 0.1), UnrolledSelfExpression(5, 0.3)

        def forward(self, x):
            return self.admm(x), self.ista(x), self.ista(x[:4], x[4:])

    report = twinsolve.check(Coded().double(), torch.randn(12, 5, generator=GENERATOR).double())
    assert report
    assert {(x.details["class"], x.details["relation"]) for x in judged(report)} == {
        ("UnrolledADMM", "iterate"), ("UnrolledSelfExpression", "iterate"),
    }  # fmt: skip


def test_convolutional_and_foreign_models_without_twins_are_refused_or_listed():
    with pytest.raises(LookupError, match="no twin is registered for Sequential") as caught:
        twinsolve.check(nn.Sequential(nn.Linear(2, 2)), torch.zeros(3, 2))
    for way in ("replace_attention(model", "attach_huggingface"):
        assert way in str(caught.value)
    assert len(str(caught.value)) < 240
    with pytest.raises(ValueError, match="n_rows: must be"):
        twinsolve.check(vit(), IMAGES, n_rows=0)
    with pytest.raises(ValueError, match="context: must be None for a model"):
        twinsolve.check(vit(), IMAGES, context=twinsolve.unrolled.Context())


def small_gpt2(name, share=1.0):
    """A model of Hugging Face with an operator by name, its weights a share of what they were."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(4)
    sizes = {"vocab_size": 200, "n_embd": 64, "n_layer": 2, "n_head": 4}
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes))
    for parameter in model.parameters():
        parameter.data *= share
    return attach_huggingface(model, name)


@pytest.mark.parametrize(("name", "share"), [("softmax", 1.0), ("top_k", 1.0), ("gaussian", 20.0)])
def test_no_operator_of_a_model_is_accused_of_rounding_nor_acquitted_of_more(name, share):
    """Where rounding would excuse a thousandth, a copy in float64 is judged."""
    model, ids = small_gpt2(name, share), torch.randint(0, 200, (2, 32), generator=GENERATOR)
    report = twinsolve.check(model, {"input_ids": ids})
    assert report, str(report)
    assert kinds(report) == {"float32" if share == 1 else "float64 copy of float32"}
    for block in model.transformer.h:
        block.attn.operator.register_forward_hook(lambda _, given, output: 1.001 * output)
    assert set(verdicts(twinsolve.check(model, {"input_ids": ids})).values()) == {"broken"}


def test_a_batch_of_a_data_loader_is_its_first_entry():
    model = VisionTransformer(8, 2, 1, 10, 16, 2, 2)
    images, labels = torch.randn(4, 1, 8, 8), torch.arange(4)
    loaded = next(iter(DataLoader(TensorDataset(images, labels), batch_size=4)))
    report = twinsolve.check(model, loaded)
    assert report
    assert report.to_frame().equals(twinsolve.check(model, images).to_frame())
    rows = [*torch.randn(6, 8)]  # a list of tokens is an array still
    assert twinsolve.check(Softmax(), rows)


class TakesMasks(Softmax):
    def forward(self, q, k, v, **rest):
        return super().forward(q, k, v, **rest)


class TakesAll(Softmax):
    def forward(self, *args, **kwargs):
        return super().forward(*args, **kwargs)


class Renames(Softmax):
    def forward(self, queries, keys, values, *, mask=None, is_causal=False, **rest):
        given = {"mask": mask, "is_causal": is_causal}
        return super().forward(queries, keys, values, **given, **rest)


class Counts(Softmax):
    def forward(self, *args, count=0, **kwargs):
        return super().forward(*args, **kwargs)


class Decorated(Softmax):
    @functools.wraps(Softmax.forward)
    def forward(self, *args, **kwargs):
        return super().forward(*args, **kwargs)


@pytest.mark.parametrize("operator", [TakesMasks, TakesAll, Renames, Counts, Decorated])
def test_a_subclass_of_an_operator_may_take_its_arguments_in_any_way(operator):
    report = twinsolve.check(LanguageModel(11, 8, 1, 2, 16, operator=operator()), IDS)
    assert verdicts(report)["blocks.0.attention.operator"] == "holds"


class Shell(Attention):
    def forward(self, *args, **kwargs):
        return super().forward(*args, **kwargs)


class Coder(LISTA):
    def forward(self, *args, **kwargs):
        return super().forward(*args, **kwargs)


@pytest.mark.parametrize("by_name", [False, True])
def test_a_subclass_of_any_layer_may_take_its_arguments_in_any_way(by_name):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = Shell(8, 2, operator=TakesAll())
            self.coder = Coder(torch.randn(12, 8), 3, 0.5)

        def forward(self, x):
            given = {"query": x, "key": x, "value": x} if by_name else {}
            out = self.attention(*(() if by_name else (x, x, x)), **given)[0]
            return self.coder(out)

    torch.manual_seed(0)
    found = verdicts(twinsolve.check(Net(), torch.randn(2, 9, 8)))
    assert [found[x] for x in ("attention", "attention.operator", "coder")] == ["holds"] * 3
