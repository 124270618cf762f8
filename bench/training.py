"""Train a network, with checkpoints that resume bit for bit, in one or more processes."""

import json
import math
import os
import time
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from ..unrolled.attention.names import operator_factory
from ..unrolled.generators import kept_generators, seed_torch
from ..unrolled.named_operators import operator_names
from .devices import device_of, move_to
from .recipe import Recipe
from .run_folder import (
    CHECKPOINT,
    START,
    WEIGHTS,
    add_metrics,
    begin_run,
    load_tensors,
    read_notes,
    run_settings,
    save_tensors,
    steps_begun,
    trim_metrics,
)
from .sources import source_of
from .timing import Progress

Batches = Callable[[int, int, range], Any]
Loss = Callable[[nn.Module, Any], Tensor]
Validate = Callable[[nn.Module], Mapping[str, float]]
Listener = Callable[[dict[str, Any]], None]
_TIMED = 4  # steps, after an untimed one
_KEEP_AFTER = 20.0  # seconds without a checkpoint


@dataclass(frozen=True)
class StudyListener:
    """Adds `about`, such as the row and seed of a study, to what a listener hears."""

    listener: Listener
    about: Mapping[str, Any]

    def of(self, **about: Any) -> "StudyListener":
        return StudyListener(self.listener, {**self.about, **about})

    def __call__(self, row: dict[str, Any]) -> None:
        self.listener({**self.about, **row})


def train(
    model: nn.Module,
    batches: Batches,
    loss: Loss,
    recipe: Recipe,
    *,
    directory: str | os.PathLike[str],
    validate: Validate | None = None,
    task: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
    on_step: Listener | None = None,
    on_validation: Listener | None = None,
) -> nn.Module:
    """Train a model in place, or continue the run in the folder.

    On the same machine and number of threads, an interrupted run ends with the same bits: whatever
    is not in a checkpoint depends on (seed, step, sample) or (seed, step, process) alone. Under
    `processes`, each process takes a part of the batch, and gradients are averaged.

    Parameters
    ----------
    model : nn.Module
        Arguments of the constructor must be plain values and attributes of the same names.
    batches : callable
        ``batches(seed, step, samples)`` returns the samples, a range within the batch of the step,
        as a tensor or a tuple of tensors. It must depend on nothing else.
    loss : callable
        ``loss(model, batch)`` returns a mean over samples.
    recipe : Recipe
    directory : path
        Folder of the run: settings.json, metrics.jsonl, checkpoint.safetensors,
        start.safetensors, and weights.safetensors with the averaged weights.
    validate : callable, optional
        ``validate(model)`` returns numbers by name; it is called with the averaged weights.
    task : dict, optional
        Further settings of the run, such as its data, for settings.json.
    progress : callable, optional
        Wraps the steps, as `twinsolve.bench.terminal.progress` does.
    on_step, on_validation : callable, optional
        ``on_step(row)`` is called after each step, with a dict of ``step`` (counted from 1),
        ``n_steps``, ``loss``, ``rate`` and ``samples_per_second`` (mean of this call);
        ``on_validation(row)`` with each row of the metrics: the start, every
        `Recipe.validate_every` steps, and the end.

    Returns
    -------
    nn.Module
        The model with averaged weights, in evaluation mode.

    Raises
    ------
    FloatingPointError
        If loss or gradient is NaN or infinite; the last checkpoint is kept.
    ValueError
        If the folder holds another run or a damaged one, or the model has no parameters to train or
        cannot be rebuilt from settings.

    Warns
    -----
    UserWarning
        If a run continues with another number of threads.

    Examples
    --------
    >>> import torch
    >>> from twinsolve.bench.recipe import Recipe
    >>> from twinsolve.bench.training import train
    >>> def batches(seed, step, samples):
    ...     x = torch.linspace(-1, 1, 9) + step
    ...     return x, x.abs()
    >>> def loss(model, batch):
    ...     return torch.nn.functional.mse_loss(model(batch[0]), batch[1])
    >>> recipe = Recipe(n_steps=20, learning_rate=0.1)
    >>> losses = []  # or a logger: on_step=lambda row: writer.add_scalar("loss", row["loss"])
    >>> model = train(
    ...     torch.nn.PReLU(), batches, loss, recipe, directory="run",
    ...     on_step=lambda row: losses.append(row["loss"]),
    ... )
    >>> bool(model.weight < 0.25), len(losses)
    (True, 20)
    """
    folder = Path(directory)
    run = _Run(model, batches, loss, recipe)
    settings = run_settings(model, recipe, task or {}, run.n_processes)
    with kept_generators():
        n_steps = steps_begun(folder, settings)
        run.share_start()
        if n_steps is None:
            n_steps = _count_steps(run, validate)
            if run.rank == 0:
                begin_run(folder, settings, n_steps, model)
        else:
            run.restore(folder)
        if run.rank == 0:
            trim_metrics(folder, run.n_done)
        if run.n_done == 0:
            run.write_metrics(folder, n_steps, validate, on_validation)
        todo, start, kept = range(run.n_done, n_steps), time.perf_counter(), run.n_done
        written = start
        try:
            for step in progress(todo, len(todo)) if progress and run.rank == 0 else todo:
                run.step(step, n_steps)
                if on_step and run.rank == 0:
                    speed = (run.n_done - todo.start) / (time.perf_counter() - start)
                    on_step(run.describe_step(n_steps, speed))
                last = run.n_done == n_steps
                if last or run.n_done % recipe.validate_every == 0:
                    run.write_metrics(folder, n_steps, validate, on_validation)
                due = time.perf_counter() - written >= _KEEP_AFTER
                if last or due or run.n_done % recipe.checkpoint_every == 0:
                    run.write_checkpoint(folder)
                    kept, written = run.n_done, time.perf_counter()
        except KeyboardInterrupt as stop:
            stop.add_note(f"{folder} keeps step {kept} of {n_steps}; the same call goes on.")
            raise
        if not len(todo):  # the run may have been killed before this last file
            run.write_weights(folder)
    return run.average.eval()


def operator_sources() -> dict[str, str | None]:
    """Hash of the source of each operator by name; those of the package share one."""
    return {name: source_of(operator_factory(name)) for name in operator_names()}


def generator_of(seed: int, step: int, sample: int) -> np.random.Generator:
    """Random generator of a sample of a step, whichever process draws it."""
    return np.random.default_rng((seed, step, sample))


class _Run:
    """The state of a training run: model, average, optimiser and progress."""

    def __init__(self, model: nn.Module, batches: Batches, loss: Loss, recipe: Recipe) -> None:
        joined = dist.is_available() and dist.is_initialized()
        self.rank, self.n_processes = (dist.get_rank(), dist.get_world_size()) if joined else (0, 1)
        if recipe.batch_size % self.n_processes:
            raise ValueError(f"batch_size: must be a multiple of the {self.n_processes} processes")
        share = recipe.batch_size // self.n_processes
        self.samples = range(self.rank * share, (self.rank + 1) * share)
        self.model, self.batches, self.loss, self.recipe = model, batches, loss, recipe
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        if not self.parameters:
            raise ValueError(f"model: {type(model).__name__} has no parameter to train")
        self.device = device_of(model)
        self.average = deepcopy(model).eval()
        self.optimizer = torch.optim.AdamW(_group_parameters(model, recipe), betas=recipe.betas)
        self.n_done, self.seconds = 0, 0.0
        self.losses: list[float] = []  # since the last row of metrics

    def share_start(self) -> None:
        """Wait for all processes, and start them from the weights of the first."""
        if self.n_processes > 1:
            dist.barrier()
            for tensor in self.model.state_dict().values():
                dist.broadcast(tensor, 0)
        self.average.load_state_dict(self.model.state_dict())

    def step(self, step: int, n_steps: int) -> None:
        start = time.perf_counter()
        recipe = self.recipe
        seed_torch(_mix_seed(recipe.seed, step, self.rank))
        batch = move_to(self.batches(recipe.seed, step, self.samples), self.device)
        self.model.train()
        self.optimizer.zero_grad()
        low = recipe.precision == "bfloat16"
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=low):
            loss = self.loss(self.model, batch)
        loss.backward()
        for parameter in self.parameters:  # so that all processes average the same gradients
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        value = self._average_over_processes(loss.detach())
        norm = nn.utils.clip_grad_norm_(self.parameters, recipe.clip_norm)
        if not math.isfinite(value) or not torch.isfinite(norm):
            raise FloatingPointError(
                f"step {step}: loss is {value:.4g}, the norm of its gradient {float(norm):.4g}; "
                "the last checkpoint is kept. A smaller learning rate may help"
            )
        for group in self.optimizer.param_groups:
            group["lr"] = group["multiplier"] * recipe.rate(step, n_steps)
        self.optimizer.step()
        self._move_average(min(recipe.ema_decay, (1 + step) / (10 + step)))
        self.n_done = step + 1
        self.losses.append(value)
        self.seconds += time.perf_counter() - start

    def describe_step(self, n_steps: int, steps_per_second: float) -> dict[str, Any]:
        """What `on_step` is told of the last step."""
        return {
            "step": self.n_done,
            "n_steps": n_steps,
            "loss": self.losses[-1],
            "rate": self.recipe.rate(self.n_done - 1, n_steps),
            "samples_per_second": self.recipe.batch_size * steps_per_second,
        }

    def _average_over_processes(self, loss: Tensor) -> float:
        """Average loss and gradients over the processes; returns the loss."""
        if self.n_processes > 1:
            own = [loss, *(p.grad for p in self.parameters if p.grad is not None)]
            flat = torch.cat([tensor.flatten() for tensor in own])
            dist.all_reduce(flat)
            flat /= self.n_processes
            sizes = [tensor.numel() for tensor in own]
            for tensor, mean in zip(own, flat.split(sizes), strict=True):
                tensor.copy_(mean.view_as(tensor))
        return float(loss)

    @torch.no_grad()
    def _move_average(self, decay: float) -> None:
        """Move the averaged weights."""
        own = list(self.model.parameters())
        get_ema_multi_avg_fn(decay)(list(self.average.parameters()), own, None)
        for kept, buffer in zip(self.average.buffers(), self.model.buffers(), strict=True):
            kept.copy_(buffer)

    @torch.no_grad()
    def write_metrics(
        self,
        folder: Path,
        n_steps: int,
        validate: Validate | None,
        on_validation: Listener | None,
    ) -> None:
        """Write a row of metrics."""
        if self.rank:
            return
        start = time.perf_counter()
        found = validate(self.average) if validate else {}
        self.seconds += time.perf_counter() - start
        loss = sum(self.losses) / len(self.losses) if self.losses else None
        rate = self.recipe.rate(max(0, self.n_done - 1), n_steps)
        row = {"step": self.n_done, "loss": loss, "rate": rate, "seconds": self.seconds, **found}
        self.losses = []
        add_metrics(folder, row)
        if on_validation:
            on_validation({**row, "n_steps": n_steps})

    def write_checkpoint(self, folder: Path) -> None:
        """Write a checkpoint, and the averaged weights to a separate file."""
        if self.rank:
            return
        tensors = {f"model/{name}": t for name, t in self.model.state_dict().items()}
        tensors |= {f"average/{name}": t for name, t in self.average.state_dict().items()}
        for place, state in self.optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer/{place}/{name}": t for name, t in state.items()}
        done = {"step": self.n_done, "seconds": self.seconds, "losses": self.losses}
        save_tensors(folder / CHECKPOINT, tensors, done=json.dumps(done))
        self.write_weights(folder)

    def write_weights(self, folder: Path) -> None:
        """Write the averaged weights."""
        if self.rank == 0:
            save_tensors(folder / WEIGHTS, self.average.state_dict())

    def restore(self, folder: Path) -> None:
        """Load the checkpoint, or the start if there is none yet."""
        path = folder / CHECKPOINT
        if not path.is_file():
            self.model.load_state_dict(load_tensors(folder / START))
            self.average.load_state_dict(self.model.state_dict())
            return
        done = json.loads(read_notes(path)["done"])
        self.n_done, self.seconds, self.losses = done["step"], done["seconds"], done["losses"]
        parts: dict[str, dict[str, Tensor]] = {"model": {}, "average": {}, "optimizer": {}}
        for name, tensor in load_tensors(path).items():
            part, _, rest = name.partition("/")
            parts[part][rest] = tensor.clone()
        self.model.load_state_dict(parts["model"])
        self.average.load_state_dict(parts["average"])
        state: dict[int, dict[str, Tensor]] = {}
        for name, tensor in parts["optimizer"].items():
            place, _, field_name = name.partition("/")
            state.setdefault(int(place), {})[field_name] = tensor
        groups = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict({"state": state, "param_groups": groups})


def _group_parameters(model: nn.Module, recipe: Recipe) -> list[dict[str, Any]]:
    """Groups of parameters by factor of the learning rate and by weight decay."""
    factors = {**getattr(model, "rate_multipliers", {}), **recipe.rate_multipliers}
    groups: dict[tuple[float, bool], list[nn.Parameter]] = {}
    unused = set(factors)
    for name, parameter in model.named_parameters():
        matching = [pattern for pattern in factors if fnmatch(name, pattern)]
        unused -= set(matching)
        factor = factors[matching[-1]] if matching else 1.0
        if parameter.requires_grad:
            groups.setdefault((factor, parameter.ndim > 1), []).append(parameter)
    if unused:
        raise ValueError(f"rate_multipliers: no parameter is named {sorted(unused)}")
    return [
        {
            "params": parameters, "lr": recipe.learning_rate, "multiplier": factor,
            "weight_decay": recipe.weight_decay * decays,
        }
        for (factor, decays), parameters in groups.items()
    ]  # fmt: skip


def _count_steps(run: _Run, validate: Validate | None) -> int:
    """Number of steps that fit into the budget, by the time of a few on a copy of the model."""
    recipe = run.recipe
    if recipe.minutes is None:
        assert recipe.n_steps is not None
        return recipe.n_steps
    start = time.perf_counter()
    trial = _Run(deepcopy(run.model), run.batches, run.loss, recipe)
    for step in range(1 + _TIMED):
        if step == 1:
            trial.seconds = 0.0
        trial.step(step, 1 + _TIMED)
    validated = time.perf_counter()
    if validate and run.rank == 0:
        with torch.no_grad():
            validate(trial.average)
    seconds = trial.seconds / _TIMED
    seconds += (time.perf_counter() - validated) / recipe.validate_every
    left = 60 * recipe.minutes - (time.perf_counter() - start)
    n_steps = max(1, int(left / seconds))
    n_steps = min(n_steps, recipe.n_steps or n_steps)
    if run.n_processes > 1:
        counted = torch.tensor(n_steps, device=run.device)
        dist.broadcast(counted, 0)
        n_steps = int(counted)
    return n_steps


def _mix_seed(*numbers: int) -> int:
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> np.uint64(1))
