"""The settings of a training run."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from ..validation import check_integer, check_positive

_PRECISIONS = ("float32", "bfloat16")


@dataclass(frozen=True)
class Recipe:
    """Settings of a training run: AdamW, rate schedule, clipping and averaged weights.

    Parameters
    ----------
    n_steps : int, optional
        Number of steps.
    minutes : float, optional
        Budget of wall time. The number of steps that fit into it is found once, from the time of
        the first steps, and written to the run's folder. If `n_steps` is given too, the smaller
        number counts.
    batch_size : int, default=16
        Samples of a step, over all processes.
    learning_rate : float, default=1e-3
        Highest rate. The rate rises linearly over the share `warm_up` of the steps, then falls as a
        cosine to `final_rate` times the highest rate.
    rate_multipliers : dict, optional
        Factors of the learning rate by patterns of parameter names, such as ``{"*.lam": 10}``. If
        several match, the last counts. An attribute `rate_multipliers` of the model comes first.
    weight_decay : float, default=0
        Weight decay of parameters with two or more dimensions.
    betas : pair of float, default=(0.9, 0.999)
    warm_up, final_rate : float, default=0.03 and 0.01
    clip_norm : float, default=1
        Largest norm of the gradient.
    ema_decay : float, default=0.999
        Decay of the moving average of the weights; after t steps at most (1 + t) / (10 + t).
    precision : {"float32", "bfloat16"}, default="float32"
        bfloat16 runs the forward pass under autocast; float32 keeps the precision of the model.
    seed : int, default=0
        With step and sample, or step and process, the seed determines all random numbers.
    checkpoint_every, validate_every : int, default=200
        Numbers of steps. A checkpoint is also written after the first step that ends 20 seconds
        or more after the last one.

    Raises
    ------
    ValueError
        If neither `n_steps` nor `minutes` is given, or a value is out of range.
    """

    n_steps: int | None = None
    minutes: float | None = None
    batch_size: int = 16
    learning_rate: float = 1e-3
    rate_multipliers: Mapping[str, float] = field(default_factory=dict)
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    warm_up: float = 0.03
    final_rate: float = 0.01
    clip_norm: float = 1.0
    ema_decay: float = 0.999
    precision: str = "float32"
    seed: int = 0
    checkpoint_every: int = 200
    validate_every: int = 200

    def __post_init__(self) -> None:
        if self.n_steps is None and self.minutes is None:
            raise ValueError("recipe: needs n_steps or minutes")
        if self.precision not in _PRECISIONS:
            raise ValueError(f"precision: must be one of {_PRECISIONS}, got {self.precision!r}")
        for name in ("n_steps", "batch_size", "checkpoint_every", "validate_every"):
            if getattr(self, name) is not None:
                check_integer(getattr(self, name), name, minimum=1)
        for name in ("minutes", "learning_rate", "clip_norm"):
            if getattr(self, name) is not None:
                check_positive(getattr(self, name), name)
        check_positive(self.weight_decay, "weight_decay", allow_zero=True)
        for name in ("warm_up", "final_rate"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name}: must be in [0, 1], got {getattr(self, name)}")
        for name, decay in (("ema_decay", self.ema_decay), *(("betas", b) for b in self.betas)):
            if not 0 <= decay < 1:
                raise ValueError(f"{name}: must be in [0, 1), got {decay}")

    def rate(self, step: int, n_steps: int) -> float:
        """Learning rate of a step, counted from 0."""
        rising = max(1, round(self.warm_up * n_steps))
        if step < rising:
            return self.learning_rate * (step + 1) / rising
        along = (step - rising) / max(1, n_steps - rising)
        height = (1 + math.cos(math.pi * along)) / 2
        return self.learning_rate * (self.final_rate + (1 - self.final_rate) * height)
