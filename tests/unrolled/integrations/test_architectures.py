"""Every architecture of transformers is served exactly or refused by name, and left as it was."""

import pytest
from torch.testing import assert_close

from twinsolve.unrolled import Softmax, attach_huggingface, replace_attention
from twinsolve.unrolled.integrations import register_huggingface

from .architectures import CONFIG_MAPPING, inputs_of, outputs_of, tiny
from .examples import traces

pytest.importorskip("transformers")

NO_SDPA = "does not support sdpa as the attention of"
NO_INTERFACE = "has no attention that calls transformers' AttentionInterface"
SERVED = [
    "albert", "beit", "bert", "clip", "gemma3_text", "gpt2", "gpt_neox", "llama", "mixtral",
    "modernbert", "swin", "t5", "vit", "whisper",
]  # fmt: skip
REFUSED = {
    "bloom": NO_INTERFACE,
    "falcon": "the attention implementation of FalconAttention cannot be set",
    "gemma2": NO_SDPA,
    "mamba": NO_INTERFACE,
}


def implementations(model):
    """What the library runs as attention in each part."""
    configs = [part.config for part in model.modules() if hasattr(part, "config")]
    return [getattr(config, "_attn_implementation", None) for config in configs]


def check(plug_in, kind, message):
    """Plugged in, or refused with the message where one is given."""
    model = tiny(kind)
    inputs = [inputs_of(model), inputs_of(model, padded=True)]
    expected = [outputs_of(model, given) for given in inputs]
    before = traces(model), implementations(model)
    if message is not None:
        with pytest.raises(ValueError, match=message):
            plug_in(model, Softmax())
        assert (traces(model), implementations(model)) == before
    else:
        plug_in(model, Softmax())
    for given, outputs in zip(inputs, expected, strict=True):
        assert_close(outputs_of(model, given), outputs, atol=1e-9, rtol=1e-9, equal_nan=True)


@pytest.mark.parametrize("kind", [*SERVED, *REFUSED])
def test_attaching_is_exact_or_refused(kind):
    check(attach_huggingface, kind, REFUSED.get(kind))


@pytest.mark.parametrize("kind", ["bert", "mamba"])
def test_replacing_points_to_attaching(kind):
    check(replace_attention, kind, "attach_huggingface")


@pytest.mark.parametrize("kind", ["bloom", "gpt_oss"])
def test_names_are_refused_where_masks_or_attention_are_asked_for(kind):
    register_huggingface(["softmax"])
    model = tiny(kind, "twinsolve_softmax")
    with pytest.raises(ValueError, match=NO_SDPA):
        outputs_of(model, inputs_of(model))


@pytest.mark.slow
@pytest.mark.parametrize("plug_in", [attach_huggingface, replace_attention])
@pytest.mark.parametrize("kind", CONFIG_MAPPING)
def test_every_architecture_is_exact_or_refused(kind, plug_in):
    try:
        model = tiny(kind)
        outputs_of(model, inputs_of(model))
    except Exception as error:
        pytest.skip(f"no tiny model: {error}")
    try:
        plug_in(model, Softmax())
    except ValueError:
        check(plug_in, kind, "model: ")
        return
    try:
        check(plug_in, kind, None)
    except ValueError as error:  # what only a call asks for, as a cap of logits
        if "Softmax does not serve what the model asks for here" not in str(error):
            raise
