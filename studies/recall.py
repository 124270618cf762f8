"""Recall of stored pairs by memories of one head: closed forms, random keys, learned keys.

``python studies/recall.py`` stores N pairs of a key word and a random value in a memory, and reads
all of them. Errors are squared, relative to the values'. On random unit keys each memory is held to
its closed form (TR-R). Then its settings are learned for 64 words with random keys, and at last the
keys too, from the same start.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from shared.script import run_script, write_found
from torch import Tensor
from torch.nn import functional as F

from twinsolve.bench.figures import legend, panels, plain, save
from twinsolve.bench.jobs import Options, run_jobs
from twinsolve.bench.options import Jobs, Output, Seeds
from twinsolve.bench.study import Study
from twinsolve.bench.tables import Lines, number
from twinsolve.unrolled.online_regression import (
    chunked_delta_rule,
    chunked_heavy_ball,
    chunked_linear_attention,
    chunked_mesa,
    chunked_mini_batch,
)

D, N_WORDS = 16, 64  # features of keys and of values; words that have a key
PAIRS = (8, 16, 24, 32, 48)
_N_STEPS, _RATE, _BATCH, _N_TEST = 600, 0.02, 64, 4000
Memory = Callable[[Tensor, Tensor, dict[str, Tensor]], Tensor]


def recall_linear(k: Tensor, v: Tensor, own: dict[str, Tensor]) -> Tensor:
    return own["scale"].exp() * (k @ chunked_linear_attention(k, k, v)[1])


def recall_delta(k: Tensor, v: Tensor, own: dict[str, Tensor]) -> Tensor:
    beta = 2 * own["step"].sigmoid().expand(k.shape[:-1])
    return k @ chunked_delta_rule(k, k, v, beta=beta)[1]


def recall_mini_batch(k: Tensor, v: Tensor, own: dict[str, Tensor]) -> Tensor:
    eta = own["step"].exp().expand(k.shape[:-1])
    return k @ chunked_mini_batch(k, k, v, eta=eta, batch_size=8)[1][0]


def recall_heavy_ball(k: Tensor, v: Tensor, own: dict[str, Tensor]) -> Tensor:
    gates = (own["step"].sigmoid(), F.logsigmoid(own["momentum"]), torch.zeros(()).to(k))
    step, log_momentum, log_keep = (x.expand(k.shape[:-1]) for x in gates)
    _, (memory, _) = chunked_heavy_ball(
        k, k, v, step=step, log_momentum=log_momentum, log_keep=log_keep
    )
    return k @ memory


def recall_mesa(k: Tensor, v: Tensor, own: dict[str, Tensor]) -> Tensor:
    one = torch.ones_like(k[..., 0])
    H, G = chunked_mesa(k, k, v, beta=one, lam=own["penalty"].exp(), n_iter=1)[1]
    eye = torch.eye(D, dtype=k.dtype)
    return k @ torch.linalg.solve(H + own["penalty"].exp() * eye, G)


def recall_softmax(k: Tensor, v: Tensor, own: dict[str, Tensor]) -> Tensor:
    return torch.softmax(own["scale"].exp() * k @ k.mT, dim=-1) @ v


# What a memory starts with: a scale of 1, steps of 1 (beta), 1/8 and 1/4, a momentum of 1/50.
MEMORIES: dict[str, tuple[Memory, dict[str, float]]] = {
    "linear attention": (recall_linear, {"scale": 0.0}),
    "delta rule": (recall_delta, {"step": 0.0}),
    "mini-batches of 8": (recall_mini_batch, {"step": -2.0}),
    "heavy ball": (recall_heavy_ball, {"step": -1.0, "momentum": -4.0}),
    "Mesa, exact": (recall_mesa, {"penalty": -7.0}),
    "softmax": (recall_softmax, {"scale": 2.0}),
}


def closed_form(name: str, k: Tensor, v: Tensor) -> Tensor | None:
    """What a memory at its start recalls by TR-R; None where the sheet has no closed form."""
    gram = k @ k.mT
    eye = torch.eye(k.shape[-2], dtype=k.dtype)
    if name == "linear attention":
        return v + (gram - eye) @ v
    if name == "delta rule":
        below = gram.tril(-1)
        return v + (below.mT) @ torch.linalg.solve(eye + below, v)
    if name == "Mesa, exact":
        lam = torch.tensor(MEMORIES[name][1]["penalty"], dtype=k.dtype).exp()
        return v - lam * torch.linalg.solve(gram + lam * eye, v)
    return None


def expected_error(name: str, n_pairs: int) -> float:
    """The mean over random unit keys by TR-R, and NaN where the sheet has none."""
    if name == "linear attention":
        return (n_pairs - 1) / D
    if name == "Mesa, exact":
        return max(0.0, (n_pairs - D) / n_pairs)
    if name == "delta rule":
        return sum(_delta_error(i, n_pairs) for i in range(1, n_pairs + 1)) / n_pairs
    return float("nan")


def _delta_error(i: int, n_pairs: int) -> float:
    """The mean error of item i after ``n_pairs - i`` later ones, for steps of 1."""
    q, x = 1 - 1 / D, 1.0
    b = D - D * q**i
    for _ in range(n_pairs - i):
        x = x * (1 - 2 / D + 2 / (D * (D + 2))) + b / (D * (D + 2)) + 1 / D
        b = q * b + 1
    return x - 2 * q ** (n_pairs - i) + 1


def relative_error(found: Tensor, v: Tensor) -> float:
    return float((found - v).square().mean() / v.square().mean())


def measure_recall(memory: str, n_pairs: int, seed: int) -> list[dict[str, Any]]:
    """Errors of one memory for one number of pairs, as it starts and as it learns."""
    recall, start = MEMORIES[memory]
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    def settings() -> dict[str, Tensor]:
        return {name: torch.tensor(x, dtype=torch.float64) for name, x in start.items()}

    k, v = F.normalize(draw(_N_TEST, n_pairs, D), dim=-1), draw(_N_TEST, n_pairs, D)
    found, form = recall(k, v, settings()), closed_form(memory, k, v)
    row: dict[str, Any] = {"memory": memory, "n_pairs": n_pairs, "seed": seed}
    row["random"] = relative_error(found, v)
    row["deviation"] = None if form is None else float((found - form).abs().max())

    table = F.normalize(draw(N_WORDS, D), dim=-1)
    words = torch.stack([torch.randperm(N_WORDS, generator=generator) for _ in range(_N_TEST)])
    words = words[:, :n_pairs]
    for name, learns_keys in (("settings", False), ("keys", True)):
        keys, own = table.clone().requires_grad_(learns_keys), settings()
        learned = [x.requires_grad_() for x in own.values()] + [keys] * learns_keys
        train(recall, keys, own, learned, n_pairs, seed)
        with torch.no_grad():
            row[name] = relative_error(recall(F.normalize(keys, dim=-1)[words], v, own), v)
    return [row]


def train(
    recall: Memory, keys: Tensor, own: dict[str, Tensor], learned: list[Tensor], n_pairs: int,
    seed: int,
) -> None:  # fmt: skip
    """Lower the error of pairs drawn anew at each step, by Adam; rates fall to 0 by a cosine."""
    generator = torch.Generator().manual_seed(1000 + seed)
    optimiser = torch.optim.Adam(learned, lr=_RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, _N_STEPS)
    for _ in range(_N_STEPS):
        order = torch.rand(_BATCH, N_WORDS, generator=generator).argsort(dim=-1)[:, :n_pairs]
        v = torch.randn(_BATCH, n_pairs, D, generator=generator, dtype=torch.float64)
        loss = (recall(F.normalize(keys, dim=-1)[order], v, own) - v).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()


def measure_all(options: Options) -> pd.DataFrame:
    """All memories, for every number of pairs and seed."""
    jobs = [
        {"memory": memory, "n_pairs": n_pairs, "seed": seed}
        for memory in MEMORIES
        for n_pairs in PAIRS
        for seed in options.all_seeds
    ]
    return run_jobs(measure_recall, jobs, options)


def recall_lines(table: pd.DataFrame) -> Lines:
    """A line for each memory and number of pairs: means over seeds."""
    head = (
        "memory", "pairs", "TR-R, mean", "random keys", "largest deviation from TR-R",
        "settings learned", "keys learned", "range over seeds",
    )  # fmt: skip
    cells: list[tuple[str, ...]] = []
    for (memory, n_pairs), own in table.groupby(["memory", "n_pairs"], sort=False):
        mean = own.mean(numeric_only=True)
        theory = expected_error(str(memory), int(str(n_pairs)))
        expected = "" if pd.isna(theory) else number(theory, ".3f")
        deviation = "" if own.deviation.isna().all() else f"{own.deviation.astype(float).max():.0e}"
        cells.append((
            str(memory), str(n_pairs), expected, number(mean.random, ".3f"), deviation,
            number(mean.settings, ".3f"), number(mean["keys"], ".3f"),
            f"{own['keys'].min():.3f} to {own['keys'].max():.3f}",
        ))  # fmt: skip
    return head, cells


def draw_recall(table: pd.DataFrame, path: Path) -> None:
    """Draw a panel for each memory: errors against the number of pairs."""
    means = table.groupby(["memory", "n_pairs"], sort=False).mean(numeric_only=True)
    figure, axes = panels(len(MEMORIES), (2.7, 2.4), columns=3, sharex=True, sharey=True)
    every = range(1, PAIRS[-1] + 1)
    for own, name in zip(axes, MEMORIES, strict=True):
        floor = [max(0.0, (n - D) / n) for n in every]
        own.plot(every, floor, color="0.6", linestyle=":", label="least squares, random keys")
        theory = [expected_error(name, n) for n in every]
        own.plot(every, theory, color="black", linewidth=0.8, label="closed form (TR-R)")
        mean = means.loc[name]
        for column, label, mark, colour in (
            ("random", "random keys", "o", "#0072B2"),
            ("settings", "settings learned", "s", "#E69F00"),
            ("keys", "keys learned", "^", "#D55E00"),
        ):
            own.plot(mean.index, mean[column], mark, color=colour, markersize=4, label=label)
        own.set_title(name, fontsize=9)
        own.set_ylim(-0.05, 2)
        plain(own)
    for own in axes[3:]:
        own.set_xlabel("pairs stored")
    for own in axes[::3]:
        own.set_ylabel("squared error")
    legend(figure, "lower center", ncols=3, fontsize=8)
    save(figure, path)


NOTE = (
    f"Keys and values have {D} features. An error of 1 is that of recalling nothing. Random keys "
    f"are drawn anew for {_N_TEST:,} tests, and memories are at their start. The mean of Mesa by "
    f"TR-R is that without a penalty. Learned columns have {N_WORDS} words with a key each. A "
    f"linear memory of more than {D} pairs cannot recall all: for keys of full rank no linear map "
    f"has a lower mean error than (N - {D}) / N. {_N_STEPS} steps of Adam for each number of "
    "pairs, in float64."
)


def main(seeds: Seeds = 3, n_jobs: Jobs = 1, output: Output = Path("results/recall")) -> None:
    """Measure all memories, and write the table."""
    title, figures = "Squared error of what is recalled", {"recall.png": draw_recall}
    study = Study("", title, measure_all, recall_lines, figures, notes=lambda table: [NOTE])
    write_found(__file__, [study], {"seeds": seeds}, output, seeds=seeds, n_jobs=n_jobs)


if __name__ == "__main__":
    run_script(__file__)
