"""Which test images a network gets wrong: as they are, attacked, and corrupted."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from torch import nn

from ..paired import Paired, paired_difference
from .attacks import CORRUPTIONS, corrupted, fgsm, pgd
from .data import Images
from .measures import scores

BUDGETS = (1, 4, 8, 24)  # of 255 levels
N_ATTACKED = 256  # test images, the first
CLEAN = "clean"
ATTACKS = {
    f"{attack.__name__.upper()} {budget}/255": (attack, budget / 255)
    for attack in (fgsm, pgd)
    for budget in BUDGETS
}


def wrong_attacked(model: nn.Module, images: Images) -> dict[str, list[int]]:
    """Places of the images that are wrong, attacked through the model itself, by attack."""
    levels, target = images.levels[:N_ATTACKED], images.target[:N_ATTACKED]
    return {
        name: wrong(model, Images(attack(model, levels, target, budget), target))
        for name, (attack, budget) in ATTACKS.items()
    }


def wrong_corrupted(model: nn.Module, images: Images) -> dict[str, list[int]]:
    """Places of the images that are wrong, by kind of corruption."""
    return {
        kind: wrong(model, Images(corrupted(images.levels, kind), images.target))
        for kind in CORRUPTIONS
    }


def wrong(model: nn.Module, images: Images) -> list[int]:
    """Places of the images whose class is not found."""
    missed = scores(model, images.levels).argmax(dim=1) != images.target
    return missed.nonzero()[:, 0].tolist()


def conditions(table: pd.DataFrame) -> list[str]:
    """Attacks and corruptions that all runs of a table were tried on."""
    return [name for name in (*ATTACKS, *CORRUPTIONS) if all(name in x for x in table.wrong)]


def accuracy(run: Mapping[str, Any], condition: str) -> float:
    """Top-1 accuracy of a run under a condition, in percent."""
    return 100 * (1 - len(run["wrong"][condition]) / _n_images(run, condition))


def matched_difference(table: pd.DataFrame, row: str, to: str, condition: str) -> Paired:
    """Difference in accuracy on images that both rows get right as they are, over paired seeds.

    So that neither is ahead for its accuracy on clean images. Seeds without such images are left
    out.
    """
    found: dict[str, dict[int, float]] = {row: {}, to: {}}
    runs = table[table.row.isin(found)].to_dict("records")
    for seed in {run["seed"] for run in runs}:
        own = {run["row"]: run for run in runs if run["seed"] == seed}
        kept = np.arange(min(_n_images(run, condition) for run in own.values()))
        for run in own.values():
            kept = np.setdiff1d(kept, run["wrong"][CLEAN])
        for name, run in own.items() if len(kept) else ():
            found[name][seed] = 100 * (1 - np.isin(kept, run["wrong"][condition]).mean())
    return paired_difference(*(pd.Series(found[name], dtype=float) for name in (row, to)))


def _n_images(run: Mapping[str, Any], condition: str) -> int:
    return min(run["n_test"], N_ATTACKED) if condition in ATTACKS else run["n_test"]
