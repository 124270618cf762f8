"""Rows of networks x seeds on one data set, whatever the task: one table."""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from .jobs import Job, Options, code, run_jobs
from .names import close_names, split_settings
from .run_folder import find_object, read_metrics
from .timing import Progress
from .training import Batches, Loss, Recipe, find_device, operator_sources, train

PLAIN = "softmax"
_LONGEST = 100  # characters of what a run's folder says of its row
_EXCHANGED = {
    "attention_skip", "correction", "experts", "feed_forward_residual", "feed_forward_skip",
    "identity", "residual", "scale", "skip", "token_graying",
}  # fmt: skip
Rows = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Task:
    """What the networks of a study do: their data, parts, training and measures.

    Attributes
    ----------
    name : str
        Where a job finds the task, ``package.module:NAME``.
    rows : dict
        Options of networks by the names of their rows.
    architectures : mapping
        By name; the first is the plain row's.
    load_splits : callable
        ``load_splits(data, data_home)`` gives data in three parts, with a hash as ``content``.
    settings_of : callable
        ``settings_of(data, recipe)`` gives sizes, recipe and ``candidates`` of a data set.
    build : callable
        ``build(splits, settings, options, seed)`` gives the network of a row, as it starts.
    make_batches, make_loss : callable
        ``make_batches(splits, settings)`` and ``make_loss(settings)`` give what `train` takes.
    validate : callable
        ``validate(model, splits)`` gives one score by its name; higher is better.
    measure : callable
        ``measure(model, splits, settings, measures)`` gives what the test part says.
    """

    name: str
    rows: dict[str, dict[str, Any]]
    architectures: Mapping[str, Any]
    load_splits: Callable[..., Any]
    settings_of: Callable[..., dict[str, Any]]
    build: Callable[..., Any]
    make_batches: Callable[[Any, Mapping[str, Any]], Batches]
    make_loss: Callable[[Mapping[str, Any]], Loss]
    validate: Callable[[Any, Any], dict[str, float]]
    measure: Callable[..., dict[str, Any]]


def run_study(
    task: Task,
    data: str,
    *,
    rows: Iterable[str] | Rows | None = None,
    seeds: int = 5,
    steps: int | None = None,
    recipe: Mapping[str, Any] | None = None,
    measures: Sequence[str] = (),
    against: str | None = None,
    n_jobs: int = 1,
    data_home: str | None = None,
    device: str = "cpu",
    directory: Path,
    progress: Progress | None = None,
) -> pd.DataFrame:
    """Train rows of networks with paired seeds, and measure them.

    Learning rate, length and whatever else the candidates of a data set differ in are, for each
    row, those of the candidate that does best on the validation part, with the first seed; then all
    seeds are run. The test part chooses nothing.

    Parameters
    ----------
    task : Task
    data : str
        As `task.load_splits` takes it.
    rows : iterable of str, or mapping, optional
        Names of `task.rows`, or settings of your own, ``ViT:operator=NAME,residual=boosting``; or
        such settings by names of yours. The plain row is added, and is the first. None is all of
        `task.rows`.
    seeds : int, default=5
        Their number, from 0. A seed decides the first weights, wherever a row has them in common
        with the plain one, and the batches.
    steps : int, optional
        In place of the candidates' own.
    recipe : mapping, optional
        Settings in place of the data set's own.
    measures : sequence of str
        What `task.measure` is asked for beside what it always measures.
    against : str, optional
        The row that all others are compared with. By default each is compared with its own
        backbone, as in `backbone_of`, and a backbone with the plain row. It is added.
    n_jobs : int, default=1
    data_home : str, optional
    device : str, default="cpu"
        Where networks are trained and choose their candidate; the test part measures them on the
        CPU.
    directory : Path
        Keeps runs that were finished or interrupted.
    progress : callable, optional

    Returns
    -------
    DataFrame
        A row for each network and seed; ``against`` is the row that it is compared with, None for
        that of all others; ``curve`` has pairs of a step and the score on the validation part.

    Raises
    ------
    ValueError
        If data, a row or a setting are unknown, or the device is not there.
    """
    find_device(device)
    given, baselines = add_baselines(task, rows_with_plain(task, rows or task.rows), against)
    splits, settings = task.load_splits(data, data_home), task.settings_of(data, recipe)
    for options in given.values():
        task.build(splits, settings, options, seed=0)
    shared: Job = {
        "task": task.name, "data": data, "data_home": data_home, "directory": str(directory),
        "settings": settings, "device": device,
    }  # fmt: skip
    candidates = settings["candidates"]
    if steps is not None:
        candidates = [each | {"n_steps": steps} for each in candidates]
        candidates = [each for i, each in enumerate(candidates) if each not in candidates[:i]]

    def run(jobs: list[Job]) -> pd.DataFrame:
        options = Options(0, seeds, n_jobs, data_home, directory, progress)
        return run_jobs(train_and_measure, jobs, options, content=contents(splits))

    first = run(
        [
            shared
            | {"row": row, "options": options, "candidate": candidate, "seed": 0, "measures": None}
            for row, options in given.items()
            for candidate in candidates
        ]
    )
    best = first.sort_values("validation", ascending=False, kind="stable").drop_duplicates("row")
    chosen = best.set_index("row")[list(candidates[0])].to_dict("index")
    table = run(
        [
            shared
            | {"row": row, "options": options, "candidate": chosen[row]}
            | {"seed": seed, "measures": list(measures)}
            for row, options in given.items()
            for seed in range(seeds)
        ]
    )
    table.insert(1, "against", table.row.map(baselines))
    return table


def change_settings(
    known: Mapping[str, Any], recipe: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Settings of a data set, with what is given in place of its own.

    Raises
    ------
    ValueError
        If a setting is unknown or of another type.
    """
    for name, value in (recipe or {}).items():
        if name not in known or name == "candidates":
            raise ValueError(f"recipe: there is no setting {name!r}{close_names(name, known)}")
        if type(value) is not type(known[name]) and type(value) is not int:
            raise ValueError(f"recipe: {name} is {known[name]!r} by default, got {value!r}")
    return {**known, **(recipe or {})}


def rows_with_plain(task: Task, rows: Iterable[str] | Rows) -> dict[str, dict[str, Any]]:
    """Options of the plain row, and of the others by their names."""
    known = rows if isinstance(rows, Mapping) else {name: row_options(task, name) for name in rows}
    return {PLAIN: {}} | {name: dict(options) for name, options in known.items()}


def add_baselines(
    task: Task, rows: Mapping[str, dict[str, Any]], against: str | None = None
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
        added[against] = row_options(task, against)
    for name, options in rows.items():
        backbone = backbone_of(options)
        known = {n: o for n, o in (*rows.items(), *task.rows.items()) if o == backbone}
        own = PLAIN if backbone == options else next(iter(known), write_row(task, backbone))
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


def write_row(task: Task, options: Mapping[str, Any]) -> str:
    """A row as a user writes it."""
    others = [f"{name}={value}" for name, value in options.items() if name != "architecture"]
    architecture = options.get("architecture", next(iter(task.architectures)))
    return ":".join(filter(None, [architecture, ",".join(others)]))


def row_options(task: Task, name: str) -> dict[str, Any]:
    """Options of a row by its name, or as a user writes them.

    Raises
    ------
    ValueError
        If there is no such row.
    """
    known = task.rows
    if name in known:
        return known[name]
    head, colon, _ = name.partition(":")
    if not colon and head not in task.architectures:
        raise ValueError(
            f"row: must be ARCHITECTURE:NAME=VALUE,... or among {', '.join(known)}; got {name!r}"
            f"{close_names(name, known)}"
        )
    architecture = {} if head == next(iter(task.architectures)) else {"architecture": head}
    return {**architecture, **split_settings(name, "row")[1]}


def placed(options: Mapping[str, Any], candidate: Mapping[str, Any]) -> dict[str, Any]:
    """Options with what a candidate says of the network, such as the scale of its positions."""
    of_network = {n: x for n, x in candidate.items() if n not in ("n_steps", "learning_rate")}
    return {**of_network, **options}


def recipe_of(settings: Mapping[str, Any], candidate: Mapping[str, Any], seed: int) -> Recipe:
    """How a network of a data set is trained."""
    same = ("batch_size", "weight_decay", "warm_up", "ema_decay", "precision")
    own = {name: settings[name] for name in same}
    own |= {name: candidate[name] for name in ("n_steps", "learning_rate")}
    every = max(100, own["n_steps"] // 10)
    return Recipe(seed=seed, checkpoint_every=every, validate_every=every, **own)


def trained_network(
    task: Task, data: str, data_home: str | None, directory: str, settings: dict[str, Any],
    options: dict[str, Any], candidate: dict[str, Any], seed: int, device: str = "cpu",
) -> tuple[Any, Any, Path]:  # fmt: skip
    """Train one network, or take it from its folder; with its data, and the folder."""
    splits = task.load_splits(data, data_home)
    model = task.build(splits, settings, placed(options, candidate), seed).to(device)
    recipe = recipe_of(settings, candidate, seed)
    notes = {"data": data, "candidate": candidate}
    kept, folder = train_kept(
        task, model, splits, settings, recipe, notes, directory, options=options
    )
    return kept, splits, folder


def contents(splits: Any) -> dict[str, str | None]:
    """What decides results beside the package and settings: data, and users' operators."""
    return {"data": splits.content, **operator_sources()}


def train_kept(
    task: Task, model: Any, splits: Any, settings: Mapping[str, Any], recipe: Recipe,
    notes: Mapping[str, Any], directory: str, first_step: int = 0,
    options: Mapping[str, Any] | None = None,
) -> tuple[Any, Path]:  # fmt: skip
    """Train a network, or take it from the folder that its options, notes and recipe name.

    Returns the network and the folder, whose name begins with the row's options. Batches are those
    from `first_step` on.
    """
    notes = {**notes, "settings": {n: x for n, x in settings.items() if n != "candidates"}}
    made = task.make_batches(splits, settings)
    key = json.dumps(
        [model.options, notes, asdict(recipe), code(), contents(splits)], sort_keys=True
    )
    words = [write_row(task, options or {}), f"{recipe.n_steps} steps", f"seed {recipe.seed}"]
    name = re.sub(r"[^\w.=]+", "-", " ".join(words))[:_LONGEST]
    folder = Path(directory) / "networks" / f"{name}-{hashlib.sha256(key.encode()).hexdigest()[:8]}"
    trained = train(
        model, lambda seed, step, samples: made(seed, first_step + step, samples),
        task.make_loss(settings), recipe, directory=folder,
        validate=lambda own: task.validate(own, splits), task=notes,
    )  # fmt: skip
    return trained, folder


def train_and_measure(
    task: str, data: str, data_home: str | None, directory: str, settings: dict[str, Any],
    row: str, options: dict[str, Any], candidate: dict[str, Any], seed: int,
    measures: Sequence[str] | None, device: str,
) -> list[dict[str, Any]]:  # fmt: skip
    """Train one network and measure it; without `measures` on the validation part alone."""
    own: Task = find_object(task, "task: none is named")
    trained, splits, folder = trained_network(
        own, data, data_home, directory, settings, options, candidate, seed, device
    )
    ((name, score),) = own.validate(trained, splits).items()
    found = {"row": row, "data": data, "seed": seed, **candidate, "validation": score}
    if measures is not None:
        found |= own.measure(trained.cpu(), splits, settings, measures)
        found["curve"] = [[x["step"], x[name]] for x in read_metrics(folder)]
    return [found]
