import ast
import statistics

import numpy as np
import pytest

from twinsolve.datasets import make_list_ops
from twinsolve.datasets.list_ops import LIST_OPS_TOKENS

OPERATORS = {
    "MIN": min,
    "MAX": max,
    "MED": lambda arguments: int(statistics.median(arguments)),
    "SM": lambda arguments: sum(arguments) % 10,
}


def expression(tokens):
    """The tokens as nested tuples, ("MAX", 2, 9, ("MIN", 4, 7)), read by Python."""
    words = [LIST_OPS_TOKENS[token] for token in tokens if token]
    written = " ".join(f'("{word[1:]}",' if word[0] == "[" else f"{word}," for word in words)
    return ast.literal_eval(written.replace("],", "),").rstrip(","))


def value(part):
    return part if isinstance(part, int) else OPERATORS[part[0]]([value(x) for x in part[1:]])


def depth(part):
    return 0 if isinstance(part, int) else 1 + max(depth(x) for x in part[1:])


@pytest.mark.parametrize(
    "settings",
    [{"length": (20, 90), "max_depth": 4, "max_args": 5, "nested": 0.4}, {"length": (300, 600)}],
)
def test_labels_are_the_values_of_the_written_expressions(settings):
    X, y = make_list_ops(300, random_state=0, **settings)
    found = [expression(tokens) for tokens in X]
    assert [value(each) for each in found] == y.tolist()
    assert {name for each in found for name in str(each).split("'")[1::2]} == set(OPERATORS)
    assert max(map(depth, found)) == settings.get("max_depth", 10)
    lengths = (X > 0).sum(axis=1)
    assert settings["length"][0] <= lengths.min() < lengths.max() <= X.shape[1]
    assert len(np.unique(y)) == 10


def test_seed_decides_and_few_samples_begin_many():
    few, many, other = (
        make_list_ops(n, random_state=seed)[0] for n, seed in ((5, 0), (9, 0), (9, 1))
    )
    assert (few == many[:5]).all()
    assert (many != other).any()


@pytest.mark.parametrize(
    "wrong",
    [
        {"length": (9, 8)}, {"length": (1, 8)}, {"n_samples": 0}, {"max_depth": 0},
        {"max_args": 1}, {"nested": 1.5}, {"length": (90, 99), "max_depth": 1},
    ],
)  # fmt: skip
def test_what_cannot_be_drawn_is_refused(wrong):
    with pytest.raises(ValueError, match=f"^.*{next(iter(wrong))}"):
        make_list_ops(**wrong, random_state=0)
