"""The cases of a command, one after another, each resumed if it is finished."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeVar

import pandas as pd

from ..results import code, instructions, processor, resume_table

_T = TypeVar("_T")


class Named(Protocol):
    @property
    def name(self) -> str: ...


_Case = TypeVar("_Case", bound=Named)


def chosen(names: Iterable[str] | None, known: Mapping[str, _T], argument: str) -> list[_T]:
    """Those that are named, in that order; None is all but those that run on request only."""
    if names is None:
        return [thing for thing in known.values() if not getattr(thing, "alone", False)]
    names = list(names)
    if unknown := set(names) - set(known):
        raise ValueError(f"{argument}: must be among {list(known)}, got {sorted(unknown)}")
    return [known[name] for name in names]


def run_cases(
    command: str,
    cases: list[_Case],
    run: Callable[[_Case], pd.DataFrame],
    *,
    peers: Mapping[str, str | None],
    rounds: int,
    n_jobs: int,
    seed: int,
    directory: Path | None,
    columns: list[str],
) -> pd.DataFrame:
    """The rows of all cases; one whose data are missing has a row that says so.

    A case is known by the command, its name, the versions of the peers and of what ours is built
    on, rounds, threads, seed, source, processor and instruction sets.
    """
    if min(rounds, n_jobs) < 1 or seed < 0:
        raise ValueError(
            f"rounds, n_jobs: must be >= 1 and seed >= 0, got {rounds}, {n_jobs} and {seed}"
        )
    key: dict[str, Any] = {
        "command": command,
        "peers": peers,
        "rounds": rounds,
        "n_jobs": n_jobs,
        "seed": seed,
        "machine": processor(),
        "instructions": instructions(),
        **code(),
    }
    tables = []
    for case in cases:
        try:
            table = resume_table(lambda case=case: run(case), key | {"case": case.name}, directory)  # type: ignore[misc]
        except FileNotFoundError as error:
            table = pd.DataFrame([{"case": case.name, "note": str(error)}])
        tables.append(table)
    if not tables:
        raise ValueError("cases: must name at least one")
    return pd.concat(tables, ignore_index=True).reindex(columns=columns)
