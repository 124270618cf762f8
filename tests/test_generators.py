"""No function of the package takes the caller's random numbers."""

import ast
import random
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import twinsolve
from twinsolve import bench
from twinsolve.bench.vision.denoising.networks import build_network, shipped_classes
from twinsolve.bench.vision.inspection.sources import at_start, shipped
from twinsolve.unrolled import Softmax
from twinsolve.unrolled.clustering import SelfExpressiveSubspaceClustering
from twinsolve.unrolled.generators import seeded

ROOT = Path(twinsolve.__file__).parent
SEEDS = {"torch.manual_seed", "torch.seed", "np.random.seed", "random.seed", "torch.set_rng_state"}
DRAWS = {
    f"torch.{name}"
    for name in (
        "rand", "randn", "randint", "randperm", "rand_like", "randn_like", "normal", "bernoulli",
        "multinomial", "poisson",
    )
}  # fmt: skip
TRAINED_ONLY = {"bench/parts.py", "bench/vision/classification/augmentation.py"}  # within `train`


def calls_of(path):
    """Each call of a source file as it is written, and whether it names a generator."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), "generator" in {word.arg for word in node.keywords}


@pytest.mark.parametrize("wing", ["solvers", "unrolled", "twins", "datasets", "bench"])
def test_no_code_seeds_or_draws_from_a_global_generator(wing):
    for path in sorted((ROOT / wing).rglob("*.py")):
        place = path.relative_to(ROOT).as_posix()
        for call, has_generator in calls_of(path):
            if place not in TRAINED_ONLY and not has_generator:
                assert call not in DRAWS, place
            if place != "unrolled/generators.py":
                assert call not in SEEDS, place
                assert not re.match(r"np\.random\.(?!default_rng)[a-z]", call), f"{place}: {call}"


def state():
    _, keys, place, *_ = np.random.get_state()  # noqa: NPY002
    return torch.get_rng_state().tolist(), keys.tolist(), place, random.getstate()


class Noisy(nn.Module):
    """A user's layer that draws numbers of every kind."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4))

    def forward(self, x):
        noise = random.random() + np.random.rand()  # noqa: NPY002
        return x @ self.weight + 0 * noise + 0 * torch.rand(())


def train_noisy(folder):
    """A run of `train` whose batches and loss draw too, and its network from the folder."""
    bench.train(
        nn.PReLU(),
        lambda *_: torch.rand(2, 3) + np.random.rand(),  # noqa: NPY002
        lambda network, batch: network(batch).square().mean() + 0 * random.random(),
        bench.Recipe(n_steps=2),
        directory=folder,
    )
    return bench.load_model(folder)


TINY = {"rows": ["softmax"], "seeds": 1, "steps": 1}
SMALL = {"dim": 8, "depth": 1, "num_heads": 1}
ONES, NOISY = torch.ones(2, 21, 4), Noisy()
ENTRIES = {
    "audit of a name": lambda folder: twinsolve.audit("BertModel", laws=("rows of a batch",)),
    "audit of a layer": lambda folder: twinsolve.audit(NOISY, ONES, laws=("rows of a batch",)),
    "check": lambda folder: twinsolve.check(Softmax(), ONES[0]),
    "classify": lambda folder: bench.classify(
        "digits:n_train=100", directory=folder, recipe=SMALL, **TINY
    ),
    "classify_sequences": lambda folder: bench.classify_sequences(
        "listops:n_train=100,min_length=8,max_length=16", directory=folder, recipe=SMALL, **TINY
    ),
    "train_language_models": lambda folder: bench.train_language_models(
        "generated", directory=folder, recipe=SMALL, **TINY
    ),
    "train": train_noisy,
    "denoise_image": lambda folder: bench.denoise_image(
        np.random.default_rng(0).random((20, 20)), method="MixtureOfExpertsDenoiser, start"
    ),
    "load_denoiser": lambda folder: [bench.load_denoiser(name) for name in shipped_classes()],
    "build_network": lambda folder: build_network("ConvexRidgeDenoiser", sigma=0.1),
    "inspect_model": lambda folder: (at_start("digits"), shipped("digits")),
    "clustering": lambda folder: SelfExpressiveSubspaceClustering(
        2, max_iter=1, random_state=0
    ).fit(ONES[0].numpy() + np.eye(21, 4)),
}


@pytest.mark.parametrize("name", ENTRIES)
def test_the_callers_random_numbers_are_left(name, tmp_path):
    before = state()
    ENTRIES[name](tmp_path)
    assert state() == before


def test_a_seeded_block_decides_all_generators_and_gives_them_back():
    def draw():
        return random.random(), np.random.rand(), torch.rand(()).item()  # noqa: NPY002

    before = state()
    drawn = []
    for _ in range(2):
        with seeded(3):
            drawn.append(draw())
    assert drawn[0] == drawn[1]
    assert state() == before
    with pytest.raises(KeyError), seeded(4):
        raise KeyError
    assert state() == before
    assert draw() != draw()
