"""Checks of models in float32: rounding is no fault, and what is a thousandth is one."""

import pytest
import torch

import twinsolve
from twinsolve.unrolled import attach_huggingface, make_operator, operator_names

transformers = pytest.importorskip("transformers")

HEADS, WIDTH, N_TOKENS = 4, 64, 32
SIZES = {"hidden_size": WIDTH, "num_attention_heads": HEADS, "num_hidden_layers": 2}
IDS = torch.randint(0, 200, (2, N_TOKENS), generator=torch.Generator().manual_seed(0))
VISIBLE = torch.ones(2, N_TOKENS, dtype=torch.long)
VISIBLE[1, 20:] = 0


def gpt2():
    config = transformers.GPT2Config(
        n_layer=2, n_head=HEADS, n_embd=WIDTH, vocab_size=200, bos_token_id=0, eos_token_id=0
    )
    return transformers.GPT2LMHeadModel(config), {"input_ids": IDS}


def bert():
    config = transformers.BertConfig(**SIZES, intermediate_size=128, vocab_size=200)
    return transformers.BertModel(config), {"input_ids": IDS, "attention_mask": VISIBLE}


def vit():
    config = transformers.ViTConfig(**SIZES, intermediate_size=128, image_size=20, patch_size=4)
    return transformers.ViTModel(config), {"pixel_values": torch.randn(2, 3, 20, 20)}


# Problems without a causal form, and projections that GPT-2 has in one convolution.
REFUSED = {"gpt2": {"bilateral", "low_rank", "ridge", "sinkhorn", "tupe"}}


def attached(make, name, seed):
    torch.manual_seed(seed)
    model, batch = make()
    needs = make_operator(name, num_heads=HEADS, head_dim=WIDTH // HEADS).needs
    positions = torch.randn(N_TOKENS, WIDTH) if any("positions" in need for need in needs) else None
    return attach_huggingface(model, name, positions=positions), batch


@pytest.mark.parametrize("make", [gpt2, bert, vit])
@pytest.mark.parametrize("name", operator_names())
@pytest.mark.filterwarnings("ignore:.*positions")
def test_no_operator_of_a_model_is_accused_of_rounding_nor_acquitted_of_more(make, name):
    try:
        model, batch = attached(make, name, seed=4)
        report = twinsolve.check(model, batch)
    except ValueError:
        assert name in REFUSED.get(make.__name__, ())
        return
    assert report, str(report)
    for module in model.modules():
        if hasattr(module, "operator"):
            module.operator.register_forward_hook(lambda _, given, output: 1.001 * output)
    verdicts = {row["verdict"] for row in twinsolve.check(model, batch).judged}
    assert verdicts == {"NOT CORRECT"}


def test_where_rounding_would_excuse_a_thousandth_a_copy_in_float64_is_judged():
    def nearly_uniform():
        model, batch = gpt2()
        for parameter in model.parameters():
            parameter.data *= 0.1
        return model, batch

    model, batch = attached(nearly_uniform, "re_attention", seed=4)
    report = twinsolve.check(model, batch)
    assert report, str(report)
    assert {row["dtype"] for row in report.judged} == {"float64 copy of float32"}
    for block in model.transformer.h:
        block.attn.operator.register_forward_hook(lambda _, given, output: 1.001 * output)
    assert not twinsolve.check(model, batch)


def test_half_precision_reads_first_values_in_float64_too():
    model, batch = attached(vit, "neutreno", seed=0)
    batch = {"pixel_values": batch["pixel_values"].bfloat16()}
    report = twinsolve.check(model.bfloat16(), batch)
    assert report, str(report)
