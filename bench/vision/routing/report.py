"""What is said of routers beside clusterings of the same tokens."""

from itertools import product

import pandas as pd

from ...tables import Lines, number
from ..paired import COMPARED, Paired, judge, note_on_verdicts, paired_difference

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
