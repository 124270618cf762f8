"""A classifier trained in a process of its own, which may be killed at a step.

Arguments: folder, and the step to be killed at, or -1.
"""

import os
import signal
import sys

from twinsolve.bench.vision.classification.data import load_splits
from twinsolve.bench.vision.classification.study import build, settings_of
from twinsolve.bench.vision.classification.training import ClassBatches, cross_entropy
from twinsolve.bench.vision.recipe import Recipe
from twinsolve.bench.vision.training import train

folder, death = sys.argv[1], int(sys.argv[2])
splits, settings = load_splits("digits"), settings_of("digits")
made = ClassBatches(splits.train, batch_size=16, shift=1, flip=True)


def batches(seed, step, samples):
    if step == death:
        os.kill(os.getpid(), signal.SIGKILL)
    return made(seed, step, samples)


options = {"residual": "boosting", "drop_path": 0.2, "depth": 2}
train(
    build(splits, settings, options, seed=3),
    batches,
    cross_entropy(0.1),
    Recipe(n_steps=9, batch_size=16, seed=3, checkpoint_every=2),
    directory=folder,
)
