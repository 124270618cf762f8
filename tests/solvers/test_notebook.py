"""What notebooks show of solutions and choices."""

import re

import numpy as np
from sklearn.cluster import SpectralClustering
from sklearn.datasets import make_blobs

from twinsolve.solvers import choose_clusterer, choose_settings, sparse_self_expression
from twinsolve.solvers.notebook import html_facts, html_table

X, _ = make_blobs(60, centers=3, cluster_std=0.3, random_state=0)


def cells(html):
    return re.findall(r"<t[dh]>(.*?)</t[dh]>", html)


def test_names_and_values_are_escaped():
    html = html_facts("<b>", {"&": "<i>"}) + html_table(["<u>"], [["<s>", None, 0.123456]])
    assert cells(html) == ["&amp;", "&lt;i&gt;", "&lt;u&gt;", "&lt;s&gt;", "", "0.123"]
    assert "<b>&lt;b&gt;</b>" in html


def test_a_solution_shows_what_it_prints_and_its_message():
    solution = sparse_self_expression(X[:9], lam=0.1)
    shown = cells(solution._repr_html_())
    said = dict(zip(shown[::2], shown[1::2], strict=True))
    assert said["coefficients"] == f"9 x 9 with {solution.coef.nnz} nonzeros"
    assert said["converged"] == "9 of 9"
    assert said["message"] == solution.message
    for name in ("coefficients", "objective", "largest gap", "most iterations", "converged"):
        assert said[name] in repr(solution)


def test_a_choice_shows_what_was_tried():
    model = SpectralClustering(3, random_state=0)
    chosen = choose_settings(model, X, {"gamma": [1.0, 2.0]})
    shown = cells(chosen._repr_html_())
    assert str(chosen.estimator) in shown
    assert {f"gamma={gamma}" for gamma in (1.0, 2.0)} <= {*shown}
    assert [f"{score:.3g}" for _, score in chosen.scores] == shown[-3::2]


def test_a_choice_of_a_clusterer_shows_which_it_is():
    models = [SpectralClustering(3, gamma=gamma, random_state=0) for gamma in (1.0, 1.0, 2.0)]
    chosen = choose_clusterer(models, X)
    shown = cells(chosen._repr_html_())
    assert f"{chosen.ranking[0]}, among 3 estimators, of which 2 differ" in shown
    assert f"{np.nanmax(chosen.agreement):.3g}" in shown
    assert shown[1] == str(chosen.estimator)
