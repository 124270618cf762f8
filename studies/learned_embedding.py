"""Self-expression in an embedding that is trained through its certified codes.

``python studies/learned_embedding.py --design`` compares embeddings on classes of the design set:
they train on half or more of its classes and cluster groups of the others. Without the option, the
choice made by it (`CHOSEN`) trains on the whole design set and clusters groups of the judging set,
which shares no class with it. That is to be run once.

Codes solve SE-12 among the embedded points z of a group, with penalties of ``lam_max / gamma``. The
loss is the share of their l1 norm that falls on other classes. The embeddings start at the
identity: "linear" is ``z = x W``, "residual" is ``z = x + relu(x U + b) V``. "whitened" is no
network: the inverse square root of the covariance within the classes trained on.
"""

from functools import cache, partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
import torch
import typer
from shared.script import run_script, write_found
from sklearn.decomposition import PCA
from torch import Tensor, nn

from twinsolve.bench.jobs import run_jobs
from twinsolve.bench.options import DataHome, Jobs, Output
from twinsolve.bench.paired import judge, paired_difference
from twinsolve.bench.study import Study
from twinsolve.bench.tables import Lines, number
from twinsolve.datasets import fetch_coil20, fetch_extended_yale_b, select_classes
from twinsolve.solvers.clustering.affinity import keep_largest, symmetric_affinity
from twinsolve.solvers.clustering.spectral import spectral_labels
from twinsolve.solvers.inputs import Array
from twinsolve.solvers.metrics import clustering_accuracy, subspace_preserving_error
from twinsolve.unrolled import solved_lasso

# First and last class of the design set, those trained on to choose, and the judging set.
CLASSES = {
    "faces": {"train": (1, 13), "choose": (14, 19), "design": (1, 19), "judge": (20, 38)},
    "objects": {"train": (1, 5), "choose": (6, 10), "design": (1, 10), "judge": (11, 20)},
}
GROUP = {"faces": 5, "objects": 4}
N_FEATURES, N_GROUPS, WIDTH = 100, 10, 100
GAMMAS, STEPS, KEPT = (20.0, 50.0, 200.0), (50, 200, 600), (0, 3)
RATE = 1e-3
_LEAST = 1e-10  # norm of a code that is divided by
SEEDS = 3
KINDS = ("features", "whitened", "linear", "residual")


class Embedding(nn.Module):
    """Points of unit length, from a linear map or a small residual network; first the identity."""

    def __init__(self, kind: str, n_features: int) -> None:
        super().__init__()
        self.kind = kind
        self.linear = nn.Parameter(torch.eye(n_features, dtype=torch.float64))
        self.inner = nn.Linear(n_features, WIDTH, dtype=torch.float64)
        self.outer = nn.Parameter(torch.zeros(WIDTH, n_features, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        z = x + self.inner(x).relu() @ self.outer if self.kind == "residual" else x @ self.linear
        return nn.functional.normalize(z, dim=-1)


@cache
def load(name: str, data_home: str | None) -> tuple[Array, Array]:
    """Points and classes from 1."""
    fetch = fetch_extended_yale_b if name == "faces" else fetch_coil20
    X, y = fetch(data_home=data_home, return_X_y=True)
    return np.asarray(X, dtype=np.float64), np.unique(y, return_inverse=True)[1] + 1


def points(name: str, part: str, fitted_on: str, data_home: str | None) -> tuple[Tensor, Array]:
    """Unit points of a part, by the principal components of another."""
    X, y = load(name, data_home)

    def of_part(part: str) -> tuple[Array, Array]:
        first, last = CLASSES[name][part]
        return select_classes(X, y, range(first, last + 1))

    fitted = PCA(N_FEATURES, random_state=0).fit(of_part(fitted_on)[0])
    own, labels = of_part(part)
    features = fitted.transform(own)
    return torch.from_numpy(features / np.linalg.norm(features, axis=1, keepdims=True)), labels


def codes_of(z: Tensor, gamma: float) -> Tensor:
    products = (z @ z.mT).abs()
    others = ~torch.eye(len(z), dtype=torch.bool)
    lam = 2 / gamma * products.where(others, 0).amax(dim=-1, keepdim=True)
    return solved_lasso(z, z, lam=lam, zero_diagonal=True)


def draw_groups(labels: Array, size: int, seed: int) -> list[Array]:
    """Rows of random groups of classes."""
    rng = np.random.default_rng(seed)
    groups = [rng.choice(np.unique(labels), size, replace=False) for _ in range(N_GROUPS)]
    return [np.flatnonzero(np.isin(labels, group)) for group in groups]


def train(kind: str, x: Tensor, labels: Array, *, size: int, gamma: float, n_steps: int,
          seed: int) -> Embedding:  # fmt: skip
    """Train by random groups of classes, one a step."""
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    embedding = Embedding(kind, x.shape[1])
    optimizer = torch.optim.Adam(embedding.parameters(), RATE)
    rates = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, n_steps)
    for _ in range(n_steps):
        group = rng.choice(np.unique(labels), size, replace=False)
        rows = np.flatnonzero(np.isin(labels, group))
        others = torch.from_numpy(labels[rows][:, None] != labels[rows])
        codes = codes_of(embedding(x[rows]), gamma).abs()
        loss = (codes.where(others, 0).sum(-1) / codes.sum(-1).clamp(min=_LEAST)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        rates.step()
    return embedding


def whiten(x: Tensor, labels: Array) -> Embedding:
    """The inverse square root of the covariance within classes, in units of its mean."""
    embedding = Embedding("whitened", x.shape[1])
    classes = [x[labels == label] for label in np.unique(labels)]
    centred = torch.cat([own - own.mean(dim=0) for own in classes])
    w, R = torch.linalg.eigh(centred.mT @ centred)
    with torch.no_grad():
        embedding.linear.copy_(R @ torch.diag((w / w.mean()).rsqrt()) @ R.mT)
    return embedding


def compare(*, data: str, kind: str, n_steps: int, gamma: float, seed: int, train_on: str,
            test_on: str, data_home: str | None) -> list[dict[str, Any]]:  # fmt: skip
    """Train one embedding, and cluster groups of classes that it has not seen."""
    x, labels = points(data, train_on, train_on, data_home)
    size = min(GROUP[data], len(np.unique(labels)))
    if kind == "whitened":
        embedding = whiten(x, labels)
    else:
        n_steps = 0 if kind == "features" else n_steps
        embedding = train(kind, x, labels, size=size, gamma=gamma, n_steps=n_steps, seed=seed)
    new, classes = points(data, test_on, train_on, data_home)
    rows = []
    for place, group in enumerate(draw_groups(classes, min(size, len(np.unique(classes))), 0)):
        with torch.no_grad():
            C = codes_of(embedding(new[group]), gamma).numpy()
        off = subspace_preserving_error(C, classes[group])
        for kept in KEPT:
            affinity = symmetric_affinity(keep_largest(C, kept) if kept else C)
            found = spectral_labels(affinity, len(np.unique(classes[group])), random_state=0)
            rows.append({
                "data": data, "kind": kind, "steps": n_steps, "gamma": gamma, "seed": seed,
                "kept": kept, "group": place, "on others": off,
                "error": 100 - 100 * clustering_accuracy(classes[group], found),
            })  # fmt: skip
    return rows


# For each data set and kind: steps, gamma and entries kept in a row (0: all), by ``--design``.
CHOSEN: dict[str, dict[str, tuple[int, float, int]]] = {
    "faces": {
        "features": (0, 200.0, 3),
        "whitened": (0, 20.0, 3),
        "linear": (600, 200.0, 3),
        "residual": (600, 50.0, 3),
    },
    "objects": {
        "features": (0, 20.0, 3),
        "whitened": (0, 20.0, 3),
        "linear": (50, 20.0, 3),
        "residual": (50, 20.0, 3),
    },
}


def design_jobs(data_home: str | None) -> list[dict[str, Any]]:
    parts = {"train_on": "train", "test_on": "choose", "seed": 0, "data_home": data_home}
    return [
        {"data": data, "kind": kind, "n_steps": n_steps, "gamma": gamma} | parts
        for data in CLASSES
        for kind in KINDS
        for gamma in GAMMAS
        for n_steps in (STEPS if kind in ("linear", "residual") else (0,))
    ]


def judge_jobs(data_home: str | None) -> list[dict[str, Any]]:
    parts = {"train_on": "design", "test_on": "judge", "data_home": data_home}
    return [
        {"data": data, "kind": kind, "n_steps": steps, "gamma": gamma, "seed": seed} | parts
        for data, kinds in CHOSEN.items()
        for kind, (steps, gamma, _) in kinds.items()
        for seed in range(SEEDS)
    ]


def design_lines(table: pd.DataFrame) -> Lines:
    """The best setting of each kind by its mean error."""
    settings = ["data", "kind", "steps", "gamma", "kept"]
    means = table.groupby(settings, sort=False)[["error", "on others"]].mean().reset_index()
    best = means.loc[means.groupby(["data", "kind"], sort=False)["error"].idxmin()]
    rows: list[tuple[str, ...]] = [
        (
            *(str(row[name]) for name in settings), number(row["error"], ".2f"),
            number(row["on others"], ".3f"),
        )
        for _, row in best.iterrows()
    ]  # fmt: skip
    return ("data", "embedding", "steps", "gamma", "kept", "error %", "on other classes"), rows


def judge_lines(table: pd.DataFrame, data: str) -> Lines:
    kept = {kind: own[2] for kind, own in CHOSEN[data].items()}
    own = table[(table.data == data) & (table.kept == table.kind.map(kept))]
    error = own.pivot_table(index=["seed", "group"], columns="kind", values="error").unstack()
    apart = {kind: paired_difference(error[kind], error["features"]) for kind in KINDS[1:]}
    verdicts = judge(apart)
    rows: list[tuple[str, ...]] = []
    for kind in KINDS:
        mean = own[own.kind == kind][["error", "on others"]].mean()
        cells: tuple[str, ...] = ("-",) * 4
        if kind != "features":
            gain = (error["features"] - error[kind]).mean()
            cells = *verdicts[kind].cells[:3], f"{(gain > 0).sum()} of {len(gain)}"
        rows.append((kind, number(mean["error"], ".2f"), *cells, number(mean["on others"], ".3f")))
    return ("embedding", "error %", "beyond features, points", "p, corrected", "verdict",
            "better in groups", "on other classes"), rows  # fmt: skip


def main(
    design: Annotated[
        bool, typer.Option("--design", help="Compare settings on the design set.")
    ] = False,
    n_jobs: Jobs = 1,
    data_home: DataHome = None,
    output: Output = Path("results/learned-embedding"),
) -> None:
    """Train embeddings of the design set, or the chosen ones for the judging set."""
    jobs = (design_jobs if design else judge_jobs)(data_home)
    run = partial(run_jobs, compare, jobs)
    settings = {"design": design, "features": N_FEATURES, "rate": RATE, "groups": N_GROUPS,
                "seeds": 1 if design else SEEDS}  # fmt: skip
    more = {f"Judging set: {data}": partial(judge_lines, data=data) for data in CHOSEN}
    study = Study("", "", run, more=more, notes=lambda table: [NOTE])
    if design:
        study = Study(
            "", "", run, more={"Best settings on the design set, by labels": design_lines}
        )
    write_found(__file__, [study], settings, output, n_jobs=n_jobs)


NOTE = (
    f"{N_GROUPS} groups of classes that no embedding has seen. Errors are of one spectral "
    "clustering a group; intervals are 95 % over seeds and groups. A group counts as better by its "
    "mean over seeds."
)


if __name__ == "__main__":
    run_script(__file__)
