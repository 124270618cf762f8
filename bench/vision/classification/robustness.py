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


def hits(table: pd.DataFrame, row: str, condition: str = CLEAN) -> pd.DataFrame:
    """100 where a row finds an image's class and 0 where not, by seed and image."""
    found = {}
    for run in table[table.row == row].to_dict("records"):
        found[run["seed"]] = np.full(_n_images(run, condition), 100.0)
        found[run["seed"]][run["wrong"][condition]] = 0.0
    return pd.DataFrame.from_dict(found, orient="index")


def matched_difference(table: pd.DataFrame, row: str, to: str, condition: str) -> Paired:
    """Difference in accuracy on images that both rows get right as they are, over paired seeds.

    So that neither is ahead for its accuracy on clean images. Seeds without such images are left
    out. As the images differ from seed to seed, the mean over them is a ratio, and its images come
    as linear pseudo-values.
    """
    apart = hits(table, row, condition) - hits(table, to, condition)
    clean = [hits(table, name)[apart.columns] > 0 for name in (row, to)]
    kept = clean[0] & clean[1]
    mean = apart.where(kept).mean(axis=1)
    own = apart.sub(mean, axis=0).where(kept, 0.0)
    return paired_difference(own.div(kept.mean(axis=1), axis=0).add(mean, axis=0))


def _n_images(run: Mapping[str, Any], condition: str) -> int:
    return min(run["n_test"], N_ATTACKED) if condition in ATTACKS else run["n_test"]
