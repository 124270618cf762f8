"""Dictionaries trained through solved codes, beside unrolled, learned and untrained ones.

``python studies/task_driven.py`` trains an encoder and a linear readout of its codes on two tasks:
digits, by cross entropy, and patches with noise, by squared errors. All encoders start at one
dictionary of K-SVD and one penalty, and train for the same processor time. Digits take 10 seeds and
patches 3, unless --seeds is given:

- K-SVD: codes of a dictionary that stays; the readout alone is trained.
- solved: `LassoEncoder`, gradients through certified codes.
- unrolled: ISTA from zero with gradients through its iterations; the same parameters.
- LISTA: `LISTA`, coupled; with one iteration about as many parameters, with ten more.
"""

import math
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from time import thread_time
from typing import Annotated, Any

import numpy as np
import pandas as pd
import torch
import typer
from shared.script import chosen, run_script, write_found
from sklearn.datasets import load_digits
from sklearn.feature_extraction.image import extract_patches_2d
from torch import Tensor, nn

from twinsolve.bench.jobs import run_jobs
from twinsolve.bench.options import SEEDS, DataHome, Jobs, Output
from twinsolve.bench.paired import judge, paired_difference
from twinsolve.bench.study import Study
from twinsolve.bench.tables import Lines, number
from twinsolve.bench.vision.denoising.study import NoisyImages
from twinsolve.datasets import fetch_train400
from twinsolve.solvers.inputs import Array
from twinsolve.solvers.sparse_coding import denoise_patches, ksvd
from twinsolve.unrolled import LISTA
from twinsolve.unrolled.solved import LassoEncoder
from twinsolve.unrolled.sparse_coding import SparsePenalty, proximal_map, repeated

SIGMA = 25 / 255
PATCH = 8
LAMS = {"digits": 0.2, "patches": 0.25}
N_SEEDS = {"digits": 10, "patches": 3}
SECONDS = {"digits": 6.0, "patches": 40.0}
RATES = {"digits": 1e-2, "patches": 3e-3}
N_ATOMS, N_NONZERO = 128, 5
BATCH = 256
_PATCHES = 20_000
_CROP = 128

Task = tuple[Tensor, Tensor, Callable[[Tensor, Tensor], Tensor]]


class UnrolledEncoder(LassoEncoder):
    """`LassoEncoder` with ISTA iterations in the place of the solution."""

    n_iter = 10

    def forward(self, signals: Tensor, samples: Tensor | None = None) -> Tensor:
        atoms = self.atoms()
        move = proximal_map(signals, atoms, SparsePenalty(self.lam()))
        step = torch.linalg.matrix_norm(atoms, 2) ** -2
        zero = signals.new_zeros(*signals.shape[:-1], len(atoms))
        return repeated(lambda codes, t: move(codes, step), zero, range(self.n_iter))


class _Unkeyed(nn.Module):
    """An encoder that does not keep codes by sample."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, signals: Tensor, samples: Tensor | None = None) -> Tensor:
        codes: Tensor = self.encoder(signals)
        return codes


def make_frozen(dictionary: Tensor, lam: float) -> LassoEncoder:
    encoder = LassoEncoder(dictionary, lam)
    return encoder.requires_grad_(False)


def make_lista(dictionary: Tensor, lam: float, *, n_iter: int) -> nn.Module:
    return _Unkeyed(LISTA(dictionary, n_iter, lam, "coupled"))


ENCODERS: dict[str, Callable[[Tensor, float], nn.Module]] = {
    "K-SVD": make_frozen,
    "solved": LassoEncoder,
    "unrolled, 10 iterations": UnrolledEncoder,
    "LISTA, 1 iteration": partial(make_lista, n_iter=1),
    "LISTA, 10 iterations": partial(make_lista, n_iter=10),
}


class Network(nn.Module):
    """An encoder and a linear readout of its codes."""

    def __init__(self, encoder: nn.Module, readout: nn.Linear) -> None:
        super().__init__()
        self.encoder, self.readout = encoder, readout

    def forward(self, signals: Tensor, samples: Tensor | None = None) -> Tensor:
        out: Tensor = self.readout(self.encoder(signals, samples))
        return out


def digits(seed: int) -> tuple[Array, Array, Array, Array]:
    """Unit images and classes, 1,000 to train on and 797 to test on, drawn by the seed."""
    X, y = load_digits(return_X_y=True)
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    order = np.random.default_rng(seed).permutation(len(X))
    return X[order[:1000]], y[order[:1000]], X[order[1000:]], y[order[1000:]]


def patches(seed: int, data_home: str | None) -> tuple[Array, Array]:
    """Noisy and clean patches of the training images, without the means of the noisy ones."""
    rng = np.random.default_rng(seed)
    images = fetch_train400(data_home=data_home).images
    each = -(-_PATCHES // len(images))
    clean = np.concatenate([
        extract_patches_2d(image, (PATCH, PATCH), max_patches=each, random_state=seed + place)
        for place, image in enumerate(images)
    ]).reshape(-1, PATCH**2)  # fmt: skip
    noisy = clean + SIGMA * rng.standard_normal(clean.shape)
    means = noisy.mean(axis=1, keepdims=True)
    return noisy - means, clean - means


def train(network: nn.Module, task: Task, *, seconds: float, rate: float, seed: int) -> int:
    """Train for some processor time; the rate falls to zero by a cosine. Returns the steps."""
    signals, targets, loss_of = task
    draw = torch.Generator().manual_seed(seed)
    trained = [p for p in network.parameters() if p.requires_grad]
    optimizer = torch.optim.Adam(trained, rate)
    begun, n_steps, share = thread_time(), 0, 0.0
    while share < 1:
        optimizer.param_groups[0]["lr"] = rate * (1 + math.cos(math.pi * share)) / 2
        rows = torch.randint(len(signals), (BATCH,), generator=draw)
        loss = loss_of(network(signals[rows], rows), targets[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        n_steps, share = n_steps + 1, (thread_time() - begun) / seconds
    return n_steps


def _float(x: Array) -> Tensor:
    return torch.from_numpy(x).float()


def squared_error(out: Tensor, clean: Tensor) -> Tensor:
    return (out - clean).square().sum(dim=-1).mean()


def compare(
    *, task: str, encoder: str, seed: int, seconds: float, data_home: str | None = None
) -> list[dict[str, Any]]:
    """Train one network and test it."""
    torch.manual_seed(seed)
    if task == "digits":
        X, y, test, classes = digits(seed)
        given: Task = _float(X), torch.from_numpy(y), nn.functional.cross_entropy
    else:
        X, clean = patches(seed, data_home)
        given = _float(X), _float(clean), squared_error
    learned_on = X if task == "digits" else clean[::5]
    atoms = _float(ksvd(learned_on, n_atoms=N_ATOMS, n_nonzero=N_NONZERO, random_state=seed)[0])
    readout = nn.Linear(N_ATOMS, 10) if task == "digits" else nn.Linear(N_ATOMS, PATCH**2)
    if task == "patches":
        with torch.no_grad():
            readout.weight.copy_(atoms.mT)
            readout.bias.zero_()
    network = Network(ENCODERS[encoder](atoms, LAMS[task]), readout)
    n_steps = train(network, given, seconds=seconds, rate=RATES[task], seed=seed)
    network.eval()
    with torch.no_grad():
        if task == "digits":
            right = network(_float(test)).argmax(dim=-1).numpy() == classes
            scores = {"all": 100 * float(right.mean())}
        else:
            scores = dict(measure_images(network, data_home))
        nonzero = float((network.encoder(given[0][:1000]) != 0).float().sum(dim=-1).mean())
    n_parameters = sum(p.numel() for p in network.parameters())
    row = {"task": task, "encoder": encoder, "seed": seed, "steps": n_steps,
           "parameters": n_parameters, "nonzero": nonzero}  # fmt: skip
    return [row | {"image": image, "score": score} for image, score in scores.items()]


def measure_images(network: nn.Module, data_home: str | None) -> Iterator[tuple[str, float]]:
    """PSNR of the middle of each image of Set12."""
    given = NoisyImages("set12", data_home=data_home)

    def reconstruct(rows: Array) -> Array:
        out: Array = network(_float(rows)).double().numpy()
        return out

    for place, name in enumerate(given.names):
        clean, noisy = (_crop(x) for x in (given.clean[place], given.noisy(place, SIGMA)))
        found = denoise_patches(noisy, reconstruct, patch_size=PATCH)
        yield name, -10 * math.log10(float(np.square(found - clean).mean()))


def _crop(image: Array) -> Array:
    top, left = ((side - _CROP) // 2 for side in image.shape)
    return image[top : top + _CROP, left : left + _CROP]


def result_lines(table: pd.DataFrame, task: str) -> Lines:
    own = table[table.task == task]
    scores = own.pivot_table(index=["seed", "image"], columns="encoder", values="score").unstack()
    apart = {
        name: paired_difference(scores[name], scores["solved"])
        for name in ENCODERS
        if name != "solved"
    }
    verdicts = judge(apart, margin=0)
    rows = []
    for name in ENCODERS:
        rows_of = own[own.encoder == name]
        cells = ("-", "-", "-") if name == "solved" else verdicts[name].cells[:3]
        rows.append((name, number(rows_of.score.mean(), ".2f"), *map(str, cells),
                     f"{rows_of.parameters.iloc[0]:,}", f"{rows_of.steps.mean():,.0f}",
                     number(rows_of.nonzero.mean(), ".1f")))  # fmt: skip
    score = "accuracy %" if task == "digits" else "dB"
    return ("encoder", score, "beyond solved", "p, corrected", "verdict", "parameters",
            "steps", "non-zeros"), rows  # fmt: skip


def main(
    task: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Run this task only; may be given again."),
    ] = None,
    seeds: Annotated[int | None, SEEDS] = None,
    seconds: Annotated[
        float | None, typer.Option(help="Processor time of each training, in seconds.")
    ] = None,
    n_jobs: Jobs = 1,
    data_home: DataHome = None,
    output: Output = Path("results/task-driven"),
) -> None:
    """Train every encoder on the tasks, and write how they compare."""
    tasks = chosen(task, LAMS, "--task")
    jobs = [
        {"task": name, "encoder": encoder, "seed": seed, "data_home": data_home,
         "seconds": seconds or SECONDS[name]}
        for name in tasks
        for seed in range(seeds or N_SEEDS[name])
        for encoder in ENCODERS
    ]  # fmt: skip
    settings = {"tasks": tasks, "seeds": seeds or N_SEEDS, "seconds": seconds or SECONDS,
                "lam": LAMS, "rate": RATES, "n_atoms": N_ATOMS, "batch": BATCH}  # fmt: skip
    more = {name.capitalize(): partial(result_lines, task=name) for name in tasks}
    study = Study("", "", partial(run_jobs, compare, jobs), more=more, notes=lambda table: NOTES)
    write_found(__file__, [study], settings, output, n_jobs=n_jobs)


NOTES = (
    "Networks of a seed share data, start and batches. Training takes the same processor time, so "
    "that faster encoders make more steps. Intervals are 95 % over seeds (and images) and not "
    "corrected; p and verdicts are, by Holm for each table.",
    "Patches: the middle 128 x 128 pixels of the images of Set12, at a noise of 25.",
)


if __name__ == "__main__":
    run_script(__file__)
