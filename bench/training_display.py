"""Show the training of a study: networks, steps, loss, learning rate, speed and time left."""

from collections.abc import Iterable, Iterator
from time import monotonic
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from .terminal import LONG, write_time

_TIMED = 20  # steps of the first network, after the first one
_BETWEEN_LINES = 10.0  # seconds


class TrainingDisplay:
    """Bars on a terminal, lines in a file.

    It wraps the jobs of each phase of a study as its ``progress``, and `on_step` is its listener.

    Parameters
    ----------
    phases : iterable of str
        Names of the phases, in their order.
    screen : Console, optional
        By default, standard error.
    """

    def __init__(self, phases: Iterable[str], screen: Console | None = None) -> None:
        self.phases = iter(phases)
        self.screen = screen or Console(stderr=True)
        self._bars: Progress | None = None
        self._began: tuple[int, float] | None = None  # step and time of the first that was seen
        self._estimated = False
        self._words = ""
        self._said = monotonic()

    def __call__(self, jobs: Iterable[Any], total: int) -> Iterator[Any]:
        """Yield the jobs of the next phase, and show how many are done."""
        phase = next(self.phases)
        if not self.screen.is_terminal:
            yield from self._print_jobs(jobs, total, phase)
            return
        columns = (
            "{task.description}",
            BarColumn(bar_width=12),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
        )
        own = [TextColumn(x) if isinstance(x, str) else x for x in columns]
        with Progress(*own, console=self.screen) as self._bars:
            networks = self._bars.add_task(phase, total=total)
            self._steps = self._bars.add_task("", total=None, visible=False)
            for job in jobs:
                self._bars.advance(networks)
                yield job

    def _print_jobs(self, jobs: Iterable[Any], total: int, phase: str) -> Iterator[Any]:
        self._words = f"{phase}: 0 of {total} networks done"
        for done, job in enumerate(jobs, start=1):
            self._words = f"{phase}: {done} of {total} networks done"
            self._print_line(self._words, now=done == total)
            yield job

    def on_step(self, row: dict[str, Any]) -> None:
        """Show a step, and once how long the study will take at most."""
        self._estimate(row)
        about = (
            f"{row['row']}, seed {row['seed']}: loss {row['loss']:.4g}, rate {row['rate']:.2g}, "
            f"{row['samples_per_second']:,.0f} samples/s"
        )
        if self._bars:
            self._bars.update(
                self._steps, description=about, completed=row["step"], total=row["n_steps"],
                visible=True,
            )  # fmt: skip
        else:
            step = f"step {row['step']:,} of {row['n_steps']:,}"
            self._print_line(f"{self._words}; {about}, {step}")

    def _print_line(self, words: str, now: bool = False) -> None:
        if now or monotonic() - self._said >= _BETWEEN_LINES:
            self.screen.print(words, soft_wrap=True, highlight=False)
            self._said = monotonic()

    def _estimate(self, row: dict[str, Any]) -> None:
        """Say how long all steps take at the speed of the first, unless that is short."""
        if self._estimated:
            return
        if self._began is None:
            self._began = row["step"], monotonic()
        n_timed = row["step"] - self._began[0]
        if n_timed >= _TIMED:
            self._estimated = True
            each = (monotonic() - self._began[1]) / n_timed
            seconds = row["steps_of_study"] * each
            if seconds >= LONG:
                self.screen.print(
                    f"All networks take at most {write_time(seconds)} at the speed of the first, "
                    f"{1 / each:,.1f} steps/s; what is kept is not trained again.",
                    soft_wrap=True, highlight=False,
                )  # fmt: skip
