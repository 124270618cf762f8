"""Models in folders, as huggingface_hub keeps them."""

import copy
import json
import pickle
import sys

import pytest
import torch

from twinsolve.unrolled import Softmax, Twicing, VisionTransformer
from twinsolve.unrolled.models import hub

from ..draws import moved

IMAGES = torch.randn(2, 1, 8, 12, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def library():
    return pytest.importorskip("huggingface_hub")


def build(**options):
    torch.manual_seed(0)
    settings = {"operator": ["twicing", "sparse_coding"], "mlp_ratio": 2.0, "pool": "mean"}
    return moved(VisionTransformer((8, 12), 2, 1, 10, 16, 2, 2, **(settings | options)), 0.2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_folder_gives_the_model_back(library, tmp_path, dtype):
    model = build(dtype=dtype).eval()
    model.save_pretrained(tmp_path)
    torch.manual_seed(1)
    same = VisionTransformer.from_pretrained(tmp_path)
    assert type(same) is VisionTransformer
    assert type(model) is VisionTransformer
    assert same(IMAGES.to(dtype)).equal(model(IMAGES.to(dtype)))
    assert same.made_with == model.made_with
    same.save_pretrained(tmp_path / "again")
    configs = [json.loads((x / "config.json").read_text()) for x in (tmp_path, tmp_path / "again")]
    assert configs[0] == configs[1]
    assert configs[0]["image_size"] == [8, 12]
    assert "library_name: twinsolve" in (tmp_path / "README.md").read_text()


def test_a_preset_and_copies_are_stored_too(library, tmp_path):
    model = VisionTransformer.tiny(8, 4, 1, num_classes=3)
    for i, same in enumerate((model, copy.deepcopy(model), pickle.loads(pickle.dumps(model)))):
        same.save_pretrained(tmp_path / str(i))
        found = VisionTransformer.from_pretrained(tmp_path / str(i))
        assert len(found.blocks) == 12
        assert found.head.weight.equal(model.head.weight)


def test_saving_draws_nothing_and_leaves_the_model_alone(library, tmp_path):
    model = build()
    before, state = {**vars(model)}, torch.get_rng_state()
    model.save_pretrained(tmp_path)
    assert torch.get_rng_state().equal(state)
    assert vars(model).keys() == before.keys()


def test_what_cannot_be_made_again_is_refused(library, tmp_path):
    by_module = build(operator=Twicing(Softmax()))
    with pytest.raises(
        ValueError, match=r"operator: Twicing\([\s\S]* give an operator by its name"
    ):
        by_module.save_pretrained(tmp_path)
    changed = build(operator="softmax")
    changed.blocks[0].attention.operator = Twicing(Softmax())
    with pytest.raises(ValueError, match="model: has other parts than its constructor"):
        changed.push_to_hub("name/model")
    mixed = build()
    mixed.head.double()
    with pytest.raises(ValueError, match="model: must have parameters of one dtype"):
        mixed.save_pretrained(tmp_path)
    assert not [*tmp_path.iterdir()]


def test_weights_of_another_model_are_refused(library, tmp_path):
    build(operator="softmax").save_pretrained(tmp_path)
    with pytest.raises(RuntimeError, match="Missing key"):
        VisionTransformer.from_pretrained(tmp_path, depth=3)


def test_without_the_library_the_error_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    hub._hub_class.cache_clear()
    with pytest.raises(ImportError, match="pip install huggingface_hub"):
        build().save_pretrained(tmp_path)
    with pytest.raises(ImportError, match="pip install huggingface_hub"):
        VisionTransformer.from_pretrained(tmp_path)
    hub._hub_class.cache_clear()


def test_the_library_is_pushed_to_by_its_own_method(library, monkeypatch):
    seen = []

    def push(model, repo_id, **options):
        seen.append((type(model).__name__, repo_id, options, model._hub_mixin_config["dim"]))
        return "address"

    monkeypatch.setattr(library.PyTorchModelHubMixin, "push_to_hub", push)
    hub._hub_class.cache_clear()
    assert build().push_to_hub("name/model", private=True) == "address"
    hub._hub_class.cache_clear()
    assert seen == [("VisionTransformer", "name/model", {"private": True}, 16)]
