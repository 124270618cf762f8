"""Train networks that differ in one part, with the same seeds, on one data set: one table."""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd

from .devices import find_device
from .jobs import Job, Options, run_jobs
from .recipe import Recipe
from .run_folder import find_class, find_object, read_metrics
from .sources import code, source_of
from .task import Rows, Task, add_baselines, rows_with_plain, share, write_row
from .timing import Progress
from .training import Listener, StudyListener, operator_sources, train

_LONGEST = 100  # characters of the words in the name of a run's folder


def train_rows(
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
    device: str = "auto",
    directory: Path,
    progress: Progress | None = None,
    on_step: Listener | None = None,
    on_validation: Listener | None = None,
) -> pd.DataFrame:
    """Train rows of networks with paired seeds, and measure them.

    The candidates of a data set differ in learning rate, number of steps and so on. Each row takes
    the candidate that does best on the validation part with the first seed, and then runs all
    seeds with it. The test part chooses nothing.

    Parameters
    ----------
    task : Task
    data : str
        As `task.load_splits` takes it.
    rows : iterable of str, or mapping, optional
        Names of `task.rows`; or rows as a user writes them, ``ViT:operator=NAME``, or
        ``package.module:Class:NAME=VALUE`` where the task takes own networks; or a
        mapping from your own names to options. The plain row is added as the first. None is all
        of `task.rows`.
    seeds : int, default=5
        Number of seeds, counted from 0. A seed decides the batches, and the first weights wherever
        a row shares them with the plain row.
    steps : int, optional
        Training steps, in place of those of the candidates.
    recipe : mapping, optional
        Settings in place of those of the data set.
    measures : sequence of str
        Further measures that `task.measure` is asked for.
    against : str, optional
        The row that all others are compared with. By default each is compared with its own
        backbone, as in `backbone_of`, and a backbone with the plain row. It is added.
    n_jobs : int, default=1
    data_home : str, optional
    device : str, default="auto"
        Where networks are trained, validated and tested: "auto" is a GPU if there is one. They are
        timed on the CPU.
    directory : Path
        Folder that keeps finished and interrupted runs.
    progress : callable, optional
        ``progress(jobs, total)`` wraps the networks of two phases: those that choose settings, with
        the first seed, then those of all seeds.
    on_step, on_validation : callable, optional
        As of `train`; their dict also has ``row``, ``seed`` and ``steps_of_study``, the most steps
        that the whole study takes. With several processes they are called in these, and must be
        picklable.

    Returns
    -------
    DataFrame
        A line for each row and seed. ``against`` is the row that it is compared with, None for the
        baseline of all others; ``curve`` has pairs of a step and the score on the validation part;
        ``network`` is the folder below `directory` from which `load_model` reads the network.

    Raises
    ------
    ValueError
        If data, a row or a setting are unknown, or the device is not there.
    """
    device = str(find_device(device))
    given, baselines = add_baselines(task, rows_with_plain(task, rows or task.rows), against)
    splits, settings = task.load_splits(data, data_home), task.settings_of(data, recipe)
    for options in given.values():
        task.build(splits, settings, options, seed=0)
    shared: Job = {
        "task": task.name, "data": data, "data_home": data_home, "directory": str(directory),
        "settings": settings, "device": device,
    }  # fmt: skip
    candidates = share(settings["candidates"], {} if steps is None else {"n_steps": steps})
    known = contents(splits) | {row: x for row, own in given.items() if (x := network_source(own))}

    n_each = [each["n_steps"] for each in candidates]
    n_steps = len(given) * (sum(n_each) + (seeds - 1) * max(n_each))

    def run(jobs: list[Job]) -> pd.DataFrame:
        options = Options(0, seeds, n_jobs, data_home, directory, progress)
        about = {"steps_of_study": n_steps}
        heard = {"on_step": on_step, "on_validation": on_validation}
        listeners = {name: StudyListener(each, about) for name, each in heard.items() if each}
        return run_jobs(
            train_and_measure, jobs, options, content=known, modules=[task.module],
            listeners=listeners,
        )  # fmt: skip

    first = run(
        [
            shared
            | {"row": row, "options": options, "candidate": candidate, "seed": 0, "measures": None}
            for row, options in given.items()
            for candidate in candidates
        ],
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
        ],
    )
    table.insert(1, "against", table.row.map(baselines))
    return table


def placed(options: Mapping[str, Any], candidate: Mapping[str, Any]) -> dict[str, Any]:
    """Options of a network, with those that a candidate sets, such as the scale of positions."""
    of_network = {n: x for n, x in candidate.items() if n not in ("n_steps", "learning_rate")}
    return {**of_network, **options}


def recipe_of(settings: Mapping[str, Any], candidate: Mapping[str, Any], seed: int) -> Recipe:
    """The recipe of a network: settings of its data set, and its candidate."""
    same = ("batch_size", "weight_decay", "warm_up", "ema_decay", "precision")
    own = {name: settings[name] for name in same}
    own |= {name: candidate[name] for name in ("n_steps", "learning_rate")}
    every = max(100, own["n_steps"] // 10)
    return Recipe(seed=seed, checkpoint_every=every, validate_every=every, **own)


def trained_network(
    task: Task, data: str, data_home: str | None, directory: str, settings: dict[str, Any],
    options: dict[str, Any], candidate: dict[str, Any], seed: int, device: str = "cpu",
    on_step: Listener | None = None, on_validation: Listener | None = None,
) -> tuple[Any, Any, Path]:  # fmt: skip
    """Train one network or read it from its folder; return it with its data and the folder."""
    splits = task.load_splits(data, data_home)
    model = task.build(splits, settings, placed(options, candidate), seed).to(device)
    recipe = recipe_of(settings, candidate, seed)
    notes = {"data": data, "candidate": candidate, "device": device}
    kept, folder = train_kept(
        task, model, splits, settings, recipe, notes, directory, options=options,
        on_step=on_step, on_validation=on_validation,
    )  # fmt: skip
    return kept, splits, folder


def contents(splits: Any) -> dict[str, str | None]:
    """Hashes of the data and of users' operators, on which results depend."""
    return {"data": splits.content, **operator_sources()}


def network_source(options: Mapping[str, Any]) -> str | None:
    """Hash of the source of a row's own network; None if it is of the package."""
    architecture = str(options.get("architecture", ""))
    return source_of(find_class(architecture)) if ":" in architecture else None


def train_kept(
    task: Task, model: Any, splits: Any, settings: Mapping[str, Any], recipe: Recipe,
    notes: Mapping[str, Any], directory: str, first_step: int = 0,
    options: Mapping[str, Any] | None = None, on_step: Listener | None = None,
    on_validation: Listener | None = None,
) -> tuple[Any, Path]:  # fmt: skip
    """Train a network, or read it from the folder of its options, notes and recipe.

    Returns the network and the folder, whose name begins with the row. The first batch is that of
    step `first_step`.
    """
    notes = {**notes, "settings": {n: x for n, x in settings.items() if n != "candidates"}}
    made = task.make_batches(splits, settings)
    key = json.dumps(
        [
            model.options, notes, asdict(recipe), code(__name__, task.module), contents(splits),
            network_source(options or {}),
        ],
        sort_keys=True,
    )  # fmt: skip
    words = [write_row(task, options or {}), f"{recipe.n_steps} steps", f"seed {recipe.seed}"]
    name = re.sub(r"[^\w.=]+", "-", " ".join(words))[:_LONGEST]
    folder = Path(directory) / "networks" / f"{name}-{hashlib.sha256(key.encode()).hexdigest()[:8]}"
    trained = train(
        model, lambda seed, step, samples: made(seed, first_step + step, samples),
        task.make_loss(splits, settings), recipe, directory=folder,
        validate=lambda own: task.validate(own, splits), task=notes, on_step=on_step,
        on_validation=on_validation,
    )  # fmt: skip
    return trained, folder


def train_and_measure(
    task: str, data: str, data_home: str | None, directory: str, settings: dict[str, Any],
    row: str, options: dict[str, Any], candidate: dict[str, Any], seed: int,
    measures: Sequence[str] | None, device: str, on_step: StudyListener | None = None,
    on_validation: StudyListener | None = None,
) -> list[dict[str, Any]]:  # fmt: skip
    """Train one network and test it; without `measures`, only validate it."""
    own: Task = find_object(task, "task: none is named")
    told = (each and each.of(row=row, seed=seed) for each in (on_step, on_validation))
    trained, splits, folder = trained_network(
        own, data, data_home, directory, settings, options, candidate, seed, device, *told
    )
    ((name, score),) = own.validate(trained, splits).items()
    found = {"row": row, "data": data, "seed": seed, **candidate, "validation": score}
    if measures is not None:
        found |= own.measure(trained, splits, settings, measures)
        found["curve"] = [[x["step"], x[name]] for x in read_metrics(folder)]
        found["network"] = str(folder.relative_to(directory))
    return [found]
