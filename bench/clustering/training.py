"""Training of learned layers on the objective that they approach, without labels."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

_BATCH = 64
_SCALARS = ("step", "lam", "threshold")


def train(
    layer: nn.Module,
    loss: Callable[[Tensor], Tensor],
    n_points: int,
    *,
    n_steps: int,
    seed: int = 0,
    scalar_rate: float = 0.05,
    rate: float = 1e-3,
    clip: float | None = None,
) -> None:
    """Adam with cosine decay on ``loss(rows)``, the mean over a batch of points.

    Steps, penalties and thresholds learn at `scalar_rate`, matrices at `rate`; `clip` bounds the
    norm of the gradient. What is kept is the state, that at the start among them, with the lowest
    loss on a batch that is the same each time.
    """
    batch = min(_BATCH, n_points // 2)
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(_groups(layer, scalar_rate, rate))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, n_steps)
    judged = torch.randperm(n_points, generator=generator)[: min(4 * _BATCH, n_points // 2)]
    lowest, best = _value(loss, judged), _copy(layer)
    for step in range(1, n_steps + 1):
        optimizer.zero_grad()
        loss(torch.randperm(n_points, generator=generator)[:batch]).backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(layer.parameters(), clip)
        optimizer.step()
        schedule.step()
        if step % 20 == 0 or step == n_steps:
            reached = _value(loss, judged)
            if reached < lowest:
                lowest, best = reached, _copy(layer)
    layer.load_state_dict(best)


def _groups(layer: nn.Module, scalar_rate: float, rate: float) -> list[dict[str, object]]:
    scalars: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for name, parameter in layer.named_parameters():
        (scalars if name.split(".")[0] in _SCALARS else others).append(parameter)
    groups = ((scalars, scalar_rate), (others, rate))
    return [{"params": some, "lr": lr} for some, lr in groups if some]


@torch.no_grad()
def _value(loss: Callable[[Tensor], Tensor], rows: Tensor) -> float:
    return float(loss(rows))


def _copy(layer: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in layer.state_dict().items()}
