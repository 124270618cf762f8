"""Rows of networks x seeds on one data set: one table."""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd

from ...jobs import Job, Options, code, run_jobs
from ...names import close_names, split_settings
from ...timing import Progress
from ..training import Recipe, operator_sources, train
from .data import ClassBatches, Splits, augment, cross_entropy, load_splits
from .measures import (
    CLEAN,
    accuracies,
    depth_measures,
    size_measures,
    speed_ratios,
    wrong,
    wrong_attacked,
    wrong_corrupted,
)
from .networks import ARCHITECTURES, Classifier, paired_classifier

_PICTURES: dict[str, Any] = {
    "patch_size": 4, "dim": 96, "depth": 6, "num_heads": 4, "mlp_ratio": 2.0,
    "candidates": [
        {"learning_rate": rate, "position_scale": 0.5**0.5, "n_steps": 3000}
        for rate in (5e-4, 1e-3)
    ],
    "batch_size": 64, "weight_decay": 0.05, "warm_up": 0.07, "ema_decay": 0.998,
    "label_smoothing": 0.1, "drop_path": 0.1, "shift": 4, "flip": True, "erasing": 0.0,
    "mixup": 0.0, "cutmix": 0.0, "precision": "float32",
}  # fmt: skip
# Sizes and recipes of data sets, where they differ from those of pictures. Each row takes the
# candidate that does best on the validation images; the first wins ties. `position_scale` is where
# learned positions start, 0.5**0.5 as sinusoids; networks without positions leave it out. `shift`
# (pixels) and `flip` move images; `erasing` is the share of images that lose a rectangle, `mixup`
# and `cutmix` the shares of batches that are mixed in pairs.
_OF_DATA: dict[str, dict[str, Any]] = {
    "digits": {
        "patch_size": 2, "dim": 32, "ema_decay": 0.98, "drop_path": 0.0, "shift": 0, "flip": False,
        "candidates": [
            {"learning_rate": rate, "position_scale": scale, "n_steps": n_steps}
            for rate, scale, n_steps in (
                (3e-3, 0.5**0.5, 300), (6e-3, 0.5**0.5, 300), (6e-3, 0.1, 300),
                (3e-3, 0.5**0.5, 600), (6e-3, 0.5**0.5, 600),
            )
        ],
    },
    "cifar10:n_train=12000": {  # so that two cores train the rows of its page within an hour
        "dim": 64,
        "candidates": [
            {"learning_rate": rate, "position_scale": 0.5**0.5, "n_steps": 1200}
            for rate in (2e-3, 4e-3)
        ],
    },
}  # fmt: skip
PLAIN = "softmax"
_LONGEST = 100  # characters of what a run's folder says of its row
_EXCHANGED = {
    "attention_skip", "correction", "experts", "feed_forward_residual", "feed_forward_skip",
    "identity", "residual", "scale", "skip", "token_graying",
}  # fmt: skip
ROWS: dict[str, dict[str, Any]] = {
    PLAIN: {},
    "no attention skip": {"attention_skip": False},
    "ConvMixer": {"architecture": "ConvMixer"},
    "ConvMixer, no skip": {"architecture": "ConvMixer", "skip": False},
    "sparse coding": {"operator": "sparse_coding"},
    "NeuTRENO": {"correction": "neutreno"},
    "twicing": {"correction": "twicing"},
    "GRC": {"residual": "boosting"},
    "bilateral": {"operator": "bilateral"},
    "ridge": {"operator": "ridge"},
    "AttnScale": {"correction": "attn_scale"},
    "FeatScale": {"scale": "FeatScale"},
    "sparsemax": {"operator": "sparsemax"},
    "kernel": {"operator": "kernel"},
    "local": {"operator": "Local:radius=1"},
    "TUPE": {"operator": "tupe"},
    "ALiBi": {"operator": "alibi"},
    "bilateral + GRC": {"operator": "bilateral", "residual": "boosting"},
    "NeuTRENO + FeatScale": {"correction": "neutreno", "scale": "FeatScale"},
    "symmetric": {"operator": "symmetric"},
    "symmetric + NeuTRENO": {"operator": "symmetric", "correction": "neutreno"},
    "elliptical": {"operator": "elliptical"},
    "token graying": {"token_graying": "dct"},
}


def classify(
    data: str = "digits",
    *,
    rows: Iterable[str] | Mapping[str, Mapping[str, Any]] | None = None,
    seeds: int = 5,
    steps: int | None = None,
    recipe: Mapping[str, Any] | None = None,
    attack: bool = False,
    corruptions: bool = False,
    against: str | None = None,
    n_jobs: int = 1,
    data_home: str | None = None,
    directory: Path,
    progress: Progress | None = None,
) -> pd.DataFrame:
    """Train rows of networks with paired seeds, and measure them.

    Learning rate, length and scale of positions of each row are those of its data set's candidates
    that do best on the validation images, with the first seed; then all seeds are run. Test images
    choose nothing.

    Parameters
    ----------
    data : str, default="digits"
        As in `load_splits`.
    rows : iterable of str, or mapping, optional
        Names of `ROWS`, or settings of your own, ``ViT:operator=NAME,residual=boosting``, as
        `Classifier` takes; or such settings by names of yours. The plain row is added, and is the
        first. None is all of `ROWS`.
    seeds : int, default=5
        Their number, from 0. A seed decides the first weights, wherever a row has them in common
        with the plain one, and the batches.
    steps : int, optional
        In place of the candidates' own.
    recipe : mapping, optional
        Settings in place of the data set's own, as in `settings_of`.
    attack, corruptions : bool, default=False
        Also measure accuracy on attacked and corrupted test images.
    against : str, optional
        The row that all others are compared with. By default each is compared with its own
        backbone, as in `backbone_of`, and a backbone with the plain row. It is added.
    n_jobs : int, default=1
    data_home : str, optional
    directory : Path
        Keeps runs that were finished or interrupted.
    progress : callable, optional

    Returns
    -------
    DataFrame
        A row for each network and seed; ``against`` is the row that it is compared with, None for
        that of all others; accuracies in percent; ``inference`` and ``training`` are
        ratios of throughput to the plain row; ``wrong`` has the places of the test images that are
        wrong, as they are and by attack and corruption.

    Raises
    ------
    ValueError
        If data, a row or a setting are unknown.
    """
    given, baselines = add_baselines(rows_with_plain(rows or ROWS), against)
    splits, settings = load_splits(data, data_home), settings_of(data, recipe)
    for options in given.values():
        build(splits, settings, options, seed=0)
    shared: Job = {
        "data": data, "data_home": data_home, "directory": str(directory), "settings": settings,
    }  # fmt: skip
    candidates = settings["candidates"]
    if steps is not None:
        candidates = [each | {"n_steps": steps} for each in candidates]
        candidates = [each for i, each in enumerate(candidates) if each not in candidates[:i]]

    def run(jobs: list[Job]) -> pd.DataFrame:
        options = Options(0, seeds, n_jobs, data_home, directory, progress)
        return run_jobs(_train_and_measure, jobs, options, content=contents(splits))

    first = run(
        [
            shared
            | {"row": row, "options": options, "candidate": candidate, "seed": 0, "measures": []}
            for row, options in given.items()
            for candidate in candidates
        ]
    )
    best = first.sort_values("validation", ascending=False, kind="stable").drop_duplicates("row")
    chosen = best.set_index("row")[list(candidates[0])].to_dict("index")
    asked = ["test", *(["attack"] if attack else []), *(["corruptions"] if corruptions else [])]
    table = run(
        [
            shared
            | {"row": row, "options": options, "candidate": chosen[row]}
            | {"seed": seed, "measures": asked}
            for row, options in given.items()
            for seed in range(seeds)
        ]
    )
    table.insert(1, "against", table.row.map(baselines))
    return table


def settings_of(data: str, recipe: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Sizes and recipe of a data set: those of pictures, what it has of its own, and what is given.

    Raises
    ------
    ValueError
        If a setting is unknown or of another type, or shares are none.
    """
    known = _PICTURES | _OF_DATA.get(data, _OF_DATA.get(data.partition(":")[0], {}))
    for name, value in (recipe or {}).items():
        if name not in known or name == "candidates":
            raise ValueError(f"recipe: there is no setting {name!r}{close_names(name, known)}")
        if type(value) is not type(known[name]) and type(value) is not int:
            raise ValueError(f"recipe: {name} is {known[name]!r} by default, got {value!r}")
    settings: dict[str, Any] = known | dict(recipe or {})
    erasing, mixup, cutmix = (settings[name] for name in ("erasing", "mixup", "cutmix"))
    if min(erasing, mixup, cutmix) < 0 or max(erasing, mixup + cutmix) > 1:
        raise ValueError("recipe: erasing, and mixup and cutmix together, are shares from 0 to 1")
    return settings


def rows_with_plain(
    rows: Iterable[str] | Mapping[str, Mapping[str, Any]],
) -> dict[str, dict[str, Any]]:
    """Options of the plain row, and of the others by their names."""
    known = rows if isinstance(rows, Mapping) else {name: row_options(name) for name in rows}
    return {PLAIN: {}} | {name: dict(options) for name, options in known.items()}


def add_baselines(
    rows: Mapping[str, dict[str, Any]], against: str | None = None
) -> tuple[dict[str, dict[str, Any]], dict[str, str | None]]:
    """The plain row, baselines that are no rows yet, and the rows; and the baseline of each.

    Raises
    ------
    ValueError
        If `against` is no row.
    """
    baselines: dict[str, str | None] = {PLAIN: None}
    added = {PLAIN: rows[PLAIN]}
    if against is not None:
        added[against] = row_options(against)
    for name, options in rows.items():
        backbone = backbone_of(options)
        known = {n: o for n, o in (*rows.items(), *ROWS.items()) if o == backbone}
        own = PLAIN if backbone == options else next(iter(known), write_row(backbone))
        if against is None and name != PLAIN:
            added |= {own: backbone}
            baselines[name] = own
    found = {n: o for n, o in added.items() if n == PLAIN or n not in rows} | dict(rows)
    if against is not None:
        baselines = {name: against for name in found if name != against} | {against: None}
    return found, {name: baselines.get(name, PLAIN) for name in found}


def backbone_of(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options of a row without the parts that it exchanges: corrections, residuals, scales, skips.

    So is its operator, unless a correction stands on it: the backbone of "symmetric + NeuTRENO" is
    "symmetric", and that of "symmetric" the plain row.
    """
    exchanged = _EXCHANGED if "correction" in options else {*_EXCHANGED, "operator"}
    return {name: value for name, value in options.items() if name not in exchanged}


def write_row(options: Mapping[str, Any]) -> str:
    """A row as a user writes it."""
    others = [f"{name}={value}" for name, value in options.items() if name != "architecture"]
    return ":".join(filter(None, [options.get("architecture", "ViT"), ",".join(others)]))


def row_options(name: str) -> dict[str, Any]:
    """Options of a row by its name, or as a user writes them.

    Raises
    ------
    ValueError
        If there is no such row.
    """
    if name in ROWS:
        return ROWS[name]
    head, colon, _ = name.partition(":")
    if not colon and head not in ARCHITECTURES:
        raise ValueError(
            f"row: must be ARCHITECTURE:NAME=VALUE,... or among {', '.join(ROWS)}; got {name!r}"
            f"{close_names(name, ROWS)}"
        )
    architecture = {} if head == "ViT" else {"architecture": head}
    return {**architecture, **split_settings(name, "row")[1]}


def build(
    splits: Splits, settings: Mapping[str, Any], options: Mapping[str, Any], seed: int
) -> Classifier:
    """The network of a row, as its training starts."""
    levels = splits.train.levels
    mean, std = (
        [float(x) for x in values]
        for values in (levels.mean(dim=(0, 2, 3)), levels.std(dim=(0, 2, 3)))
    )
    sizes = _choose_sizes(splits, settings, options.get("architecture", "ViT"))
    # The plain network's weights are the row's, so that both start with positions of one scale.
    plain = sizes | {name: options[name] for name in ("position_scale",) if name in options}
    return paired_classifier(sizes | dict(options), plain, seed, mean=mean, std=std)


def _choose_sizes(splits: Splits, settings: Mapping[str, Any], architecture: str) -> dict[str, Any]:
    _, channels, height, width = splits.train.levels.shape
    common = {
        "architecture": architecture, "in_channels": channels, "num_classes": len(splits.classes),
        **{name: settings[name] for name in ("patch_size", "dim", "depth")},
    }  # fmt: skip
    if architecture == "ConvMixer":
        return common | {"kernel_size": 3}
    if architecture == "SelfExpression":
        return common | {"num_heads": settings["num_heads"], "image_size": [height, width]}
    of_blocks = {name: settings[name] for name in ("num_heads", "mlp_ratio", "drop_path")}
    common |= of_blocks | {"image_size": [height, width]}
    if architecture == "Swin":
        depth, heads = common.pop("depth"), common.pop("num_heads")
        stages = {"depths": [depth // 2, depth - depth // 2], "num_heads": [heads, 2 * heads]}
        return common | stages
    return common | ({"pool": "mean"} if architecture == "ViT" else {})


def placed(options: Mapping[str, Any], candidate: Mapping[str, Any]) -> dict[str, Any]:
    """Options with the candidate's scale of positions, which a ConvMixer has not."""
    if options.get("architecture") == "ConvMixer":
        return dict(options)
    return {"position_scale": candidate["position_scale"], **options}


def recipe_of(settings: Mapping[str, Any], candidate: Mapping[str, Any], seed: int) -> Recipe:
    """How a network of a data set is trained."""
    same = ("batch_size", "weight_decay", "warm_up", "ema_decay", "precision")
    own = {name: settings[name] for name in same}
    own |= {name: candidate[name] for name in ("n_steps", "learning_rate")}
    every = max(100, own["n_steps"] // 10)
    return Recipe(seed=seed, checkpoint_every=every, validate_every=every, **own)


def trained_network(
    data: str, data_home: str | None, directory: str, settings: dict[str, Any],
    options: dict[str, Any], candidate: dict[str, Any], seed: int,
) -> tuple[Classifier, Splits]:  # fmt: skip
    """Train one network, or take it from its folder; with the images of its data set."""
    splits = load_splits(data, data_home)
    model = build(splits, settings, placed(options, candidate), seed)
    recipe = recipe_of(settings, candidate, seed)
    task = {"data": data, "candidate": candidate}
    kept = train_kept(model, splits, settings, recipe, task, directory, options=options)
    return kept, splits


def contents(splits: Splits) -> dict[str, str | None]:
    """What decides results beside the package and settings: images, and users' operators."""
    return {"images": splits.content, **operator_sources()}


def train_kept(
    model: Classifier, splits: Splits, settings: Mapping[str, Any], recipe: Recipe,
    task: Mapping[str, Any], directory: str, first_step: int = 0,
    options: Mapping[str, Any] | None = None,
) -> Classifier:  # fmt: skip
    """Train a network, or take it from the folder that its options, task and recipe name.

    Its batches are those from `first_step` on. The folder's name begins with the row's options.
    """
    of_batches = {name: settings[name] for name in ("shift", "flip")}
    of_mixing = {name: settings[name] for name in ("erasing", "mixup", "cutmix")}
    task = {**task, **of_batches, **of_mixing, "label_smoothing": settings["label_smoothing"]}
    made = augment(
        ClassBatches(splits.train, batch_size=recipe.batch_size, **of_batches),
        n_classes=len(splits.classes), **of_mixing,
    )  # fmt: skip
    parts = [model.options, task, asdict(recipe), settings, code(), contents(splits)]
    key = json.dumps(parts, sort_keys=True)
    words = [write_row(options or {}), f"{recipe.n_steps} steps", f"seed {recipe.seed}"]
    name = re.sub(r"[^\w.=]+", "-", " ".join(words))[:_LONGEST]
    folder = Path(directory) / "networks" / f"{name}-{hashlib.sha256(key.encode()).hexdigest()[:8]}"
    trained: Any = train(
        model, lambda seed, step, samples: made(seed, first_step + step, samples),
        cross_entropy(settings["label_smoothing"]), recipe, directory=folder,
        validate=lambda own: {"top1": accuracies(own, splits.validation)["top1"]}, task=task,
    )  # fmt: skip
    return trained


def _train_and_measure(
    data: str, data_home: str | None, directory: str, settings: dict[str, Any], row: str,
    options: dict[str, Any], candidate: dict[str, Any], seed: int, measures: Sequence[str],
) -> list[dict[str, Any]]:  # fmt: skip
    """Train one network and measure it."""
    trained, splits = trained_network(
        data, data_home, directory, settings, options, candidate, seed
    )
    found: dict[str, Any] = {
        "row": row, "data": data, "seed": seed, **candidate,
        "validation": accuracies(trained, splits.validation)["top1"],
    }  # fmt: skip
    if measures:
        found |= _measure(trained, splits, settings, measures)
    return [found]


def _measure(
    trained: Any, splits: Splits, settings: Mapping[str, Any], measures: Sequence[str]
) -> dict[str, Any]:
    plain = build(splits, settings, {}, 0).eval()
    found: dict[str, Any] = accuracies(trained, splits.test)
    found |= size_measures(trained, splits.test) | speed_ratios(trained, plain, splits.test)
    found |= depth_measures(trained, splits.test)
    found |= {"n_test": len(splits.test), "wrong": {CLEAN: wrong(trained, splits.test)}}
    if "attack" in measures:
        found["wrong"] |= wrong_attacked(trained, splits.test)
    if "corruptions" in measures:
        found["wrong"] |= wrong_corrupted(trained, splits.test)
    return found
