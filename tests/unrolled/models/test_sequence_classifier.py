import pytest
import torch
from torch.testing import assert_close

from twinsolve.unrolled.models import SequenceClassifier

from .kinds import KINDS

GENERATOR = torch.Generator().manual_seed(0)
IDS = torch.randint(11, (2, 9), generator=GENERATOR)
LEVELS = torch.rand(2, 9, generator=GENERATOR, dtype=torch.float64)


def model(**options):
    torch.manual_seed(0)
    return SequenceClassifier(5, 12, 2, 3, 10, dtype=torch.float64, **options).eval()


@pytest.mark.parametrize("name", KINDS)
def test_padding_changes_nothing(name):
    """As if the tokens behind it were absent, whatever they are."""
    for vocab_size, tokens in ((11, IDS), (None, LEVELS)):
        classifier = model(vocab_size=vocab_size, operator=name)
        hidden = torch.zeros(2, 9, dtype=torch.bool)
        hidden[:, 6:] = True
        changed = torch.where(hidden, tokens.flip(1), tokens)
        expected = classifier(tokens)
        found = classifier(changed, hidden)
        assert_close(found, classifier(tokens, hidden), atol=1e-11, rtol=0)
        assert_close(found, classifier(tokens[:, :6]), atol=1e-11, rtol=0)
        assert not torch.allclose(found, expected, atol=1e-3)


def test_the_order_of_tokens_counts():
    for vocab_size, tokens in ((11, IDS), (None, LEVELS)):
        classifier = model(vocab_size=vocab_size)
        assert not torch.allclose(classifier(tokens), classifier(tokens.flip(1)), atol=1e-3)


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="tokens: must be at most 10 a sequence, got 11"):
        model()(torch.rand(2, 11, dtype=torch.float64))
    with pytest.raises(ValueError, match="tokens: must be among 0 to 10"):
        model(vocab_size=11)(IDS + 5)
