"""Embeddings trained through self-expression: the start, the loss, the parts of the data."""

import learned_embedding as study
import numpy as np
import torch
from sklearn.preprocessing import normalize

from twinsolve.solvers import sparse_self_expression
from twinsolve.solvers.self_expression import lam_from_gamma

RNG = np.random.default_rng(0)
X = normalize(RNG.standard_normal((60, 10)) + 3 * np.repeat(RNG.standard_normal((6, 10)), 10, 0))
LABELS = np.repeat(np.arange(6), 10)
POINTS = torch.from_numpy(X)


def test_no_class_is_in_two_parts_that_must_not_meet():
    for parts in study.CLASSES.values():
        for a, b in (("train", "choose"), ("design", "judge")):
            assert parts[a][1] < parts[b][0]
        assert parts["choose"][1] == parts["design"][1]


def test_embeddings_start_at_the_points_whose_codes_are_certified():
    for kind in ("features", "linear", "residual"):
        assert torch.allclose(study.Embedding(kind, 10)(POINTS), POINTS)
    expected = sparse_self_expression(X, lam=lam_from_gamma(X, 20.0), tol=1e-12).coef.toarray()
    assert np.abs(study.codes_of(POINTS, 20.0).numpy() - expected).max() < 1e-8


def test_training_moves_codes_to_their_own_class():
    def off(embedding):
        with torch.no_grad():
            codes = study.codes_of(embedding(POINTS), 20.0).abs().numpy()
        return codes[LABELS[:, None] != LABELS].sum() / codes.sum()

    first = off(study.Embedding("features", 10))
    for kind in ("linear", "residual"):
        trained = study.train(kind, POINTS, LABELS, size=4, gamma=20.0, n_steps=200, seed=0)
        assert off(trained) < 0.8 * first


def test_whitening_makes_the_spread_within_classes_equal():
    map_ = study.whiten(POINTS, LABELS).linear.detach().numpy()
    within = np.concatenate([own - own.mean(axis=0) for own in np.split(X, 6)]) @ map_
    covariance = within.T @ within
    assert np.allclose(covariance, covariance[0, 0] * np.eye(10))
