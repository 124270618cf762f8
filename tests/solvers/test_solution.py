import numpy as np
import pytest

from twinsolve.solvers.solution import check_integer, check_lam, check_matrix, check_positive


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ([[np.nan, 1.0]], "NaN"),
        ([[np.inf, 1.0]], "infinity"),
        ([1.0, 2.0], "2D"),
        ([[1j, 0.0]], "omplex"),
        (np.empty((0, 2)), "0 sample"),
        ([["a", "b"]], "could not convert"),
    ],
)
def test_check_matrix_names_the_argument_and_the_fault(bad, words):
    with pytest.raises(ValueError, match=words) as caught:
        check_matrix(bad, "X")
    assert str(caught.value).startswith("X:")


def test_check_matrix_keeps_float32_and_widens_integers():
    assert check_matrix(np.ones((2, 2), np.float32), "X").dtype == np.float32
    assert check_matrix([[1, 2]], "X").dtype == np.float64


def test_check_matrix_says_how_many_columns_are_needed():
    with pytest.raises(ValueError, match="queries: has 2 columns, but 3 are needed"):
        check_matrix([[1.0, 2.0]], "queries", n_features=3)


@pytest.mark.parametrize("bad", [0, -1.0, np.nan, np.inf, "1", None])
def test_check_positive_refuses(bad):
    with pytest.raises(ValueError, match="h: must be"):
        check_positive(bad, "h")


def test_check_positive_allows_zero_on_request():
    assert check_positive(0, "reg", allow_zero=True) == 0.0


@pytest.mark.parametrize("bad", [0, 5, 1.5, True, "2"])
def test_check_integer_refuses(bad):
    with pytest.raises(ValueError, match=r"n: must be a whole number in \[1, 4\]"):
        check_integer(bad, "n", minimum=1, maximum=4)


@pytest.mark.parametrize(
    "bad", [0.0, -1.0, np.nan, [1.0, 2.0], [[1.0]], [1.0, 0.0, 1.0], "a", None]
)
def test_check_lam_refuses(bad):
    with pytest.raises(ValueError, match="lam: must"):
        check_lam(bad, 3)


def test_check_lam_gives_one_entry_a_row():
    assert check_lam(2.0, 3).tolist() == [2.0, 2.0, 2.0]
    assert check_lam([1.0, 2.0, 3.0], 3).tolist() == [1.0, 2.0, 3.0]
