import time

import pytest

from twinsolve.bench import terminal
from twinsolve.bench.terminal import progress


def slow_first(n, seconds):
    for job in range(n):
        time.sleep(0 if job else seconds)
        yield job


def test_a_redirected_run_tells_its_progress_in_lines_as_it_goes(capfd, monkeypatch):
    monkeypatch.setattr(terminal, "_BETWEEN_LINES", 0.0)
    seen = []
    for job in progress("Timing")(range(3), 3):
        seen.append(capfd.readouterr().err)
        assert job == len(seen) - 1
    seen.append(capfd.readouterr().err)
    assert seen == ["", *(f"Timing: {done} of 3 done in 0 s\n" for done in (1, 2, 3))]


def test_lines_of_progress_are_few_and_the_last_one_comes(capfd):
    assert list(progress("Timing")(range(1000), 1000)) == list(range(1000))
    assert capfd.readouterr().err == "Timing: 1000 of 1000 done in 0 s\n"


@pytest.mark.parametrize(("seconds", "times"), [(0.4, 1), (0.0, 0)])
def test_a_wait_for_the_first_job_is_explained_once(seconds, times, capfd, monkeypatch):
    monkeypatch.setattr(terminal, "_PATIENCE", 0.1)
    assert list(progress("Timing")(slow_first(3, seconds), 3)) == [0, 1, 2]
    time.sleep(0.2)
    assert capfd.readouterr().err.count("solvers are compiled when first used") == times
