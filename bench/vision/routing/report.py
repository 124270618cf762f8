"""What is said of routers beside clusterings of the same tokens."""

from itertools import product

import pandas as pd

from ...tables import Lines, number
from ..paired import paired_difference

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
    return found


def _agreement_lines(table: pd.DataFrame) -> Lines:
    head = ("partition", "with", "NMI", "ARI", "accuracy", "NMI, points to router at start")
    lines = []
    for first, second in _PAIRS:
        cells = [
            number(agreement(table, first, second, column).to_numpy().mean(), ".1f")
            for column in ("nmi", "ari", "accuracy")
        ]
        apart = _apart(table, second) if first == "router" else "-"
        lines.append((first, second, *cells, apart))
    return head, lines


def _apart(table: pd.DataFrame, second: str) -> str:
    """The router's agreement over that of its start, over paired seeds."""
    found = (agreement(table, name, second).mean() for name in ("router", "router at start"))
    return str(paired_difference(*found))


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
    """Differences over paired seeds, and how to read the tables."""
    said = []
    for row, own in table.groupby("row", sort=False):
        means, subspaces, sparse = (agreement(own, "router", x).mean() for x in CLUSTERINGS)
        now, before = (
            {problem: attained(own, name, problem).mean() for problem in _PROBLEMS}
            for name in ("router", "router at start")
        )
        said.append(
            f"{row}, in points: NMI of the router with k-means over that with SSC: "
            f"{paired_difference(means, sparse)}; over that with k-subspaces: "
            f"{paired_difference(means, subspaces)}. Share of k-means' gain over that of "
            f"k-subspaces' gain: {paired_difference(now['centre'], now['subspace'])}; the former "
            f"over that at start: {paired_difference(now['centre'], before['centre'])}; the "
            f"latter: {paired_difference(now['subspace'], before['subspace'])}."
        )
    said.append(
        "Partitions are of tokens of test images as they enter the experts, scaled to unit norm, "
        "into as many clusters as there are experts; numbers are means over layers and seeds, "
        "intervals are of 95 %, by t over paired seeds, not corrected for their number. A router's "
        "is its first choice. At start means the router's weights before training, on the trained "
        "network's tokens. Residuals are shares of the tokens' scatter about the mean, and of "
        "their squares for subspaces of dimension 4; a gain is counted from shuffled labels to "
        "the problem's own solver. Clusters used are the exponential of the entropy of shares. "
        "Linear NMI is that with what a linear classifier without intercept says of tokens of "
        "images that it was not fitted to."
    )
    return said
