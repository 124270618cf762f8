"""A trained plain network that becomes each row and is trained on, against itself trained on."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from ...jobs import Options, run_jobs
from ...timing import Progress
from .data import load_splits
from .measures import accuracies
from .networks import with_weights_of
from .robustness import CLEAN, wrong
from .study import (
    PLAIN,
    build,
    classify,
    placed,
    recipe_of,
    row_options,
    settings_of,
    train_kept,
    trained_network,
)

ADAPTED = ("AttnScale", "FeatScale", "NeuTRENO", "twicing", "sparse coding")
_SHARE = 1 / 3  # extra steps, of those of the plain network
RATES = (0.1, 0.3, 1.0)  # of the plain network's learning rate


def adapt(
    data: str = "digits",
    *,
    rows: Iterable[str] | None = None,
    seeds: int = 5,
    steps: int | None = None,
    recipe: Mapping[str, Any] | None = None,
    n_jobs: int = 1,
    data_home: str | None = None,
    directory: Path,
    progress: Progress | None = None,
) -> pd.DataFrame:
    """Turn trained plain networks into each row, train them on, and measure them.

    The plain network is trained as in `classify`. Each row takes its averaged weights, wherever
    name and shape are the same, and is trained on for a third of the steps, on the batches that
    come next; so is the plain row itself. The learning rate of the extra steps is, for each row,
    the one of the same few with the best mean accuracy on validation images over all seeds, the
    smallest of those that tie. Test images choose nothing.

    Parameters
    ----------
    data, seeds, steps, recipe, n_jobs, data_home, directory, progress
        As `classify` takes them; `steps` are those of the plain network.
    rows : iterable of str, optional
        As in `classify`, vision transformers alone. None is AttnScale, FeatScale, NeuTRENO, twicing
        and sparse coding.

    Returns
    -------
    DataFrame
        A row for each network and seed. Of test images, in percent: ``plain`` is the accuracy of
        the trained plain network, ``start`` that of the row with its weights, ``top1`` that after
        the extra steps; ``wrong`` has the places of the images that are wrong then.

    Raises
    ------
    ValueError
        If data or a row are unknown, or a row has another architecture.
    """
    given = {name: row_options(name) for name in dict.fromkeys([PLAIN, *(rows or ADAPTED)])}
    splits, settings = load_splits(data, data_home), settings_of(data, recipe)
    for name, options in given.items():
        if options.get("architecture", "ViT") != "ViT":
            raise ValueError(f"row: {name!r} has no weights in common with the plain one")
        build(splits, settings, options, seed=0)
    plain = classify(
        data, rows=[PLAIN], seeds=seeds, steps=steps, recipe=recipe, n_jobs=n_jobs,
        data_home=data_home, directory=directory, progress=progress,
    )  # fmt: skip
    candidate = plain[list(settings["candidates"][0])].to_dict("records")[0]
    jobs = [
        {
            "data": data, "data_home": data_home, "directory": str(directory),
            "settings": settings, "row": row, "options": options, "candidate": candidate,
            "seed": seed, "rate": share * candidate["learning_rate"],
        }
        for row, options in given.items()
        for share in RATES
        for seed in range(seeds)
    ]  # fmt: skip
    found = run_jobs(_run, jobs, Options(0, seeds, n_jobs, data_home, directory, progress))
    return best_rates(found)


def best_rates(table: pd.DataFrame) -> pd.DataFrame:
    """The lines of each row at its learning rate with the best mean accuracy on validation."""
    means = table.groupby(["row", "learning_rate"], sort=False).validation.mean()
    means = means.round(9).reset_index()  # the same hits in another order of seeds tie
    best = means.sort_values(["validation", "learning_rate"], ascending=[False, True])
    kept = best.drop_duplicates("row")[["row", "learning_rate"]]
    return table.merge(kept, on=["row", "learning_rate"])


def _run(
    data: str, data_home: str | None, directory: str, settings: dict[str, Any], row: str,
    options: dict[str, Any], candidate: dict[str, Any], seed: int, rate: float,
) -> list[dict[str, Any]]:  # fmt: skip
    """Take the trained plain network from its folder, and train a row on from there."""
    steps = candidate["n_steps"]
    plain, splits = trained_network(data, data_home, directory, settings, {}, candidate, seed)
    model = with_weights_of(build(splits, settings, placed(options, candidate), seed), plain)
    start = accuracies(model.eval(), splits.test)["top1"]
    extra = {"n_steps": max(1, round(_SHARE * steps)), "learning_rate": rate}
    recipe = recipe_of(settings, extra, seed)
    task = {"data": data, "after": candidate}
    trained = train_kept(model, splits, settings, recipe, task, directory, first_step=steps)
    return [
        {
            "row": row, "data": data, "seed": seed, "learning_rate": rate, "steps": steps,
            "extra_steps": extra["n_steps"],
            "validation": accuracies(trained, splits.validation)["top1"],
            "plain": accuracies(plain, splits.test)["top1"],
            "start": start,
            "top1": accuracies(trained, splits.test)["top1"],
            "n_test": len(splits.test), "wrong": {CLEAN: wrong(trained, splits.test)},
        }
    ]  # fmt: skip
