"""What the cases of `twinsolve speed filters` are made of."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from .contest import OURS, Entrant


@dataclass(frozen=True, eq=False)
class Method:
    """A way to do it: ``run(*input)`` returns the result, on `n_jobs` threads, by a `package`."""

    name: str
    package: str
    run: Callable[..., Any]
    n_jobs: int = 1


def on_threads(run: Callable[..., Any], n_jobs: int) -> list[Method]:
    """Ours, that takes `n_jobs`: on as many threads as asked for, and on one."""
    methods = [Method(OURS, OURS, partial(run, n_jobs=n_jobs), n_jobs)]
    if n_jobs > 1:
        methods.append(Method(f"{OURS}, one thread", OURS, partial(run, n_jobs=1)))
    return methods


@dataclass(frozen=True, eq=False)
class Contest:
    """Inputs, each the arguments of a call, and methods: first ours, that the others stand beside.

    ``measure(results, first)`` says what the results of all inputs are worth and how far they are
    from the first method's, under names among the columns.
    """

    inputs: Sequence[tuple[Any, ...]]
    methods: list[Method]
    measure: Callable[[list[Any], list[Any]], dict[str, float]]


@dataclass(frozen=True)
class Case:
    """A contest, on numbers of a dtype; ``make(seed, n_jobs)`` prepares it.

    Where it is to run `once`, its many inputs are the repetition; where its memory is of interest,
    ours is run again in a process of its own.
    """

    about: str
    make: Callable[[int, int], Contest]
    dtype: str
    once: bool = False
    memory: bool = True


class Calls(Entrant):
    """A method on all inputs; its package has a version if it is installed."""

    def __init__(
        self, method: Method, inputs: Sequence[tuple[Any, ...]], version: str | None, note: str = ""
    ) -> None:
        self.method, self.inputs, self.n_jobs, self.note = method, inputs, method.n_jobs, note
        self.labels = {"method": method.name, "package": method.package}
        self.labels |= {"version": version, "n_jobs": method.n_jobs}
        self.results: list[Any] = []

    def prepare(self) -> None:
        self.method.run(*self.inputs[0])

    def run(self) -> None:
        self.results = [self.method.run(*arguments) for arguments in self.inputs]
