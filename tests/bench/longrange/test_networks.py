import pytest
import torch

from twinsolve.bench.longrange.networks import SequenceNetwork, mean_cosine
from twinsolve.bench.vision.classification.data import Images
from twinsolve.unrolled.diagnostics import token_similarity

SIZES = {"num_classes": 3, "dim": 8, "depth": 2, "num_heads": 2, "max_length": 9}
IDS = torch.tensor([[3, 1, 4, 1, 5, 0, 0, 0], [2, 7, 1, 8, 2, 8, 1, 0]])


def network(**options):
    torch.manual_seed(0)
    return SequenceNetwork(SIZES | {"vocab_size": 10} | options).eval()


def test_padding_behind_the_end_counts_nowhere():
    model, longer = network(), torch.nn.functional.pad(IDS, (0, 1))
    assert torch.allclose(model(longer), model(IDS), atol=1e-6)
    first = model.network.intermediates(IDS[:1, :5])[-1].detach()
    expected = float(token_similarity(first))
    assert mean_cosine(model, Images(IDS[:1], IDS[:1, 0])) == pytest.approx(expected, abs=1e-6)


def test_parts_are_named_as_those_of_classifiers():
    text = str(network(operator="bilateral", correction="twicing", residual="boosting"))
    for name in ("Twicing", "Bilateral", "GeneralizedResidual"):
        assert name in text
    with pytest.raises(ValueError, match="row: SequenceClassifier cannot be made"):
        network(token_graying="dct")
