"""Language models: their data, recipes, rows and measures, and the study of them."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...unrolled.diagnostics import token_similarity
from ...unrolled.models import LanguageModel
from ..costs import size_measures, speed_ratios
from ..devices import device_of
from ..paired_training import train_rows
from ..parts import NetworkOfParts, balance_loss, paired_network, tokens_of_experts
from ..task import PLAIN, Task, change_settings
from ..training import Batches, Loss
from .data import N_PAIRS, Text, WordBatches, cut, load_text, swap_words

SWAPPED = 0.025  # share of the words, that of the papers on robust attention
_AT_ONCE, _N_DEPTH, _N_STRETCHES = 64, 32, 200
_SETTINGS: dict[str, Any] = {
    "dim": 64, "depth": 4, "num_heads": 4, "mlp_ratio": 2.0, "dropout": 0.1, "length": 64,
    "candidates": [{"learning_rate": x, "n_steps": 1000} for x in (2e-3, 4e-3)],
    "batch_size": 16, "weight_decay": 0.05, "warm_up": 0.07, "ema_decay": 0.99,
    "precision": "float32",
}  # fmt: skip
_OF_DATA: dict[str, dict[str, Any]] = {
    "generated": {"candidates": [{"learning_rate": 4e-3, "n_steps": 300}], "length": 40},
    "recall": {"length": 4 * N_PAIRS},
}
ROWS: dict[str, dict[str, Any]] = {
    PLAIN: {},
    "NeuTRENO": {"correction": "neutreno:lam=0.4"},  # the weight of its paper for WikiText-103
    "symmetric": {"operator": "symmetric"},
    "symmetric + NeuTRENO": {"operator": "symmetric", "correction": "neutreno:lam=0.4"},
    "bilateral": {"operator": "bilateral"},
    "GRC": {"residual": "boosting"},
    "bilateral + GRC": {"operator": "bilateral", "residual": "boosting"},
    "twicing": {"correction": "twicing"},
}


class TextNetwork(NetworkOfParts):
    """A `LanguageModel` whose parts are named in plain words; operators must be causal."""

    kind = LanguageModel


def settings_of(data: str, recipe: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Sizes and recipe of a text, and what is given in their place."""
    return change_settings(_SETTINGS | _OF_DATA.get(data.partition(":")[0], {}), recipe)


def build(text: Text, settings: Mapping[str, Any], options: Mapping[str, Any], seed: int) -> Any:
    """The model of a row, that starts from the plain one's draws wherever both have a parameter.

    Raises
    ------
    ValueError
        If an option is unknown, or a part of the text is no longer than a window.
    """
    shortest = min(map(len, (text.train, text.validation, text.test)))
    if settings["length"] >= shortest:
        raise ValueError(f"recipe: length must be under the {shortest} words of the shortest part")
    names = ("dim", "depth", "num_heads", "mlp_ratio", "dropout")
    sizes = {name: settings[name] for name in names}
    sizes |= {"vocab_size": len(text.words), "max_length": settings["length"]}
    return paired_network(TextNetwork, sizes | dict(options), sizes, seed)


def make_batches(text: Text, settings: Mapping[str, Any]) -> Batches:
    """Windows of training words."""
    return WordBatches(text.train, settings["length"])


def make_loss(text: Text, settings: Mapping[str, Any]) -> Loss:
    """Mean cross-entropy of the next words, and what balances mixtures of experts, if any."""

    def loss(model: nn.Module, windows: Tensor) -> Tensor:
        with tokens_of_experts(model) as seen:
            entropy = losses(model, windows, windows).mean()
        return entropy + balance_loss(seen)

    return loss


def losses(model: nn.Module, shown: Tensor, windows: Tensor) -> Tensor:
    """Cross-entropy of each word but the first of a window, given those shown before it."""
    scores = model(shown[:, :-1]).flatten(0, 1)
    return F.cross_entropy(scores, windows[:, 1:].flatten(), reduction="none").view(len(shown), -1)


@torch.no_grad()
def mean_losses(model: nn.Module, windows: Tensor, shown: Tensor | None = None) -> Tensor:
    """Of each window, the mean loss of its words."""
    device, both = device_of(model), (windows if shown is None else shown, windows)
    parts = zip(*(words.to(device).split(_AT_ONCE) for words in both), strict=True)
    found = [losses(model, seen, own).mean(dim=1).cpu() for seen, own in parts]
    return torch.cat(found).double()


def validate(model: Any, text: Text) -> dict[str, float]:
    """Mean log-likelihood of a word of the validation part."""
    windows = cut(text.validation, model.network.max_length)
    return {"log_likelihood": -float(mean_losses(model, windows).mean())}


def measure(
    model: Any, text: Text, settings: Mapping[str, Any], measures: Sequence[str]
) -> dict[str, Any]:
    """Losses on the test part, as it is and with swapped words; cosine over depth; costs.

    ``clean`` and ``swapped`` are mean losses of a word in each of at most 200 stretches of equal
    length; what is left at the end of the text does not count.
    """
    windows = cut(text.test, settings["length"])
    n_stretches = min(_N_STRETCHES, len(windows))
    windows = windows[: len(windows) // n_stretches * n_stretches]
    plain = build(text, settings, {}, 0).eval()
    shown = {"clean": windows, "swapped": swap_words(windows, SWAPPED)}
    found: dict[str, Any] = {
        name: mean_losses(model, windows, own).view(n_stretches, -1).mean(dim=1).tolist()
        for name, own in shown.items()
    }
    inputs, model = windows[:_N_DEPTH, :-1], model.cpu()
    with torch.no_grad():
        tokens = _find_last_tokens(deepcopy(model).double(), inputs)
    found["token_cosine"] = float(token_similarity(tokens).mean())
    return found | size_measures(model, inputs) | speed_ratios(model, plain, inputs)


def _find_last_tokens(model: Any, ids: Tensor) -> Tensor:
    """What leaves the last block, before the final norm."""
    seen: list[Tensor] = []
    hook = model.network.norm.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    model(ids)
    hook.remove()
    return seen[0]


TEXT = Task(
    f"{__name__}:TEXT", ROWS, {"LM": LanguageModel}, load_text, settings_of, build,
    make_batches, make_loss, validate, measure,
)  # fmt: skip


def train_language_models(data: str = "wikitext2", **options: Any) -> pd.DataFrame:
    """Train language models with paired seeds, and measure them.

    Parameters
    ----------
    data : str, default="wikitext2"
        As in `load_text`.
    **options
        As `train_rows` takes them.

    Returns
    -------
    DataFrame
        That of `train_rows`, with the columns of `measure`.

    Raises
    ------
    ValueError
        If data, a row or a setting are unknown, or an operator cannot be causal.
    FileNotFoundError
        If files are missing.
    """
    return train_rows(TEXT, data, **options)
