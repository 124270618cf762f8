"""ListOps: expressions of nested operators on lists of digits, and their values."""

from dataclasses import dataclass

import numpy as np
from sklearn.utils import check_random_state

from ..validation import check_integer

LIST_OPS_TOKENS = ("", *map(str, range(10)), "[MIN", "[MAX", "[MED", "[SM", "]")
_FIRST_DIGIT, _FIRST_OPERATOR, _END = (LIST_OPS_TOKENS.index(x) for x in ("0", "[MIN", "]"))
_N_OPERATORS = _END - _FIRST_OPERATOR
_BLOCK = 2048  # expressions that are drawn at a time
_FUTILE = 50  # blocks without an expression of the length


@dataclass(frozen=True)
class _Level:
    """Nodes of one depth, in order: the arguments of an operator stand next to each other.

    For each node: its tree, its content (a digit or an operator), and its number of arguments.
    """

    trees: np.ndarray  # the expression of each
    content: np.ndarray  # a digit, or the number of an operator
    counts: np.ndarray  # of arguments: 0 of a digit


def make_list_ops(
    n_samples: int = 100,
    *,
    length: tuple[int, int] = (50, 200),
    max_depth: int = 10,
    max_args: int = 10,
    nested: float = 0.25,
    random_state: int | np.random.RandomState | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Draw ListOps expressions, such as ``[MAX 2 9 [MIN 4 7 ] 0 ]``, and compute their values.

    Operators are MIN, MAX, MED (the median, rounded down) and SM (the sum modulo 10), of 2 to
    `max_args` arguments. An argument is an expression with probability `nested` and a digit
    otherwise. At depth `max_depth` all arguments are digits. Expressions outside of the range of
    lengths are drawn again. Values are not equally frequent: compare an accuracy with the share of
    the most frequent value.

    Parameters
    ----------
    n_samples : int, default=100
    length : pair of int, default=(50, 200)
        Least and largest number of tokens: digits, operators with their brackets, and closing
        brackets.
    max_depth : int, default=10
        Largest number of operators within each other.
    max_args : int, default=10
    nested : float, default=0.25
        Probability that an argument is an expression.
    random_state : int, RandomState or None
        With one seed, more samples begin with the same expressions.

    Returns
    -------
    X : int64 ndarray of shape (n_samples, length[1])
        Indices into `LIST_OPS_TOKENS`. Rows are padded with 0 on the right.
    y : int64 ndarray of shape (n_samples,)
        Values, 0 to 9.

    Raises
    ------
    ValueError
        If a number is outside its range, or no expressions of that length come up.

    References
    ----------
    Nangia and Bowman, "ListOps: a diagnostic dataset for latent tree learning" (2018); Tay et al.,
    "Long Range Arena" (2021), whose expressions have 500 to 2,000 tokens, depth 10 and 10
    arguments.

    Examples
    --------
    >>> from twinsolve.datasets import make_list_ops
    >>> from twinsolve.datasets.list_ops import LIST_OPS_TOKENS
    >>> X, y = make_list_ops(1, length=(7, 9), random_state=1)
    >>> " ".join(LIST_OPS_TOKENS[token] for token in X[0] if token), int(y[0])
    ('[MAX [MIN 7 2 ] 2 ]', 2)
    """
    if len(length) != 2:
        raise ValueError(
            f"length: must be a pair, the least and the largest length, got {length!r}"
        )
    low = check_integer(length[0], "length[0]", 4)
    high = check_integer(length[1], "length[1]", low)
    check_integer(n_samples, "n_samples", 1)
    check_integer(max_depth, "max_depth", 1)
    check_integer(max_args, "max_args", 2)
    if not 0 <= nested <= 1:
        raise ValueError(f"nested: must be from 0 to 1, got {nested}")
    rng = check_random_state(random_state)
    tokens, values, n_found, n_futile = [], [], 0, 0
    while n_found < n_samples:
        levels = _draw_levels(rng, high, max_depth, max_args, nested)
        levels, n_kept = _keep_lengths(levels, low, high)
        n_futile = 0 if n_kept else n_futile + 1
        if n_futile == _FUTILE:
            raise ValueError(
                f"length: no expression among {_FUTILE * _BLOCK:,} has {low} to {high} tokens; "
                "change length, max_depth, max_args or nested"
            )
        if n_kept:
            tokens.append(_write_tokens(levels, high))
            values.append(_evaluate(levels))
            n_found += n_kept
    return np.concatenate(tokens)[:n_samples], np.concatenate(values)[:n_samples]


def _draw_levels(
    rng: np.random.RandomState, longest: int, max_depth: int, max_args: int, nested: float
) -> list[_Level]:
    """Draw a block of expressions, as nodes by depth; too long ones are left unfinished."""
    levels: list[_Level] = []
    trees, lengths = np.arange(_BLOCK), np.zeros(_BLOCK)
    while len(trees):
        n, depth = len(trees), len(levels)
        operators = rng.random_sample(n) < (nested if depth else 1.0)
        operators &= depth < max_depth
        content = np.where(operators, rng.randint(_N_OPERATORS, size=n), rng.randint(10, size=n))
        counts = np.where(operators, rng.randint(2, max_args + 1, n), 0)
        levels.append(_Level(trees, content, counts))
        lengths += np.bincount(trees, 1 + operators, _BLOCK)
        trees = np.repeat(trees, counts * (lengths <= longest)[trees])
    return levels


def _keep_lengths(levels: list[_Level], low: int, high: int) -> tuple[list[_Level], int]:
    """Return the expressions of low to high tokens, and their number."""
    sizes = [np.bincount(level.trees, 1 + (level.counts > 0), _BLOCK) for level in levels]
    lengths = np.sum(sizes, axis=0)
    kept = (low <= lengths) & (lengths <= high)
    masks = [kept[level.trees] for level in levels]
    kept_levels = [
        _Level(level.trees[mask], level.content[mask], level.counts[mask])
        for level, mask in zip(levels, masks, strict=True)
        if mask.any()
    ]
    return kept_levels, kept.sum()


def _count_tokens(levels: list[_Level]) -> list[np.ndarray]:
    """Return the number of tokens of each node, by depth."""
    lengths: list[np.ndarray] = []
    for level in reversed(levels):
        n_tokens, inner = np.ones_like(level.counts), level.counts > 0
        if inner.any():
            first = _first_arguments(level.counts[inner])
            n_tokens[inner] = 2 + np.add.reduceat(lengths[-1], first)
        lengths.append(n_tokens)
    return lengths[::-1]


def _first_arguments(counts: np.ndarray) -> np.ndarray:
    """Return the index of each operator's first argument, at the next depth."""
    return np.cumsum(counts) - counts


def _evaluate(levels: list[_Level]) -> np.ndarray:
    """Return the values of the expressions."""
    values = levels[-1].content
    for level in levels[-2::-1]:
        inner, level_values = level.counts > 0, level.content.copy()
        level_values[inner] = _apply(level.content[inner], level.counts[inner], values)
        values = level_values
    return values


def _apply(operators: np.ndarray, counts: np.ndarray, arguments: np.ndarray) -> np.ndarray:
    """Apply operators, each to the next `counts` arguments."""
    first = _first_arguments(counts)
    parents = np.repeat(np.arange(len(counts)), counts)
    ordered = arguments[np.lexsort((arguments, parents))]
    median = (ordered[first + (counts - 1) // 2] + ordered[first + counts // 2]) // 2
    total = np.add.reduceat(arguments, first) % 10
    return np.choose(operators, (ordered[first], ordered[first + counts - 1], median, total))


def _write_tokens(levels: list[_Level], width: int) -> np.ndarray:
    """Write the expressions as rows of tokens, padded with zeros."""
    lengths = _count_tokens(levels)
    tokens = np.zeros((len(levels[0].trees), width), dtype=np.int64)
    rows = np.arange(len(tokens))
    starts = np.zeros_like(rows)
    for depth, level in enumerate(levels):
        inner = level.counts > 0
        tokens[rows, starts] = np.where(inner, _FIRST_OPERATOR, _FIRST_DIGIT) + level.content
        tokens[rows[inner], (starts + lengths[depth])[inner] - 1] = _END
        if inner.any():
            counts = level.counts[inner]
            offsets = np.cumsum(lengths[depth + 1]) - lengths[depth + 1]
            starts = offsets + np.repeat(
                starts[inner] + 1 - offsets[_first_arguments(counts)], counts
            )
            rows = np.repeat(rows, level.counts)
    return tokens
