"""Words in three parts, as numbers, and batches of those that train."""

from collections import Counter
from dataclasses import dataclass
from functools import cached_property

import joblib
import numpy as np
import torch
from torch import Tensor

from ...datasets import fetch_wikitext2
from ..names import split_settings
from ..training import generator_of

UNKNOWN = 0
_SHARE = 0.1  # of the words to learn from, at their end, that validate where no others do
_SOURCES, _WORDS, _LENGTH = 8, 200, 40  # of the generated text
N_PAIRS, _N_KEYS = 8, 16  # of a line of the text of recall


@dataclass(frozen=True)
class Text:
    """Words of each part as numbers, one after another, and the words that the numbers stand for.

    ``standard`` says whether the parts are those that the data set was published in.
    """

    train: Tensor
    validation: Tensor
    test: Tensor
    words: tuple[str, ...]
    standard: bool

    @cached_property
    def content(self) -> str:
        """What tells them from other texts under the same name."""
        return joblib.hash([x.numpy() for x in (self.train, self.validation, self.test)])


def load_text(data: str, data_home: str | None = None) -> Text:
    """Load words in three parts, the same each time.

    Parameters
    ----------
    data : str
        "wikitext2", from the data root; "generated"; or "recall". Each with the size of the
        vocabulary, "wikitext2:n_words=4000", which is the default: ``<unk>`` and the most frequent
        others of the words to learn from. All others count as ``<unk>``.
    data_home : str, optional
        As in `fetch_wikitext2`.

    Returns
    -------
    Text
        WikiText-2 in its published parts if its training file is there. Without it, the first nine
        tenths of the validation file train, the last tenth validates, and the test file tests: no
        standard, and much less text. The generated text has lines of 40 words, each line from one
        of eight Markov chains on 200 words, so that the words before tell the chain: 80,000 words
        train, 8,000 validate and 8,000 test.

        The text of recall has lines of 8 pairs of a key and a value, each key another one of 16,
        and then the same pairs in another order. Values are drawn from 16 in each line anew, so
        that the first half tells those of the second, and nothing else does. Perplexity is 5.2 for
        a model that recalls all, and 10.4 for one that recalls the keys but no value: 160,000 words
        train, 16,000 validate and 16,000 test.

    Raises
    ------
    ValueError
        If there are no such data, or the size is none.
    FileNotFoundError
        If files of WikiText-2 are missing.
    """
    name, given = split_settings(data, "data")
    n_words = given.get("n_words", 4000)
    if set(given) - {"n_words"} or not isinstance(n_words, int) or n_words < 2:
        raise ValueError(f"data: {name} takes n_words, 2 or more; got {given}")
    if name == "generated":
        words = _draw_words(2400)
        parts = [words[:80_000], words[80_000:88_000], words[88_000:]]
        return _number(parts, n_words, standard=True)
    if name == "recall":
        words = _draw_pairs(6000)
        parts = [words[:160_000], words[160_000:176_000], words[176_000:]]
        return _number(parts, n_words, standard=True)
    if name != "wikitext2":
        raise ValueError(f"data: must be wikitext2, generated or recall, got {name!r}")

    def fetch(subset: str) -> list[str]:
        words: list[str] = fetch_wikitext2(subset=subset, data_home=data_home).words
        return words

    known, test = fetch("validation"), fetch("test")
    try:
        whole = fetch("train")
    except FileNotFoundError:
        n_train = round((1 - _SHARE) * len(known))
        return _number([known[:n_train], known[n_train:], test], n_words, standard=False)
    return _number([whole, known, test], n_words, standard=True)


def _number(parts: list[list[str]], n_words: int, *, standard: bool) -> Text:
    """Words as numbers; the vocabulary is that of the first part."""
    counted = Counter(word for word in parts[0] if word != "<unk>")
    frequent = sorted(counted, key=lambda word: (-counted[word], word))[: n_words - 1]
    words = ("<unk>", *frequent)
    numbers = {word: place for place, word in enumerate(words)}
    train, validation, test = (
        torch.tensor([numbers.get(word, UNKNOWN) for word in part]) for part in parts
    )
    return Text(train, validation, test, words, standard)


def _draw_words(n_lines: int) -> list[str]:
    """Lines of 40 words, each from a Markov chain that goes from a word to one of a few."""
    rng = np.random.default_rng(0)
    chains = rng.dirichlet(np.full(_WORDS, 0.02), size=(_SOURCES, _WORDS)).cumsum(axis=2)
    source, word = rng.integers(_SOURCES, size=n_lines), rng.integers(_WORDS, size=n_lines)
    drawn = np.empty((n_lines, _LENGTH), dtype=np.int64)
    for place in range(_LENGTH):
        drawn[:, place] = word
        uniform = rng.random((n_lines, 1))
        word = (chains[source, word] < uniform).sum(axis=1).clip(max=_WORDS - 1)
    return [f"w{number}" for number in drawn.ravel()]


def _draw_pairs(n_lines: int) -> list[str]:
    """Lines of pairs of keys and values, and the same pairs in another order."""
    rng = np.random.default_rng(0)
    keys = rng.permuted(np.tile(np.arange(_N_KEYS), (n_lines, 1)), axis=1)[:, :N_PAIRS]
    pairs = np.stack([keys, _N_KEYS + rng.integers(_N_KEYS, size=keys.shape)], axis=2)
    order = rng.permuted(np.tile(np.arange(N_PAIRS), (n_lines, 1)), axis=1)
    again = np.take_along_axis(pairs, order[..., None], axis=1)
    lines = np.concatenate([pairs, again], axis=1)
    return [f"k{x}" if x < _N_KEYS else f"v{x - _N_KEYS}" for x in lines.ravel()]


def cut(ids: Tensor, length: int) -> Tensor:
    """Windows of ``length + 1`` words, each beginning at the last word of the one before."""
    return ids.unfold(0, length + 1, length)


def swap_words(windows: Tensor, share: float, seed: int = 0) -> Tensor:
    """Windows in which a share of the words, drawn at random, is ``<unk>``."""
    drawn = np.random.default_rng(seed).random(tuple(windows.shape)) < share
    return windows.masked_fill(torch.from_numpy(drawn), UNKNOWN)


class WordBatches:
    """Windows of ``length + 1`` words that begin anywhere, drawn by seed, step and sample."""

    def __init__(self, ids: Tensor, length: int) -> None:
        self.windows = ids.unfold(0, length + 1, 1)

    def __call__(self, seed: int, step: int, samples: range) -> Tensor:
        n_places = len(self.windows)
        starts = [int(generator_of(seed, step, x).integers(n_places)) for x in samples]
        return self.windows[starts]
