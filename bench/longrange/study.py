"""Classifiers of sequences: their recipes, rows and measures, and the study of them."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from ...unrolled.models import SequenceClassifier
from ..costs import size_measures, speed_ratios
from ..paired_training import train_rows
from ..parts import paired_network
from ..task import PLAIN, Task, change_settings
from ..training import Batches, Loss
from ..vision.classification.data import Splits, batch_order, cross_entropy
from ..vision.classification.measures import CLEAN, accuracies, wrong
from ..vision.classification.study import ROWS as OF_IMAGES
from .data import N_SYMBOLS, load_sequences
from .networks import PADDING, SequenceNetwork, mean_cosine

_SETTINGS: dict[str, Any] = {
    "dim": 64, "depth": 2, "num_heads": 4, "mlp_ratio": 2.0,
    "candidates": [
        {"learning_rate": rate, "position_scale": 0.5**0.5, "n_steps": 800} for rate in (2e-3, 4e-3)
    ],
    "batch_size": 32, "weight_decay": 0.05, "warm_up": 0.07, "ema_decay": 0.99,
    "label_smoothing": 0.0, "drop_path": 0.0, "precision": "float32",
}  # fmt: skip
_SIZES = ("dim", "depth", "num_heads", "mlp_ratio", "drop_path")
DEFAULT = (PLAIN, "ALiBi", "bilateral", "sparse coding")
_OF_PICTURES = {"architecture", "token_graying"}
ROWS = {name: OF_IMAGES[name] for name in DEFAULT} | {
    name: options for name, options in OF_IMAGES.items() if not _OF_PICTURES & set(options)
}


def settings_of(data: str, recipe: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Sizes and recipe, the same for all data, and what is given in their place."""
    return change_settings(_SETTINGS, recipe)


def build(
    splits: Splits, settings: Mapping[str, Any], options: Mapping[str, Any], seed: int
) -> SequenceNetwork:
    """The network of a row, as its training starts."""
    tokens = splits.train.levels
    sizes = {name: settings[name] for name in _SIZES}
    sizes |= {"num_classes": len(splits.classes), "max_length": tokens.shape[1]}
    of_levels: dict[str, Any] = {}
    if tokens.is_floating_point():
        of_levels = {"mean": float(tokens.mean()), "std": float(tokens.std())}
    else:
        sizes["vocab_size"] = N_SYMBOLS
    make = partial(SequenceNetwork, **of_levels)
    return paired_network(make, sizes | dict(options), sizes, seed)


def make_batches(splits: Splits, settings: Mapping[str, Any]) -> Batches:
    """Batches of training sequences, cut where the longest of them ends."""
    train, size = splits.train, settings["batch_size"]

    def batches(seed: int, step: int, samples: range) -> tuple[Tensor, Tensor]:
        chosen = torch.from_numpy(batch_order(len(train), size, seed, step)[samples])
        tokens = train.levels[chosen]
        if not tokens.is_floating_point():
            tokens = tokens[:, : int((tokens != PADDING).sum(dim=1).max())]
        return tokens, train.target[chosen]

    return batches


def make_loss(splits: Splits, settings: Mapping[str, Any]) -> Loss:
    """Cross-entropy with the label smoothing of the settings."""
    return cross_entropy(settings["label_smoothing"])


def validate(model: Any, splits: Splits) -> dict[str, float]:
    """Accuracy on validation sequences, in percent."""
    return {"accuracy": accuracies(model, splits.validation)["top1"]}


def measure(
    trained: Any, splits: Splits, settings: Mapping[str, Any], measures: Sequence[str]
) -> dict[str, Any]:
    """Accuracy, size, speed and mean cosine of a trained network, on test sequences.

    ``most_frequent`` and ``chance`` are what is right without looking, in percent; ``wrong`` has
    the places of the sequences that are wrong.
    """
    test, plain = splits.test, build(splits, settings, {}, 0).eval()
    shares = 100 * test.target.bincount() / len(test)
    found: dict[str, Any] = {"accuracy": accuracies(trained, test)["top1"]}
    found["wrong"] = {CLEAN: wrong(trained, test)}
    trained = trained.cpu()
    return found | {
        "most_frequent": float(shares.max()), "chance": 100 / len(splits.classes),
        **size_measures(trained, test.levels), **speed_ratios(trained, plain, test.levels),
        "token_cosine": mean_cosine(trained, test), "n_test": len(test),
    }  # fmt: skip


SEQUENCES = Task(
    f"{__name__}:SEQUENCES", ROWS, {"Sequence": SequenceClassifier}, load_sequences, settings_of,
    build, make_batches, make_loss, validate, measure,
)  # fmt: skip


def classify_sequences(data: str = "listops", **options: Any) -> pd.DataFrame:
    """Train classifiers of long sequences with paired seeds, and measure them.

    Parameters
    ----------
    data : str, default="listops"
        As in `load_sequences`.
    **options
        As `train_rows` takes them: rows (by default softmax, ALiBi, bilateral and sparse coding),
        seeds, steps, recipe, against, n_jobs, data_home, device, directory and progress.

    Returns
    -------
    DataFrame
        That of `train_rows`, with accuracies in percent; ``inference`` and ``training`` are ratios
        of throughput to the plain row.

    Raises
    ------
    ValueError
        If data, a row or a setting are unknown.
    """
    return train_rows(SEQUENCES, data, **{**options, "rows": options.get("rows") or DEFAULT})
