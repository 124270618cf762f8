from threading import Event, Timer

import pytest
import typer
from numba import njit
from rich.console import Console
from typer.testing import CliRunner

from twinsolve.bench import terminal
from twinsolve.bench.terminal import Commands, console, progress


def test_a_redirected_run_tells_its_progress_in_lines_as_it_goes(capfd, monkeypatch):
    monkeypatch.setattr(terminal, "_BETWEEN_LINES", 0.0)
    seen = []
    for job in progress("Timing")(range(3), 3):
        seen.append(capfd.readouterr().err)
        assert job == len(seen) - 1
    seen.append(capfd.readouterr().err)
    ends = [", about 0 s left", ", about 0 s left", ""]
    lines = [f"Timing: {done} of 3 done in 0 s{end}\n" for done, end in enumerate(ends, 1)]
    assert seen == ["", *lines]


def test_a_long_run_says_after_its_first_job_how_long_it_takes(capfd, monkeypatch):
    clock = iter((0.0, 4.0, 8.0, 12.0))
    monkeypatch.setattr(terminal, "monotonic", lambda: next(clock))
    jobs = progress("Timing")(range(200), 200)
    for _ in range(3):
        next(jobs)
    assert capfd.readouterr().err == "Timing: 1 of 200 done in 4 s, about 13 min left\n"


def test_lines_of_progress_are_few_and_the_last_one_comes(capfd):
    assert list(progress("Timing")(range(1000), 1000)) == list(range(1000))
    assert capfd.readouterr().err == "Timing: 1000 of 1000 done in 0 s\n"


class TimerByHand(Timer):
    """A timer that runs out when the test says so, unless it was cancelled before."""

    def start(self):
        TimerByHand.latest = self

    def run_out(self):
        if not self.finished.is_set():
            self.function()


@pytest.mark.parametrize(
    ("runs_out", "compiles", "times"),
    [("before the first job", True, 1), ("before the first job", False, 0), ("later", True, 0)],
)
def test_a_wait_is_explained_once_and_only_if_solvers_are_compiled(
    runs_out, compiles, times, capfd, monkeypatch
):
    monkeypatch.setattr(terminal, "Timer", TimerByHand)
    monkeypatch.setattr(terminal, "_compiling_told", Event())

    def jobs():
        if compiles:
            njit(lambda x: x + 1)(1)
        if runs_out == "before the first job":
            TimerByHand.latest.run_out()
        yield 0
        TimerByHand.latest.run_out()

    for _ in range(2):
        assert list(progress("Timing")(jobs(), 1)) == [0]
    assert capfd.readouterr().err.count("Solvers are compiled") == times


@pytest.mark.parametrize(("terminal_", "width"), [(True, 90), (False, 120)])
def test_output_is_as_wide_as_the_terminal(terminal_, width, monkeypatch):
    monkeypatch.setenv("COLUMNS", "90")
    monkeypatch.setattr(Console, "is_terminal", terminal_)
    assert console().width == width


def test_brackets_are_shown_as_they_are(capsys):
    """As in names of settings and of folders."""
    console().print("mine.csv:drop=[id,3], written to [bold]/", soft_wrap=True)
    assert "mine.csv:drop=[id,3], written to [bold]/" in capsys.readouterr().out


def test_a_stopped_command_says_what_is_kept():
    app = typer.Typer(cls=Commands)

    @app.callback()
    def group():
        pass

    @app.command()
    def work():
        stop = KeyboardInterrupt()
        stop.add_note("runs keeps 2 of 4.")
        raise stop

    done = CliRunner().invoke(app, ["work"])
    assert done.exit_code == 130
    assert done.stderr == "Stopped.\nruns keeps 2 of 4.\n"
