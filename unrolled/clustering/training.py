"""Training on the rows of one data set by Adam: reproducible, without changes of global state."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from sklearn.utils import check_random_state
from torch import Tensor, nn

from ..attention import check_count, check_positive

_JUDGED_EVERY = 20


def draw_seed(random_state: int | np.random.RandomState | None) -> int:
    """Draw a seed for torch from scikit-learn's `random_state`."""
    return int(check_random_state(random_state).randint(2**31 - 1))


def train(
    module: nn.Module,
    loss: Callable[[Tensor], Tensor],
    n_rows: int,
    *,
    max_iter: int,
    batch_size: int,
    learning_rate: float,
    seed: int,
    clip: float | None = None,
    rates: Mapping[str, float] | None = None,
    n_judged: int = 0,
) -> list[float]:
    """Minimise a loss over the parameters of a module by Adam with cosine decay.

    Each step takes the next batch of a random order of the rows. When all rows have been used, a
    new order is drawn.

    Parameters
    ----------
    module : nn.Module
        Trained in place, on its own device.
    loss : callable
        ``loss(rows)`` for a batch of row indices, on the module's device: a scalar Tensor.
    n_rows : int
    max_iter : int
        Number of steps, each on one batch, >= 0.
    batch_size : int
        At least 1; more than `n_rows` takes all rows.
    learning_rate : float
        Learning rate of the first step, > 0; it decays to zero along half a cosine.
    seed : int
        Seed of the order of the rows.
    clip : float, optional
        Largest norm of the gradient, > 0. None does not clip.
    rates : dict, optional
        Learning rates > 0 of the parameters in some attributes of the module, such as
        ``{"step": 0.05}``; all other parameters have `learning_rate`.
    n_judged : int, default=0
        Number of rows, drawn once, whose loss is measured before the first step, every 20 steps and
        after the last step. The state with the lowest loss is kept. 0 keeps the last state.

    Returns
    -------
    list of float
        The loss of each batch before its step.

    Raises
    ------
    ValueError
        If an argument is out of range, or the loss is not finite.

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled.attention import Positive
    >>> from twinsolve.unrolled.clustering.training import train
    >>> X, scale = torch.tensor([1.0, 2.0, 3.0]), Positive(1.0, learnable=True)
    >>> curve = train(scale, lambda rows: (scale() - X[rows]).square().mean(), 3,
    ...               max_iter=100, batch_size=3, learning_rate=0.1, seed=0)
    >>> len(curve), round(scale().item(), 1)
    (100, 2.0)
    """
    max_iter = check_count(max_iter, "max_iter", 0)
    batch_size = check_count(batch_size, "batch_size", 1)
    learning_rate = check_positive(learning_rate, "learning_rate")
    n_judged = check_count(n_judged, "n_judged", 0)
    parameters = [p for p in module.parameters() if p.requires_grad]
    optimizer = torch.optim.Adam(_group_parameters(module, rates or {}), lr=learning_rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, max(max_iter, 1))
    batches = _draw_batches(n_rows, batch_size, seed)
    device = parameters[0].device
    keeper = _BestState(module, loss, _draw_judged_rows(n_rows, n_judged, seed).to(device))
    curve: list[float] = []
    with torch.enable_grad():
        for _ in range(max_iter):
            if len(curve) % _JUDGED_EVERY == 0:
                keeper.judge()
            value = loss(next(batches).to(device))
            curve.append(value.item())
            if not np.isfinite(curve[-1]):
                raise ValueError(
                    f"learning_rate: the loss is {curve[-1]} at step {len(curve)} with "
                    f"{learning_rate}; lower it, or rescale the data"
                )
            optimizer.zero_grad()
            value.backward()
            if clip is not None:
                nn.utils.clip_grad_norm_(parameters, clip)
            optimizer.step()
            schedule.step()
    keeper.judge()
    keeper.restore()
    return curve


class _BestState:
    """Keeps the module's state of lowest loss on `rows`; does nothing if there are no rows."""

    def __init__(self, module: nn.Module, loss: Callable[[Tensor], Tensor], rows: Tensor) -> None:
        self.module, self.loss, self.rows = module, loss, rows
        self.lowest, self.state = np.inf, module.state_dict()

    @torch.no_grad()
    def judge(self) -> None:
        """Keep the present state if its loss is the lowest so far."""
        if len(self.rows) and (loss := self.loss(self.rows).item()) < self.lowest:
            self.lowest = loss
            self.state = {key: value.clone() for key, value in self.module.state_dict().items()}

    def restore(self) -> None:
        if len(self.rows):
            self.module.load_state_dict(self.state)


def _group_parameters(module: nn.Module, rates: Mapping[str, float]) -> list[dict[str, Any]]:
    """Group trainable parameters by learning rate, for the optimizer."""
    groups: dict[float | None, list[nn.Parameter]] = {None: []}
    for name, parameter in module.named_parameters():
        rate = rates.get(name.partition(".")[0])
        if parameter.requires_grad:
            groups.setdefault(rate, []).append(parameter)
    return [
        {"params": parameters} | ({} if rate is None else {"lr": check_positive(rate, "rates")})
        for rate, parameters in groups.items()
        if parameters
    ]


def _draw_judged_rows(n_rows: int, n_judged: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed + 1)
    return torch.randperm(n_rows, generator=generator)[:n_judged]


def _draw_batches(n_rows: int, size: int, seed: int) -> Iterator[Tensor]:
    """Yield batches of row indices without end: one random order of all rows after another."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        yield from torch.randperm(n_rows, generator=generator).split(size)
