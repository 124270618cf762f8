"""Tokens of untrained networks."""

import pandas as pd
import pytest
import torch
from transformers import BertConfig, BertModel
from untrained import MODELS, draw_inputs, measure_cosines

from twinsolve.unrolled.diagnostics import token_similarity


@pytest.mark.parametrize("name", MODELS)
def test_neutreno_keeps_tokens_of_deeper_layers_apart_and_is_softmax_in_the_first(name):
    plain, other = (
        pd.DataFrame(measure_cosines(name, operator, 0, 3, 16)).token_cosine
        for operator in ("softmax", "NeuTRENO")
    )
    assert plain.is_monotonic_increasing
    assert other[:2].tolist() == pytest.approx(plain[:2].tolist(), rel=1e-5)
    assert other[3] < plain[3]


@torch.no_grad()
def test_softmax_is_the_attention_of_the_library_itself():
    torch.manual_seed(0)
    model = BertModel(BertConfig(num_hidden_layers=2)).eval()
    last = model(draw_inputs("BERT-base", 16)).last_hidden_state
    (*_, found) = measure_cosines("BERT-base", "softmax", 0, 2, 16)
    assert found["token_cosine"] == pytest.approx(float(token_similarity(last).mean()), rel=1e-4)
