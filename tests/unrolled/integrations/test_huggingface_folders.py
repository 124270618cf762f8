"""Hugging Face models with attached operators go into a folder and come back, or refuse."""

import copy
import json
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from twinsolve.unrolled import (
    ALiBi,
    Elliptical,
    Gaussian,
    Kernel,
    LocallyLinear,
    Neutreno,
    Sinkhorn,
    Softmax,
    Solved,
    SparseCoding,
    SpatialGaussian,
    TopK,
    Twicing,
    attach_huggingface,
    make_operator,
    operator_names,
)
from twinsolve.unrolled.integrations import load_huggingface, save_huggingface

from .examples import WithPositions

transformers = pytest.importorskip("transformers")

GENERATOR = torch.Generator().manual_seed(0)
IDS = torch.randint(3, 40, (2, 6), generator=GENERATOR)
PIXELS = torch.randn(2, 1, 8, 8, generator=GENERATOR)
TEXT = {"vocab_size": 40, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
SIZES = {
    "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
    "initializer_range": 0.5,
}  # fmt: skip
MODELS = {
    "bert": ("Bert", "ForSequenceClassification", {**TEXT, **SIZES, "max_position_embeddings": 16}),
    "vit": (
        "ViT",
        "ForImageClassification",
        {**SIZES, "image_size": 8, "patch_size": 4, "num_channels": 1},
    ),
    "gpt2": (
        "GPT2",
        "LMHeadModel",
        {**TEXT, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 16},
    ),
    "llama": ("Llama", "ForCausalLM", {**TEXT, **SIZES, "max_position_embeddings": 16}),
}
FEWER = {
    "locally_linear": LocallyLinear(3),
    "top_k": TopK(3),
    "spatial_gaussian": SpatialGaussian(2.0, num_heads=2, learnable=True, n_class_tokens=1),
}


def build(kind):
    family, head, arguments = MODELS[kind]
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**arguments)
    return getattr(transformers, family + head)(config).eval()


def attached(kind="bert", operator="sparse_coding", **options):
    """A model with an operator in each layer, moved off its initial parameters."""
    model = attach_huggingface(build(kind), operator, **options)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=GENERATOR.manual_seed(1))
            parameter.add_(0.3 * noise.to(parameter.dtype))
    return model


@torch.no_grad()
def logits(model):
    batch = PIXELS.to(model.dtype) if hasattr(model, "vit") else IDS
    options = {"use_cache": False} if hasattr(model.config, "use_cache") else {}
    return model(batch, **options).logits


def tensors_of(model):
    return {**model.state_dict(), **dict(model.named_buffers())}


def assert_same(found, expected):
    a, b = tensors_of(found), tensors_of(expected)
    assert a.keys() == b.keys()
    assert [k for k in a if a[k].dtype != b[k].dtype or not a[k].equal(b[k])] == []
    assert str(found) == str(expected)


@torch.no_grad()
def test_a_model_of_two_towers_comes_back_with_the_operators_of_each(tmp_path):
    sizes = {**SIZES, "projection_dim": 8}
    config = transformers.CLIPConfig(
        text_config={**TEXT, **sizes, "max_position_embeddings": 16},
        vision_config={**sizes, "image_size": 8, "patch_size": 4, "num_channels": 1},
        projection_dim=8,
    )
    model = transformers.CLIPModel(config).eval()
    kinds = {"text_model": SparseCoding, "vision_model": Twicing}
    chosen = {"text_model": SparseCoding(0.1, learnable=True), "vision_model": Twicing(Softmax())}
    attach_huggingface(model, lambda name: chosen[name.partition(".")[0]])
    save_huggingface(model, tmp_path)
    found = load_huggingface(tmp_path)
    for tower, kind in kinds.items():
        assert sum(isinstance(x, kind) for x in getattr(found, tower).modules()) == 2
    assert_same(found, model)
    batch = {"input_ids": IDS, "pixel_values": PIXELS}
    assert torch.equal(found(**batch).logits_per_text, model(**batch).logits_per_text)


def has_gates(name):
    operator = make_operator(name, num_heads=4, head_dim=6)
    return bool(operator.gates or operator.query_gates)


@pytest.mark.filterwarnings("ignore:positions. .* takes them as a separate feature")
@pytest.mark.parametrize(
    ("kind", "name"),
    [("vit", "neutreno"), ("gpt2", "alibi"), ("llama", "elliptical"),
     *(("bert", name) for name in operator_names() if not has_gates(name))],
)  # fmt: skip
def test_every_operator_comes_back(kind, name, tmp_path):
    positions = torch.randn(16, 16, generator=GENERATOR.manual_seed(2))
    model = attached(kind, FEWER.get(name, name), positions=positions)
    model.save_pretrained(tmp_path)
    found = load_huggingface(tmp_path)
    assert_same(found, model)
    assert logits(found).equal(logits(model))


def choose_by_layer(name):
    second = "1" in name.split(".")
    return Solved(SparseCoding(0.3, learnable=True)) if second else WithPositions()


@pytest.mark.parametrize(
    "operator",
    [
        Neutreno(Sinkhorn(Elliptical(torch.linspace(0.5, 2, 16).view(2, 8))), lam=0.3),
        ALiBi(2, slopes=(0.3, 0.7), learnable=True, dtype=torch.float64),
        Elliptical([0.1 * i for i in range(8)]),
        choose_by_layer,
        lambda name: Gaussian(0.7, num_heads=2, learnable=True) if "1" in name else None,
    ],
    ids=["nested", "slopes", "metric", "layers that differ", "one layer"],
)
@pytest.mark.parametrize("learned", [True, False])
def test_settings_come_back(operator, learned, tmp_path):
    positions = torch.randn(6, 16, generator=GENERATOR.manual_seed(2))
    model = attached(operator=operator, positions=nn.Parameter(positions) if learned else positions)
    save_huggingface(model, tmp_path)
    found = load_huggingface(tmp_path)
    assert_same(found, model)
    assert ("twinsolve_positions" in dict(found.named_parameters())) is learned
    assert logits(found).equal(logits(model))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_dtypes_come_back_also_where_operators_have_another(dtype, tmp_path):
    model = attached().to(dtype)
    model.bert.encoder.layer[1].attention.self.operator.float()
    save_huggingface(model, tmp_path)
    assert_same(load_huggingface(tmp_path), model)


def test_what_was_loaded_copied_or_attached_twice_is_saved_again(tmp_path):
    model = attached()
    model.save_pretrained(tmp_path / "1")
    found = copy.deepcopy(load_huggingface(tmp_path / "1"))
    with torch.no_grad():
        found.bert.encoder.layer[0].attention.self.operator.lam.log.add_(1)
    attach_huggingface(found, lambda name: ALiBi(2) if "1" in name.split(".") else None)
    attach_huggingface(found, lambda name: None if "1" in name.split(".") else "sparse_coding")
    assert found.config._attn_implementation == "twinsolve_attached_positional"
    found.save_pretrained(tmp_path / "2")
    again = load_huggingface(tmp_path / "2")
    assert_same(again, found)
    assert again.config._attn_implementation == "twinsolve_attached_positional"
    assert not logits(again).equal(logits(model))


PLAIN = """
import importlib, sys, transformers
for module in ("transformers", "twinsolve.unrolled"):
    importlib.import_module(module)
    for kind in (transformers.BertForSequenceClassification, transformers.AutoModel):
        for options in ({}, {"attn_implementation": "sdpa"}):
            try:
                kind.from_pretrained(sys.argv[1], **options)
                print("loaded")
            except ValueError as error:
                print("load_huggingface" in str(error))
"""


def test_plain_from_pretrained_refuses_in_a_fresh_process(tmp_path):
    """With transformers alone, and with this package imported."""
    attached().save_pretrained(tmp_path)
    command = [sys.executable, "-P", "-c", PLAIN, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True"] * 8


def test_plain_from_pretrained_refuses_in_a_process_that_attaches(tmp_path):
    attached().save_pretrained(tmp_path / "whole")
    model = build("bert")
    attach_huggingface(model.bert, "twicing")
    model.save_pretrained(tmp_path / "part")  # the library's, as operators are of a part
    for folder in ("whole", "part"):
        with pytest.raises(ValueError, match=r"load with .*\.load_huggingface"):
            type(model).from_pretrained(tmp_path / folder)
    with pytest.raises(ValueError, match="part holds no operators; it was saved by another"):
        load_huggingface(tmp_path / "part")
    save_huggingface(model, tmp_path / "part")
    assert logits(load_huggingface(tmp_path / "part")).equal(logits(model))


class Counted(Softmax):
    """An operator of one's own, with state beside its parameters."""

    def __init__(self, /, *, power=1.0, **options):
        super().__init__(**options)
        self.power = power
        self.offset = nn.Parameter(torch.zeros(()))
        self.register_buffer("n_calls", torch.zeros((), dtype=torch.int64))
        self.n_seen = 0

    def attend(self, call):
        self.n_calls += 1
        self.n_seen += 1
        return super().attend(call) * self.power + self.offset


def test_an_operator_of_ones_own_is_imported(tmp_path):
    model = attached(operator=lambda heads, width: Counted(power=2.0, scale=0.3))
    logits(model)
    save_huggingface(model, tmp_path)
    assert_same(found := load_huggingface(tmp_path), model)
    assert logits(found).equal(logits(model))
    edit(tmp_path, "class", "a_missing_module:Counted")
    with pytest.raises(ValueError, match="a_missing_module:Counted cannot be imported"):
        load_huggingface(tmp_path)


def test_what_cannot_be_restored_is_refused_before_anything_is_written(tmp_path):
    class Local(Softmax):
        pass

    def changed(model):
        model.bert.encoder.layer[1].attention.self.operator.n_iter = 7

    def replaced(model):
        model.bert.encoder.layer[1].attention.self.operator.base = Gaussian()

    def overwritten(model):
        operator = model.bert.encoder.layer[1].attention.self.operator
        operator.forward = lambda q, k, v, **options: torch.zeros_like(v)

    cases = [
        (Local(), None, r"layer\.0\.attention\.self cannot be saved, .*Local cannot be imported"),
        (Kernel(lambda q, k: q @ k.mT, 1.0), None, "kernel: must be a number, a string, .*lambda"),
        (SparseCoding(0.1), changed, "n_iter of SparseCoding changed after it was made"),
        (Twicing(Softmax()), replaced, "base is not what it was made with"),
        (Softmax(), overwritten, "forward of Softmax changed after it was made"),
    ]
    for operator, change, message in cases:
        model = attach_huggingface(build("bert"), operator)
        if change is not None:
            change(model)
        with pytest.raises(ValueError, match=message):
            model.save_pretrained(tmp_path / "folder")
    with pytest.raises(ValueError, match=r"has no attached operators; model.save_pretrained saves"):
        save_huggingface(build("bert"), tmp_path / "folder")
    with pytest.raises(ValueError, match=r"push_to_hub: must be False; save to a folder"):
        attached().save_pretrained(tmp_path / "folder", push_to_hub=True)
    assert not (tmp_path / "folder").exists()


def edit(folder, key, value):
    """Change an entry of the record, of the first layer if it is not of the record itself."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    record = config["twinsolve"]
    layer = next(iter(record["attached"][0]["layers"].values()))
    (record if key in record else layer if key in layer else layer["arguments"])[key] = value
    path.write_text(json.dumps(config))


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("format", 2, "its format is 2, and only 1 is known"),
        ("model", "transformers:Nothing", "transformers:Nothing cannot be imported"),
        ("class", "twinsolve.unrolled:Attention", "twinsolve.unrolled:Attention is no Operator"),
        ("class", None, "describes no operator"),
        ("arguments", {"lamda": 1}, "SparseCoding does not take its arguments: .*'lamda'"),
        ("num_heads", 3, r"layer\.0.*size mismatch for lam\.log.*\[2, 1, 1\].*\[3, 1, 1\]"),
    ],
)
def test_a_record_that_does_not_fit_is_refused(key, value, message, tmp_path):
    attached().save_pretrained(tmp_path)
    edit(tmp_path, key, value)
    with pytest.raises(ValueError, match=rf"was written by twinsolve \d.* cannot be .*{message}"):
        load_huggingface(tmp_path)


def test_folders_that_lack_something_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"must be a local folder with config.json, got .*nowhere"):
        load_huggingface(tmp_path / "nowhere")
    attached().save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    weights.pop("bert.encoder.layer.0.attention.self.query.weight")
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(ValueError, match=r"weights missing .*layer\.0\.attention\.self\.query\.w"):
        load_huggingface(tmp_path)
    attached().save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "operators.safetensors")
    tensors.pop("bert.encoder.layer.1.attention.self.operator.lam.log")
    save_file(tensors, tmp_path / "operators.safetensors")
    with pytest.raises(ValueError, match=r'layer\.1\.attention\.self: .*Missing key.*"lam\.log"'):
        load_huggingface(tmp_path)
    (tmp_path / "operators.safetensors").write_bytes(b"half")
    with pytest.raises(ValueError, match=r"operators\.safetensors is damaged"):
        load_huggingface(tmp_path)
    (tmp_path / "operators.safetensors").unlink()
    with pytest.raises(ValueError, match=r"operators\.safetensors is missing"):
        load_huggingface(tmp_path)


def test_a_folder_whose_saving_was_interrupted_does_not_load(tmp_path, monkeypatch):
    model = attached()
    model.save_pretrained(tmp_path)
    monkeypatch.setattr("safetensors.torch.save_file", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        model.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"holds no operators; .* or not to the end"):
        load_huggingface(tmp_path)
