"""A training of a second: imported by tests, and run by them as a process of its own.

Arguments: folder, number of steps, and where to be killed, step=N or write=N, any number of times,
each by a process that starts the run again; the last comes to the end.
"""

import os
import signal
import sys
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import nn

from twinsolve.bench.devices import processes
from twinsolve.bench.recipe import Recipe
from twinsolve.bench.training import train


class Small(nn.Module):
    """A network with dropout, so that the order of random numbers counts too, and a buffer."""

    def __init__(self, width=8, start=1.0):
        super().__init__()
        self.width, self.start = width, start
        self.lam = nn.Parameter(torch.tensor(start))
        self.layers = nn.Sequential(nn.Linear(4, width), nn.Dropout(0.3), nn.Linear(width, 4))
        self.register_buffer("n_calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        self.n_calls += self.training
        return self.lam * self.layers(x)


def batches(seed, step, samples):
    inputs = [np.random.default_rng((seed, step, i)).standard_normal(4) for i in samples]
    x = torch.tensor(np.array(inputs), dtype=torch.float32)
    return x, x.flip(1)


def loss(model, batch):
    return nn.functional.mse_loss(model(batch[0]), batch[1])


@torch.no_grad()
def validate(model):
    return {"error": float(loss(model, batches(99, 0, range(8))))}


def network(dropout=True):
    torch.manual_seed(1)
    model = Small()
    if not dropout:
        model.layers[1].p = 0.0
    return model


def recipe(n_steps, **options):
    given = {"batch_size": 8, "checkpoint_every": 5, "validate_every": 4, "weight_decay": 0.01}
    return Recipe(n_steps=n_steps, **(given | options))


def _die():
    os.kill(os.getpid(), signal.SIGKILL)


def _dying(at):
    """Batches of a process that is killed at a step, or while it writes a file the nth time."""
    what, _, number = at.partition("=")
    left = [int(number)]
    sync = os.fsync

    def counted(handle):
        left[0] -= 1
        return _die() if left[0] == 0 else sync(handle)

    if what == "write":
        os.fsync = counted
    return lambda seed, step, samples: (
        _die() if what == "step" and step == left[0] else batches(seed, step, samples)
    )


def _train(folder, n_steps, drawn):
    with processes():
        alone = "RANK" not in os.environ  # dropout differs from process to process
        model = network(dropout=alone)
        train(model, drawn, loss, recipe(n_steps), directory=folder, validate=validate)
        name = f"of-process-{os.environ.get('RANK', 0)}.safetensors"
        save_file(model.state_dict(), Path(folder) / name)


if __name__ == "__main__":
    folder, n_steps, *deaths = sys.argv[1:]
    sys.modules["small_training"] = sys.modules["__main__"]
    Small.__module__ = "small_training"
    import torch._dynamo  # by the optimiser, in each child otherwise

    for at in deaths:
        child = os.fork()
        if not child:
            _train(folder, int(n_steps), _dying(at))
            os._exit(0)
        assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL, at
    _train(folder, int(n_steps), batches)
