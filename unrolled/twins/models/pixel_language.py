"""The task of a language model: words are grey levels, and it says a pixel anew from its window."""

from typing import Any

import numpy as np
import torch
from scipy.special import softmax
from torch import Tensor, nn

from ...models import LanguageModel
from ..heads import Array, as_array
from .backbone_pass import language_model
from .block_pass import Settings
from .fitted import NOISE, fit_last, seeded
from .small_models import drawn

_N_LEVELS, _RANGE, _DIM = 16, 2.5, 24
_WINDOW = [6, 7, 8, 11, 13, 16, 17, 18, 12]  # of a patch 5 x 5: the inner pixels, its middle last
_MIDDLE = _WINDOW[-1]
_LEVELS = _RANGE * (np.arange(0.5, _N_LEVELS) / _N_LEVELS * 2 - 1)
_CERTAIN = 3.0 * _DIM  # size of the level that is said, before the last norm


def saying_pixels() -> dict[str, Any]:
    """Fields of the twin for patches: their middle is the mean level by the scores at its place."""
    return {"inputs": "patches", "build": _build, "apply": _apply, "solve": _solve}


def _words(X: Array) -> Array:
    levels = (X[:, _WINDOW] / _RANGE + 1) / 2 * _N_LEVELS
    return np.clip(levels.astype(int), 0, _N_LEVELS - 1)


def _build(X: Array) -> nn.Module:
    """Embeddings are alike for levels that are; its last map takes away noise, added once more."""
    model: Any = seeded(LanguageModel, _N_LEVELS, _DIM, 1, 1, len(_WINDOW)).double()
    rng = np.random.default_rng(0)
    waves, phases = 0.3 * rng.standard_normal(_DIM), rng.uniform(0, 2 * np.pi, _DIM)
    embedding = np.cos(np.arange(_N_LEVELS)[:, None] * waves + phases) * np.sqrt(2 / _DIM)
    drawn(model, 0.02)
    with torch.no_grad():
        model.embedding.weight.copy_(torch.from_numpy(embedding))
    noisy = torch.from_numpy(_words(X + NOISE * rng.standard_normal(X.shape)))
    targets = _CERTAIN * embedding[_words(X)].reshape(-1, _DIM)
    fit_last(_Hidden(model), model.blocks[-1].feed_forward.fc2, noisy, targets)
    return model


class _Hidden(nn.Module):
    """Tokens before the last norm."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, words: Tensor) -> Tensor:
        taken: list[Tensor] = []
        handle = self.model.norm.register_forward_pre_hook(lambda norm, x: taken.append(x[0]))
        self.model(words)
        handle.remove()
        return taken[0].flatten(0, 1)


def _apply(model: Any, X: Tensor) -> Tensor:
    shares = model(torch.from_numpy(_words(as_array(X))))[:, -1].softmax(dim=-1)
    said = X.clone()
    said[:, _MIDDLE] = shares @ torch.from_numpy(_LEVELS).to(X.dtype)
    return said


def _solve(model: Any, X: Array) -> Array:
    said, settings = X.copy(), Settings(1)
    scores = np.stack([language_model(model, words, settings)[-1] for words in _words(X)])
    said[:, _MIDDLE] = softmax(scores, axis=1) @ _LEVELS
    return said
