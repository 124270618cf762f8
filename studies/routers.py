"""Routers of sparse mixtures of experts beside clusterings of the same tokens.

``python studies/routers.py`` trains them as ``twinsolve classify`` does.
"""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from itertools import combinations, product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator
from shared.script import run_script
from sklearn.cluster import KMeans
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score
from sklearn.model_selection import GroupKFold, cross_val_predict

from twinsolve.bench.figures import panels, plain, save
from twinsolve.bench.jobs import Options, run_jobs
from twinsolve.bench.paired import (
    COMPARED,
    Paired,
    judge,
    note_on_verdicts,
    paired_difference,
)
from twinsolve.bench.paired_training import contents, placed, trained_network
from twinsolve.bench.parts import tokens_of_experts
from twinsolve.bench.tables import Lines, Results, number, write_table
from twinsolve.bench.task import PLAIN, rows_with_plain
from twinsolve.bench.terminal import progress
from twinsolve.bench.timing import Progress
from twinsolve.bench.vision.classification.data import Images, load_splits
from twinsolve.bench.vision.classification.networks import Classifier
from twinsolve.bench.vision.classification.report import images_study
from twinsolve.bench.vision.classification.study import IMAGES, build, classify, settings_of
from twinsolve.solvers import KSubspaces, SparseSubspaceClustering, clustering_accuracy
from twinsolve.solvers.clustering import unit_rows
from twinsolve.solvers.inputs import Array
from twinsolve.unrolled import SparseMixtureOfExperts
from twinsolve.unrolled.models import VisionTransformer

ROWS = {"mixture of experts": {"experts": 8}}
DIMENSION = 4  # of the subspaces
_N_INIT = 20
_PENALTY = 100.0  # inverse, of the linear classifier

Partitions = dict[str, Array]


def clusterings(X: Array, n_clusters: int, seed: int) -> Partitions:
    """Labels by k-means, twice with different restarts, k-subspaces and SSC."""
    again = np.random.SeedSequence(seed).generate_state(1)[0]
    made: dict[str, Any] = {
        "k-means": KMeans(n_clusters, n_init=_N_INIT, random_state=seed),
        "k-means again": KMeans(n_clusters, n_init=_N_INIT, random_state=int(again)),
        "k-subspaces": KSubspaces(
            n_clusters, dimension=DIMENSION, n_init=_N_INIT, random_state=seed
        ),
        "SSC": SparseSubspaceClustering(n_clusters, random_state=seed),
    }
    return {name: model.fit(X).labels_ for name, model in made.items()}


def agreements(partitions: Partitions) -> list[dict[str, Any]]:
    """How alike each two partitions are: NMI, ARI, and accuracy by the best one-to-one match."""
    return [
        {
            "kind": "agreement", "first": one, "second": other,
            "nmi": normalized_mutual_info_score(partitions[one], partitions[other]),
            "ari": adjusted_rand_score(partitions[one], partitions[other]),
            "accuracy": clustering_accuracy(partitions[one], partitions[other]),
        }
        for one, other in combinations(partitions, 2)
    ]  # fmt: skip


def partition_numbers(X: Array, labels: Array, images: Array) -> dict[str, float]:
    """What one partition leaves of the tokens, how even it is, and whether a router can tell it.

    Of tokens x, with means m and subspaces B of dimension 4 fitted to each cluster ::

        centre_residual   = sum |x - m|^2 / sum |x - mean of all|^2
        subspace_residual = sum |x - x B^T B|^2 / sum |x|^2

    ``used`` is the exponential of the entropy of the clusters' shares, and ``largest`` the largest
    share. ``linear_nmi`` is the NMI with what a linear classifier without intercept, as a router
    is, says of tokens of images that it was not fitted to.
    """
    shares = np.unique(labels, return_counts=True)[1] / len(labels)
    clusters = [X[labels == label] for label in np.unique(labels)]
    centred = sum(float(((own - own.mean(axis=0)) ** 2).sum()) for own in clusters)
    left = sum(
        float((np.linalg.svd(own, compute_uv=False)[DIMENSION:] ** 2).sum()) for own in clusters
    )
    return {
        "centre_residual": centred / float(((X - X.mean(axis=0)) ** 2).sum()),
        "subspace_residual": left / float((X**2).sum()),
        "used": float(np.exp(-(shares * np.log(shares)).sum())),
        "largest": float(shares.max()),
        "linear_nmi": _measure_linear_nmi(X, labels, images),
    }


def _measure_linear_nmi(X: Array, labels: Array, images: Array) -> float:
    """NaN where too few clusters are used to fit to."""
    model = LogisticRegression(C=_PENALTY, fit_intercept=False, max_iter=1000)
    halves = list(GroupKFold(2).split(X, groups=images))
    if any(len(np.unique(labels[fitted])) < 2 for fitted, _ in halves):
        return float("nan")
    said = cross_val_predict(model, X * np.sqrt(X.shape[1]), labels, cv=halves)
    return float(normalized_mutual_info_score(labels, said))


CLUSTERINGS = ("k-means", "k-subspaces", "SSC")
CONTROLS = ("class", "position")
_PAIRS = [
    *product(("router", "router at start", "router, shuffled"), (*CLUSTERINGS, *CONTROLS)),
    ("k-means", "k-means again"), ("k-means", "k-subspaces"), ("k-means", "SSC"),
    ("k-subspaces", "SSC"), *product(CLUSTERINGS, CONTROLS),
]  # fmt: skip
_PROBLEMS = {"centre": "k-means", "subspace": "k-subspaces"}  # who solves which, up to local optima
_PERCENT = 100


def agreement(table: pd.DataFrame, first: str, second: str, column: str = "nmi") -> pd.DataFrame:
    """Of two partitions, in percent; layers are rows and seeds columns."""
    own = table[(table["first"] == first) & (table["second"] == second)]
    return _PERCENT * own.pivot(index="layer", columns="seed", values=column)


def residual(table: pd.DataFrame, partition: str, column: str) -> pd.DataFrame:
    """A number of one partition; layers are rows and seeds columns."""
    own = table[(table["kind"] == "partition") & (table["first"] == partition)]
    return own.pivot(index="layer", columns="seed", values=column)


def attained(table: pd.DataFrame, partition: str, problem: str) -> pd.DataFrame:
    """How much of what its solver gains over shuffled labels a partition gains, in percent.

    Problems are "centre" and "subspace", by what is left of the tokens; layers are rows and seeds
    columns.
    """
    column = f"{problem}_residual"
    best, chance, own = (
        residual(table, name, column)
        for name in (_PROBLEMS[problem], "router, shuffled", partition)
    )
    return _PERCENT * (chance - own) / (chance - best)


def router_parts(table: pd.DataFrame) -> dict[str, Lines]:
    """Headings and cells of each table, by its title; means over seeds, and over layers."""
    found = {}
    for row, own in table.groupby("row", sort=False):
        found[f"{row}: agreement of partitions, %"] = _agreement_lines(own)
        found[f"{row}: by layer, NMI in %"] = _layer_lines(own)
        found[f"{row}: what partitions leave"] = _residual_lines(own)
        found[f"{row}: differences"] = _difference_lines(own)
    return found


def _agreement_lines(table: pd.DataFrame) -> Lines:
    lines = []
    for first, second in _PAIRS:
        cells = [
            number(agreement(table, first, second, column).to_numpy().mean(), ".1f")
            for column in ("nmi", "ari", "accuracy")
        ]
        lines.append((first, second, *cells))
    return ("partition", "with", "NMI", "ARI", "accuracy"), lines


def router_differences(table: pd.DataFrame) -> dict[tuple[str, str], Paired]:
    """What is compared of one row, over paired seeds: the mean over layers, or a layer.

    The router at start is the null: what random linear scores agree with, and attain.
    """
    now, start = "router", "router at start"
    found = {
        (f"NMI with {name}", f"{now} over {start}"): [
            agreement(table, x, name) for x in (now, start)
        ]
        for name in CLUSTERINGS + CONTROLS
    }
    for who in (now, start):
        one, *others = (agreement(table, who, name) for name in CLUSTERINGS)
        for name, other in zip(CLUSTERINGS[1:], others, strict=True):
            found[f"NMI of {who}", f"with {CLUSTERINGS[0]} over {name}"] = [one, other]
        gains = [attained(table, who, problem) for problem in _PROBLEMS]
        found[f"gain of {who}", " over ".join(_PROBLEMS.values())] = gains
    for problem, name in _PROBLEMS.items():
        gains = [attained(table, who, problem) for who in (now, start)]
        found[f"gain of {name}", f"{now} over {start}"] = gains
    layers = [agreement(table, who, CLUSTERINGS[0]) for who in (now, start)]
    apart = {name: paired_difference(*(x.mean() for x in both)) for name, both in found.items()}
    for layer in layers[0].index:
        what = f"NMI with {CLUSTERINGS[0]}, layer {layer}"
        apart[what, f"{now} over {start}"] = paired_difference(*(x.loc[layer] for x in layers))
    return apart


def _difference_lines(table: pd.DataFrame) -> Lines:
    verdicts = judge(router_differences(table))
    lines = [(*names, *verdict.cells) for names, verdict in verdicts.items()]
    return ("what, %", "of what", *COMPARED), lines


def _layer_lines(table: pd.DataFrame) -> Lines:
    columns = {f"with {name}": agreement(table, "router", name) for name in CLUSTERINGS + CONTROLS}
    columns |= {
        "at start, with k-means": agreement(table, "router at start", "k-means"),
        "k-means, with itself again": agreement(table, "k-means", "k-means again"),
        "k-means, with class": agreement(table, "k-means", "class"),
    }
    cells = {name: values.mean(axis=1) for name, values in columns.items()}
    used = residual(table, "router", "used").mean(axis=1)
    largest = _PERCENT * residual(table, "router", "largest").mean(axis=1)
    lines = [
        (
            str(layer), *(number(values[layer], ".1f") for values in cells.values()),
            number(used[layer], ".2f"), number(largest[layer], ".1f"),
        )
        for layer in used.index
    ]  # fmt: skip
    return ("layer", *cells, "experts used", "largest share, %"), lines


def _residual_lines(table: pd.DataFrame) -> Lines:
    head = (
        "partition", "centre residual", "subspace residual", "of k-means' gain, %",
        "of k-subspaces' gain, %", "clusters used", "largest share, %", "linear NMI, %",
    )  # fmt: skip
    lines = []
    for name in table[table["kind"] == "partition"]["first"].unique():

        def mean(column: str, name: str = name) -> float:
            return float(residual(table, name, column).to_numpy().mean())

        gains = [attained(table, name, problem).to_numpy().mean() for problem in _PROBLEMS]
        lines.append(
            (
                name, number(mean("centre_residual"), ".3f"),
                number(mean("subspace_residual"), ".3f"), *(number(x, ".0f") for x in gains),
                number(mean("used"), ".2f"), number(_PERCENT * mean("largest"), ".1f"),
                number(_PERCENT * mean("linear_nmi"), ".1f"),
            )
        )  # fmt: skip
    return head, lines


def router_remarks(table: pd.DataFrame) -> list[str]:
    """How to read the tables."""
    of_rows = [router_differences(own) for _, own in table.groupby("row", sort=False)]
    return [
        "Partitions are of tokens of test images as they enter the experts, scaled to unit norm, "
        "into as many clusters as there are experts; numbers are means over layers and seeds. A "
        "router's is its first choice. At start means the router's weights before training, on the "
        "trained network's tokens. Residuals are shares of the tokens' scatter about the mean, and "
        "of their squares for subspaces of dimension 4; a gain is counted from shuffled labels to "
        "the problem's own solver. Clusters used are the exponential of the entropy of shares. "
        "Linear NMI is that with what a linear classifier without intercept says of tokens of "
        "images that it was not fitted to.",
        note_on_verdicts(of_rows[0], of="seeds alone, on these images,"),
    ]


_COLOURS = {
    "k-means": "#0072B2", "k-subspaces": "#009E73", "SSC": "#D55E00", "class": "#CC79A7",
    "position": "#E69F00", "router": "black", "router at start": "#999999",
}  # fmt: skip  # of Okabe and Ito


def draw_routers(table: pd.DataFrame, directory: Path) -> None:
    """Draw routers.png: agreement, attained objectives and load; a line of panels for each row."""
    rows = list(table.row.unique())
    figure, axes = panels(3 * len(rows), (4.6, 4.7), columns=3)
    for place, row in enumerate(rows):
        own = table[table.row == row]
        alike, gained, load = axes[3 * place : 3 * place + 3]
        for name in ("k-means", "k-subspaces", "SSC", "class", "position"):
            _draw(alike, agreement(own, "router", name), f"router, {name}", _COLOURS[name])
        start = agreement(own, "router at start", "k-means")
        _draw(alike, start, "router at start, k-means", _COLOURS["router at start"], "--")
        again = agreement(own, "k-means", "k-means again")
        _draw(alike, again, "k-means, k-means again", _COLOURS["router at start"], ":")
        _label(alike, "NMI, %", f"{row}: agreement")
        for name in ("router", "router at start", "SSC"):
            for problem, style in (("centre", "-"), ("subspace", "--")):
                label = f"{name}, {'k-means' if problem == 'centre' else 'k-subspaces'}"
                _draw(gained, attained(own, name, problem), label, _COLOURS[name], style)
        _label(gained, "share of the solver's gain, %", "objectives attained")
        for name in ("router", "router at start", "k-means", "SSC"):
            _draw(load, residual(own, name, "used"), name, _COLOURS[name])
        _label(load, "clusters used, exp of entropy", "evenness")
        for each in (alike, gained, load):
            each.set_ylim(bottom=0)
    save(figure, directory / "routers.png")


def _draw(axes: Axes, values: pd.DataFrame, label: str, colour: str, style: str = "-") -> None:
    """The mean over seeds, and their range."""
    layers = values.index.to_numpy()
    axes.plot(layers, values.mean(axis=1), style, color=colour, label=label, marker="o", ms=3)
    axes.fill_between(layers, values.min(axis=1), values.max(axis=1), color=colour, alpha=0.15)


def _label(axes: Axes, what: str, title: str) -> None:
    axes.set_xlabel("layer (band: range of seeds)")
    axes.set_ylabel(what)
    axes.set_title(title, fontsize=10)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(
        fontsize=8, frameon=False, handlelength=3.2, ncols=2, loc="upper center",
        bbox_to_anchor=(0.5, -0.14),
    )  # fmt: skip
    plain(axes)


_N_TOKENS = 1536


def compare_routers(
    classified: pd.DataFrame,
    options: Mapping[str, Mapping[str, Any]],
    *,
    recipe: Mapping[str, Any] | None = None,
    n_jobs: int = 1,
    data_home: str | None = None,
    directory: Path,
    progress: Progress | None = None,
) -> pd.DataFrame:
    """Compare the first choices of routers with clusterings of the tokens that they are given.

    In every layer with experts of every network: tokens of the first test images, 1,536 in all and
    scaled to unit norm, which changes no choice of a router, are clustered into as many clusters as
    there are experts.

    Parameters
    ----------
    classified : DataFrame
        As `classify` returned it.
    options : mapping
        Of its rows.
    recipe, n_jobs, data_home, directory, progress
        As they were given to it.

    Returns
    -------
    DataFrame
        Rows of ``kind`` "agreement" have two partitions, with NMI, ARI and accuracy by the best
        match; those of ``kind`` "partition" have what one leaves and how even it is
        (`partition_numbers`). Partitions are "router"; "router at start", the same tokens by the
        weights that the router had before training; "router, shuffled", its labels in random order;
        the clusterings; and the controls "class" of the image and "position" of the patch.

    Raises
    ------
    ValueError
        If no row is a vision transformer with experts.
    """
    rows = rows_with_experts(options)
    settings = settings_of(classified.data[0], recipe)
    names = list(settings["candidates"][0])
    jobs = [
        {
            "data": run["data"], "data_home": data_home, "directory": str(directory),
            "settings": settings, "row": run["row"], "options": dict(options[run["row"]]),
            "candidate": {name: run[name] for name in names}, "seed": run["seed"],
        }
        for run in classified[classified.row.isin(rows)].to_dict(orient="records")
    ]  # fmt: skip
    splits = load_splits(classified.data[0], data_home)
    kept = Options(0, 1, n_jobs, data_home, directory, progress)
    return run_jobs(_run, jobs, kept, content=contents(splits))


def rows_with_experts(rows: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Those rows that are vision transformers with experts; a ValueError if there is none."""
    found = [
        row
        for row, options in rows.items()
        if options.get("experts") and options.get("architecture", "ViT") == "ViT"
    ]
    if not found:
        raise ValueError('routers: add a row that is a ViT with experts, as "ViT:experts=8"')
    return found


def _run(
    data: str, data_home: str | None, directory: str, settings: dict[str, Any], row: str,
    options: dict[str, Any], candidate: dict[str, Any], seed: int,
) -> list[dict[str, Any]]:  # fmt: skip
    model, splits, _ = trained_network(
        IMAGES, data, data_home, directory, settings, options, candidate, seed
    )
    start = build(splits, settings, placed(options, candidate), seed)
    of_network = {"row": row, "data": data, "seed": seed}
    return [
        {**of_network, "layer": number + 1, **numbers}
        for number, found in enumerate(routed(model, start, splits.test, seed))
        for numbers in found
    ]


def routed(
    model: Classifier, start: Classifier, images: Images, seed: int
) -> list[list[dict[str, Any]]]:
    """Rows of each layer with experts; `start` is the network before training."""
    assert isinstance(model.network, VisionTransformer)
    n_images = max(2, _N_TOKENS // int(np.prod(model.network.grid)))
    model = deepcopy(model).double().eval()
    with torch.no_grad(), tokens_of_experts(model) as seen:
        model(images.levels[:n_images].double())
    first = [part for part in start.double().modules() if isinstance(part, SparseMixtureOfExperts)]
    classes = images.target[:n_images].numpy()
    return [
        _rows(layer, before, tokens, classes, seed)
        for (layer, tokens), before in zip(seen, first, strict=True)
    ]


def _rows(
    layer: SparseMixtureOfExperts, before: SparseMixtureOfExperts, tokens: torch.Tensor,
    classes: np.ndarray, seed: int,
) -> list[dict[str, Any]]:  # fmt: skip
    n_images, n_tokens, dim = tokens.shape
    X = unit_rows(tokens.reshape(-1, dim).numpy())
    own = _choices(layer, tokens)
    partitions: Partitions = {
        "router": own,
        "router at start": _choices(before, tokens),
        "router, shuffled": np.random.default_rng(seed).permutation(own),
        **clusterings(X, layer.n_experts, seed),
    }
    controls = {
        "class": np.repeat(classes, n_tokens),
        "position": np.tile(np.arange(n_tokens), n_images),
    }
    of_image = np.repeat(np.arange(n_images), n_tokens)
    return agreements(partitions | controls) + [
        {"kind": "partition", "first": name, **partition_numbers(X, labels, of_image)}
        for name, labels in partitions.items()
    ]


@torch.no_grad()
def _choices(layer: SparseMixtureOfExperts, tokens: torch.Tensor) -> np.ndarray:
    """The expert of the largest gate, of all tokens."""
    return layer.route(tokens)[1][..., 0].flatten().numpy()


def compare_rows(results: Results, rows: Sequence[str] | None, **given: Any) -> None:
    """Train the rows, and write how their routers cluster."""
    options = rows_with_plain(IMAGES, rows or ROWS)
    rows_with_experts(options)  # before anything is trained
    table = classify(rows=options, against=PLAIN, **given)
    kept = {name: given[name] for name in ("recipe", "n_jobs", "data_home", "directory")}
    routed = compare_routers(table, options, progress=progress("Routers"), **kept)
    write_table(routed, results.directory, "routers.json")
    images_study(given["data"]).write(table, results)
    for title, lines in router_parts(routed).items():
        results.add_table(title, lines)
    results.add_sentences(router_remarks(routed))
    draw_routers(routed, results.directory)
    results.write(["routers"])


if __name__ == "__main__":
    run_script(__file__)
