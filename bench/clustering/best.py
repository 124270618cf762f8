"""The best learned method beside the best solved one, by the same affinity steps."""

import pandas as pd

from .study import Lines

_FAMILIES = ("learned", "solved", "baseline")


def best_lines(table: pd.DataFrame) -> Lines:
    """A line for each chain of steps: the best method of each family, and who is ahead.

    Settings are those chosen without labels; the method among them is the one of smallest error,
    for every family alike. Deviations are over the seeds, of means over the trials; learned is
    ahead beyond the spread where its error is smaller by more than the sum of both deviations. The
    last column counts the trials in which its mean error is the smaller one: these differ by more
    than the seeds do.
    """
    headings = (
        "data", "features", "steps", "best learned", "error %", "best solved", "error %",
        "best baseline", "error %", "learned ahead by", "beyond the spread", "in trials",
    )  # fmt: skip
    chosen = table[(table.selection == "label-free") & table.accuracy.notna()]
    rows = []
    for about, group in chosen.groupby(["data", "features", "steps"], sort=False):
        best = {family: _best(group[group.family == family]) for family in _FAMILIES}
        if best["learned"] is None or best["solved"] is None:
            continue
        (name, learned, spread), (rival, solved, other) = best["learned"], best["solved"]
        by_trial = group.groupby(["trial", "method"]).accuracy.mean().unstack()
        won = int((by_trial[name] > by_trial[rival]).sum())
        cells = [cell for family in _FAMILIES for cell in _cells(best[family])]
        ahead = "yes" if solved - learned > spread + other else "no"
        rows.append(
            (
                *map(str, about),
                *cells,
                f"{solved - learned:+.2f}",
                ahead,
                f"{won} of {len(by_trial)}",
            )
        )
    return headings, rows


def _best(group: pd.DataFrame) -> tuple[str, float, float] | None:
    """The method of smallest error with its mean and deviation."""
    if group.empty:
        return None
    errors = 100 * (1 - group.groupby(["method", "fit_seed", "seed"]).accuracy.mean())
    means = errors.groupby("method").mean()
    name = str(means.idxmin())
    return name, float(means[name]), float(errors[name].std(ddof=0))


def _cells(found: tuple[str, float, float] | None) -> tuple[str, str]:
    return ("-", "-") if found is None else (found[0], f"{found[1]:.2f} ± {found[2]:.2f}")
