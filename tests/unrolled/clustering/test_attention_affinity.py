import copy

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from scipy.special import softmax
from sklearn.preprocessing import normalize

from twinsolve.solvers import ista, least_squares_self_expression, low_rank_self_expression
from twinsolve.unrolled import (
    LowRank,
    Ridge,
    Softmax,
    SparseCoding,
    make_operator,
    operator_names,
)
from twinsolve.unrolled.clustering import AttentionSubspaceClustering

from .learned_cases import data, make

KIND = AttentionSubspaceClustering
NAMES = operator_names()
NEED_CONTEXT = {n for n in NAMES if make_operator(n, num_heads=1, head_dim=20).needs}
SQUARE = {n for n in NAMES if make_operator(n, num_heads=1, head_dim=20).square_only}


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


@pytest.mark.filterwarnings("ignore:no candidate has a score above 0")
@pytest.mark.parametrize("name", ["criss_cross", "linear", "local", "locally_linear", "twicing"])
def test_every_operator_by_name(name):
    X, _ = data()
    model = make(KIND, operator=name)
    if name == "criss_cross":
        X = X[:84]
    model.fit(X)
    assert model.coef_.shape == (len(X), len(X))
    assert model.labels_.shape == (len(X),)
    if name in SQUARE or model.operator_.positional:
        why = "needs as many queries as keys|reads positions of tokens"
        with pytest.raises(ValueError, match=why):
            model.predict(X[:3])
    else:
        assert np.isin(model.predict(X[:3]), model.labels_).all()
    if model.operator_.pair_masks and name != "twicing":
        assert (model.coef_.diagonal() == 0).all()


def test_a_given_operator_is_left_alone():
    operator = Softmax(scale=1.0)
    model = make(KIND, operator=operator).fit(data()[0])
    assert model.operator_ is not operator
    assert operator.training
    assert not model.operator_.training
    learnable = SparseCoding(0.1, learnable=True)
    before = copy.deepcopy(learnable.state_dict())
    make(KIND, operator=learnable).fit(data()[0])
    assert all(torch.equal(before[name], value) for name, value in learnable.state_dict().items())
    assert next(learnable.parameters()).dtype == torch.float32
