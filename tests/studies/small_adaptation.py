"""A trained network that is adapted in a process of its own, which may be killed at a step.

Arguments: folder, and the step to be killed at, or -1.
"""

import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "studies"))
import adaptation

from twinsolve.bench.vision.classification import study

folder, death = sys.argv[1], int(sys.argv[2])
recipe_of = study.recipe_of


class Batches(study.ClassBatches):
    def __call__(self, seed, step, samples):
        if step == death:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__call__(seed, step, samples)


study.ClassBatches = Batches
for module in (study, adaptation):
    module.recipe_of = lambda *given: replace(recipe_of(*given), batch_size=16, checkpoint_every=2)
adaptation._run(
    data="digits", data_home=None, directory=folder, settings=study.settings_of("digits"),
    row="sparse coding",
    options={"operator": "sparse_coding"}, seed=3, rate=1e-3,
    candidate={"learning_rate": 3e-3, "position_scale": 0.7, "n_steps": 9},
)  # fmt: skip
