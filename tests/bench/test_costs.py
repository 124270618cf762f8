"""What a network costs beside another one."""

import pytest
import torch
from torch import Tensor, nn

from twinsolve.bench import costs


class Slow(nn.Linear):
    """A layer whose pass takes some seconds of a clock that stands still otherwise."""

    def __init__(self, seconds: float, clock: list[float]) -> None:
        super().__init__(2, 2)
        self.seconds, self.clock = seconds, clock

    def forward(self, x: Tensor) -> Tensor:
        self.clock.append(self.clock[-1] + self.seconds)
        return super().forward(x)

    def __deepcopy__(self, memo: dict[int, object]) -> "Slow":
        return self


def test_speed_is_that_of_the_plain_network_over_the_time_it_takes(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(costs, "process_time", lambda: clock[-1])
    found = costs.speed_ratios(Slow(4.0, clock), Slow(1.0, clock), torch.ones(3, 2))
    assert found == {"inference": pytest.approx(0.25), "training": pytest.approx(0.25)}
