"""What a user sees while networks train."""

from io import StringIO

import pytest
from rich.console import Console

from twinsolve.bench import training_display
from twinsolve.bench.training_display import TrainingDisplay

ROW = {
    "row": "twicing", "seed": 1, "loss": 0.31234, "rate": 2e-3, "samples_per_second": 5120.4,
    "n_steps": 600,
}  # fmt: skip


class Clock:
    def __init__(self, monkeypatch):
        self.now = 0.0
        monkeypatch.setattr(training_display, "monotonic", lambda: self.now)


def train(display, clock, n_steps, seconds, steps_of_study):
    """Two networks, the second of which takes its steps after the first is done."""

    def jobs():
        yield 0
        for step in range(1, n_steps + 1):
            clock.now += seconds
            display.on_step(ROW | {"step": step, "steps_of_study": steps_of_study})
        yield 1

    assert list(display(jobs(), 2)) == [0, 1]


@pytest.mark.parametrize(
    ("steps_of_study", "told"),
    [(200, None), (400, "50 s"), (4800, "10 min"), (48_000, "1 h 40 min")],
)
def test_lines_tell_the_step_and_once_the_time_that_all_take(steps_of_study, told, monkeypatch):
    clock, screen = Clock(monkeypatch), StringIO()
    display = TrainingDisplay(["all seeds"], Console(file=screen, width=100))
    train(display, clock, 150, 0.125, steps_of_study)
    lines = screen.getvalue().splitlines()
    *estimates, step, last = lines
    assert len(estimates) == (told is not None)
    if told:
        assert f"at most {told} at the speed of the first, 8.0 steps/s" in estimates[0]
    assert step == (
        "all seeds: 1 of 2 networks done; twicing, seed 1: loss 0.3123, rate 0.002, 5,120 "
        "samples/s, step 80 of 600"
    )
    assert last == "all seeds: 2 of 2 networks done"


def test_a_terminal_shows_bars(monkeypatch):
    clock, screen = Clock(monkeypatch), StringIO()
    display = TrainingDisplay(["all seeds"], Console(file=screen, width=100, force_terminal=True))
    train(display, clock, 3, 0.125, 400)
    shown = screen.getvalue()
    assert "all seeds" in shown
    assert "twicing, seed 1: loss 0.3123" in shown
    assert "3/600" in shown
    assert "2/2" in shown
