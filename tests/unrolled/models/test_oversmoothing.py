"""What depth does to untrained tokens, with skips, without them, and by operator."""

import pytest
import torch
from sklearn.datasets import load_digits

from twinsolve.unrolled import VisionTransformer
from twinsolve.unrolled.diagnostics import token_similarity

DEPTH, DIM, HEADS, PATCH, SEEDS = 24, 64, 4, 2, range(5)


def final_cosine(seed, images, **options):
    torch.manual_seed(seed)
    model = VisionTransformer(8, PATCH, 1, 10, DIM, DEPTH, HEADS, **options).eval()
    with torch.no_grad():
        return float(token_similarity(model.intermediates(images)[-1]).mean())


@pytest.fixture(scope="module")
def images():
    return torch.tensor(load_digits().images[:32], dtype=torch.float32)[:, None] / 16


@pytest.fixture(scope="module")
def plain(images):
    return [final_cosine(seed, images) for seed in SEEDS]


def test_without_attention_skip_all_tokens_become_one(images, plain):
    without = [final_cosine(seed, images, attention_skip=False) for seed in SEEDS]
    assert min(without) > 0.999
    assert max(plain) < 0.999


@pytest.mark.parametrize("name", ["sparse_coding", "ridge", "neutreno"])
def test_other_operators_keep_tokens_apart_in_every_seed(name, images, plain):
    """Defaults of the names: ISTA with 5 steps, ridge, NeuTRENO with lambda 0.6."""
    found = [final_cosine(seed, images, operator=name) for seed in SEEDS]
    assert all(other < softmax for other, softmax in zip(found, plain, strict=True))
