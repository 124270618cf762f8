import pytest
import torch
from torch.nn import functional as F
from torch.testing import assert_close

from twinsolve.unrolled import LanguageModel, Softmax

from .kinds import CAUSAL_KINDS, KINDS

IDS = torch.randint(11, (2, 18), generator=torch.Generator().manual_seed(0))


def model(**options):
    torch.manual_seed(0)
    return LanguageModel(11, 12, 3, 3, 20, **options).eval()


def test_nothing_to_predict_costs_nothing():
    assert model().loss(IDS[:, :1]) == 0
    assert model().loss(IDS, torch.ones(2, 18, dtype=torch.bool)) == 0


class NotCausal(Softmax):
    causal = False


def test_operators_that_cannot_be_causal_are_refused():
    with pytest.raises(ValueError, match="operator: NotCausal does not support causal masks"):
        model(operator=["softmax", NotCausal(), "softmax"])
    for name in set(KINDS) - set(CAUSAL_KINDS):
        with pytest.raises(ValueError, match="does not support causal masks"):
            model(operator=name)


def test_embeddings_start_with_tokens_of_unit_size():
    torch.manual_seed(0)
    lm = LanguageModel(500, 64, 1, 2, 8)
    tokens = F.embedding(torch.arange(500), lm.embedding.weight) * 8
    assert_close(tokens.std().item(), 1.0, atol=0, rtol=0.03)
