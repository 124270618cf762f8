"""`twinsolve speed self-expression` and `twinsolve speed sparse-coding`."""

from collections.abc import Iterable
from pathlib import Path

import pandas as pd

from .cases import chosen, run_cases
from .peers import SELF_EXPRESSION_PEERS, SPARSE_CODING_PEERS, Peer
from .problems import SELF_EXPRESSION, SPARSE_CODING, Case
from .race import COLUMNS, Progress, race


def time_self_expression(
    *,
    cases: Iterable[str] | None = None,
    peers: Iterable[str] | None = None,
    rounds: int = 3,
    n_jobs: int = 1,
    seed: int = 0,
    directory: Path | None = None,
    progress: Progress | None = None,
) -> pd.DataFrame:
    """Time sparse self-expression beside its peers, at equal certified gap.

    Every row i of a data set is expressed by the others: ``min |x_i - c X|^2 + lam_i |c|_1`` with
    ``c_i = 0``. Ours solves all rows, and its time includes its Gram matrix and its certificate. A
    peer solves a random sample of the rows, the same in all rounds, with the loosest tolerance
    whose worst certified gap on them is at most 1e-6. In each round all run once, one after
    another. Gaps are certified from the codes alone, at the best multiple of the residual: celer,
    which extrapolates a better dual point, would by its own certificate stop somewhat earlier.

    Parameters
    ----------
    cases : iterable of str, optional
        Among ``synthetic-500`` to ``synthetic-20000``, ``yale-b``, ``coil-20`` and
        ``coil-20-dense``; and, ours alone, ``synthetic-40000`` and ``large`` (70,000 rows, gap
        1e-4). None is all but the last two.
    peers : iterable of str, optional
        Among ``scikit-learn``, ``scikit-learn-gram``, ``celer``, ``skglm``,
        ``spams-active-support`` and ``spams-gram``. None is all of them.
    rounds : int, default=3
    n_jobs : int, default=1
        Threads of ours, and of the peers that offer them; the others are left out if it is not 1,
        and ours on one thread joins.
    seed : int, default=0
        Of the generated data and the samples.
    directory : Path, optional
        Folder that keeps the finished cases: one that ran before on this processor, with the same
        settings, versions of the peers and source, is read instead of run.
    progress : callable, optional
        ``progress(iterable, total)`` wraps the iteration over the steps of each case.

    Returns
    -------
    DataFrame
        A row for each case and solver. Times are ``ms_per_row``, and ``ratio`` to ours in the same
        round: medians over the rounds, with the lowest and highest. ``gap`` is the worst certified
        one, ``nonzeros`` and ``passes`` (products with all atoms) are means over rows,
        ``memory_mib`` is the peak resident memory of ours beyond the input. ``note`` says why a
        solver or a case was left out.

    Raises
    ------
    ValueError
        If a case or peer is unknown, ``rounds < 1``, ``n_jobs < 1`` or ``seed < 0``.

    Examples
    --------
    >>> from twinsolve.bench import time_self_expression
    >>> table = time_self_expression(cases=["synthetic-500"], peers=["celer"])  # doctest: +SKIP
    >>> table[["solver", "ms_per_row", "ratio"]]  # doctest: +SKIP
    """
    return _time(
        "self-expression",
        chosen(cases, SELF_EXPRESSION, "cases"),
        chosen(peers, SELF_EXPRESSION_PEERS, "peers"),
        rounds=rounds,
        n_jobs=n_jobs,
        seed=seed,
        directory=directory,
        progress=progress,
    )


def time_sparse_coding(
    *,
    cases: Iterable[str] | None = None,
    peers: Iterable[str] | None = None,
    rounds: int = 3,
    n_jobs: int = 1,
    seed: int = 0,
    directory: Path | None = None,
    progress: Progress | None = None,
) -> pd.DataFrame:
    """Time sparse coding in a random dictionary beside its peers, at equal certified gap.

    1,000 unit-norm signals, each of 12 among 1,024 atoms and 5 % noise, in 256 dimensions, with one
    penalty for all. Rounds, samples and tolerances are those of `time_self_expression`.

    Parameters
    ----------
    cases : iterable of str, optional
        Among ``dictionary-10`` and ``dictionary-50``: the mean of `lam_max` over the signals,
        divided by that number, is the penalty. None is both.
    peers : iterable of str, optional
        Among ``scikit-learn-cd``, ``scikit-learn-lars``, ``celer``, ``skglm`` and ``spams``. None
        is all of them.
    rounds, n_jobs, seed, directory, progress
        As in `time_self_expression`.

    Returns
    -------
    DataFrame
        As in `time_self_expression`.

    Raises
    ------
    ValueError
        If a case or peer is unknown, ``rounds < 1``, ``n_jobs < 1`` or ``seed < 0``.

    Examples
    --------
    >>> from twinsolve.bench import time_sparse_coding
    >>> table = time_sparse_coding(peers=["spams"])  # doctest: +SKIP
    """
    return _time(
        "sparse-coding",
        chosen(cases, SPARSE_CODING, "cases"),
        chosen(peers, SPARSE_CODING_PEERS, "peers"),
        rounds=rounds,
        n_jobs=n_jobs,
        seed=seed,
        directory=directory,
        progress=progress,
    )


def _time(
    command: str,
    cases: list[Case],
    peers: list[Peer],
    *,
    rounds: int,
    n_jobs: int,
    seed: int,
    directory: Path | None,
    progress: Progress | None,
) -> pd.DataFrame:
    def run(case: Case) -> pd.DataFrame:
        return race(case, peers, rounds=rounds, n_jobs=n_jobs, seed=seed, progress=progress)

    return run_cases(
        command,
        cases,
        run,
        peers={peer.name: peer.version for peer in peers},
        rounds=rounds,
        n_jobs=n_jobs,
        seed=seed,
        directory=directory,
        columns=COLUMNS,
    )
