import copy

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from scipy.special import softmax
from sklearn.preprocessing import normalize

from twinsolve.solvers import ista, least_squares_self_expression, low_rank_self_expression
from twinsolve.unrolled import LowRank, Ridge, SparseCoding
from twinsolve.unrolled.clustering import AttentionSubspaceClustering

from .learned_cases import data, make

KIND = AttentionSubspaceClustering


def test_softmax_has_the_logits_that_its_docstring_says():
    X, _ = data()
    U = normalize(X)
    logits = 7 * U @ U.T
    new = 7 * normalize(data(seed=1)[0][:5]) @ U.T
    np.fill_diagonal(logits, -np.inf)
    model = make(KIND, operator="softmax", temperature=7.0).fit(X)
    assert_allclose(model.coef_, softmax(logits, axis=1), atol=1e-12)
    assert_allclose(model.coefficients(data(seed=1)[0][:5]), softmax(new, axis=1), atol=1e-12)


def test_regressions_are_the_solvers_at_the_penalty_that_its_docstring_says():
    X, _ = data()
    U, square = normalize(X), 10 * 20**0.5
    for operator, solve in ((Ridge(1.0), least_squares_self_expression),
                            (LowRank(1.0), low_rank_self_expression)):  # fmt: skip
        found = make(KIND, operator=operator, temperature=10.0).fit(X).coef_
        assert_allclose(found, solve(U, lam=1 / square), atol=1e-9)
    operator = Ridge(2.0, zero_diagonal=True)
    expected = least_squares_self_expression(U, lam=2 / square, zero_diagonal=True)
    assert_allclose(
        make(KIND, operator=operator, temperature=10.0).fit(X).coef_, expected, atol=1e-9
    )
    for n_iter in (3, 30):
        found = make(KIND, operator=SparseCoding(0.1, n_iter=n_iter)).fit(X).coef_
        expected = ista(U, U, lam=0.1 / square, n_iter=n_iter, zero_diagonal=True).coef
        assert_allclose(found, expected, atol=1e-2)


@pytest.mark.parametrize(
    ("name", "why"),
    [("local", "reads positions, and new points"), ("twicing", "needs as many queries as keys")],
)
def test_operators_of_places_or_of_all_points_cannot_predict(name, why):
    X, _ = data()
    model = make(KIND, operator=name).fit(X)
    assert model.labels_.shape == (len(X),)
    with pytest.raises(ValueError, match=why):
        model.predict(X[:3])


def test_a_given_operator_is_left_alone():
    learnable = SparseCoding(0.1, learnable=True)
    before = copy.deepcopy(learnable.state_dict())
    model = make(KIND, operator=learnable).fit(data()[0])
    assert (learnable.training, model.operator_.training) == (True, False)
    assert all(torch.equal(before[name], value) for name, value in learnable.state_dict().items())
    assert next(learnable.parameters()).dtype == torch.float32
