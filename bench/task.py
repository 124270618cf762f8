"""A task of networks: its rows by name, as a user types them, their baselines and settings."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from .names import close_names, split_settings
from .training import Batches, Loss

PLAIN = "softmax"
_OWN = re.compile(r"([\w.]+:[A-Za-z_]\w*)(?::(.*))?")  # package.module:Class:NAME=VALUE,...
_EXCHANGED = {
    "attention_skip", "correction", "experts", "feed_forward_residual", "feed_forward_skip",
    "identity", "residual", "scale", "skip", "token_graying",
}  # fmt: skip
Rows = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Task:
    """A task of networks: how they get data, are built, trained and measured.

    Attributes
    ----------
    name : str
        Where a job finds the task, ``package.module:NAME``.
    rows : dict
        The options of each row's network, by the name of the row.
    architectures : mapping
        Classes of networks by name; the plain row has the first.
    load_splits : callable
        ``load_splits(data, data_home)`` returns the data in three parts, with a hash in the
        attribute ``content``.
    settings_of : callable
        ``settings_of(data, recipe)`` returns the sizes, recipe and ``candidates`` of a data set.
    build : callable
        ``build(splits, settings, options, seed)`` returns the untrained network of a row.
    make_batches, make_loss : callable
        ``make_batches(splits, settings)`` and ``make_loss(splits, settings)`` return the functions
        that `train` takes.
    validate : callable
        ``validate(model, splits)`` returns one score under its name; higher is better.
    measure : callable
        ``measure(model, splits, settings, measures)`` returns the results on the test part, of a
        model where it was trained.
    own_networks : bool, default=False
        Whether a row may be a user's class, ``package.module:Class``.
    """

    name: str
    rows: dict[str, dict[str, Any]]
    architectures: Mapping[str, Any]
    load_splits: Callable[..., Any]
    settings_of: Callable[..., dict[str, Any]]
    build: Callable[..., Any]
    make_batches: Callable[[Any, Mapping[str, Any]], Batches]
    make_loss: Callable[[Any, Mapping[str, Any]], Loss]
    validate: Callable[[Any, Any], dict[str, float]]
    measure: Callable[..., dict[str, Any]]
    own_networks: bool = False

    @property
    def module(self) -> str:
        """The module of the task."""
        return self.name.partition(":")[0]


def change_settings(
    known: Mapping[str, Any], recipe: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The settings of a data set, changed as the recipe says.

    What differs between the candidates, but for the number of steps, can be the same for all.

    Raises
    ------
    ValueError
        If a setting is unknown or of another type.
    """
    recipe, chosen = dict(recipe or {}), known["candidates"][0]
    defaults = {**known, **chosen}
    del defaults["candidates"], defaults["n_steps"]
    for name, value in recipe.items():
        if name not in defaults:
            raise ValueError(f"recipe: there is no setting {name!r}{close_names(name, defaults)}")
        if type(value) is not type(defaults[name]) and type(value) is not int:
            raise ValueError(
                f"recipe: {name} must be of the type of its default, {defaults[name]!r}; "
                f"got {value!r}"
            )
    same = {name: recipe.pop(name) for name in chosen if name in recipe}
    return {**known, **recipe, "candidates": share(known["candidates"], same)}


def share(
    candidates: Iterable[Mapping[str, Any]], settings: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """The candidates with these settings in common, each once."""
    found: list[dict[str, Any]] = []
    for each in ({**each, **settings} for each in candidates):
        if each not in found:
            found.append(each)
    return found


def rows_with_plain(task: Task, rows: Iterable[str] | Rows) -> dict[str, dict[str, Any]]:
    """The options of the plain row and of the given rows, by name."""
    known = rows if isinstance(rows, Mapping) else {name: row_options(task, name) for name in rows}
    return {PLAIN: {}} | {name: dict(options) for name, options in known.items()}


def add_baselines(
    task: Task, rows: Mapping[str, dict[str, Any]], against: str | None = None
) -> tuple[dict[str, dict[str, Any]], dict[str, str | None]]:
    """The plain row, missing baselines and the given rows, in this order; and each row's baseline.

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
    """The options of a row without its corrections, residuals, scales, skips and operator.

    The operator stays where a correction is based on it: the backbone of "symmetric + NeuTRENO" is
    "symmetric", and that of "symmetric" is the plain row.
    """
    exchanged = _EXCHANGED if "correction" in options else {*_EXCHANGED, "operator"}
    return {name: value for name, value in options.items() if name not in exchanged}


def write_row(task: Task, options: Mapping[str, Any]) -> str:
    """A row as a user writes it."""
    others = [f"{name}={value}" for name, value in options.items() if name != "architecture"]
    architecture = options.get("architecture", next(iter(task.architectures)))
    return ":".join(filter(None, [architecture, ",".join(others)]))


def row_options(task: Task, name: str) -> dict[str, Any]:
    """The options of a row, given by its name or as a user writes it.

    Raises
    ------
    ValueError
        If there is no such row.
    """
    known = task.rows
    if name in known:
        return known[name]
    head, colon, _ = name.partition(":")
    own = _OWN.fullmatch(name) if task.own_networks and head not in task.architectures else None
    if own:
        return {"architecture": own[1], **split_settings(f":{own[2] or ''}", "row")[1]}
    if not colon and head not in task.architectures:
        raise ValueError(
            "row: must be ARCHITECTURE:NAME=VALUE,..., "
            f"{'package.module:Class, ' if task.own_networks else ''}"
            f"or among {', '.join(known)}; got {name!r}{close_names(name, known)}"
        )
    architecture = {} if head == next(iter(task.architectures)) else {"architecture": head}
    return {**architecture, **split_settings(name, "row")[1]}
