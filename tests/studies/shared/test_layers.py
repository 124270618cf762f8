"""Learned against solved codes of new points: coders, gaps, ratios, what equal terms say."""

import numpy as np
import pandas as pd
import pytest
import torch
from shared import layers
from shared.layers import (
    ADAPTIVE,
    GAUSSIAN,
    LEARNED,
    ON_DICTIONARY,
    REFERENCE,
    TIGHT,
    Problem,
    coding_problem,
    equal_terms,
    fista_codes,
    gaps,
    learned_coders,
    lower_bound,
    support_codes,
)

from twinsolve.bench.clustering.data import find_data
from twinsolve.bench.jobs import Options
from twinsolve.bench.tables import read_table, write_table
from twinsolve.solvers import fista, ista
from twinsolve.solvers.sparse_coding import lam_max

TINY = {"n_iters": (2, 4), "n_steps": 10, "rounds": 1, "batch": 20}


def small_problem(seed=0):
    rng = np.random.default_rng(seed)
    points = rng.standard_normal((90, 6))
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    D, T, Y = np.split(points, [40, 70])
    return Problem(D, T, Y, 0.2)


@pytest.fixture(scope="module")
def table():
    found = layers.layers_study(((GAUSSIAN, 2.0), ("digits", 5.0)), **TINY)
    return found.run(Options()), found


@pytest.mark.parametrize("n_iter", [0, 7])
def test_iterations_with_a_kept_dictionary_are_those_of_the_solvers(n_iter):
    p = small_problem()
    D, Y = torch.from_numpy(p.dictionary), torch.from_numpy(p.new)
    norm = float(np.linalg.norm(p.dictionary, 2) ** 2)
    settings = {"lam": p.lam, "norm": norm, "n_iter": n_iter}
    reference = {"lam": p.lam, "n_iter": n_iter}
    for found, solution in (
        (fista_codes(D, Y, **settings), fista(p.new, p.dictionary, step=1 / norm, **reference)),
        (support_codes(D, Y, **settings), ista(p.new, p.dictionary, step="support", **reference)),
    ):
        np.testing.assert_allclose(found.numpy(), solution.coef, atol=1e-12)


def test_gaps_count_from_a_certified_bound():
    p = small_problem()
    zero = np.zeros((len(p.new), len(p.dictionary)))
    gap = gaps(p, zero, bound=lower_bound(p))
    assert (lam_max(p.new, p.dictionary) > p.lam).all()
    assert (gap > 0).all()
    assert (gap <= 1).all()  # the objective of zero codes is |x|^2, and no objective is negative
    solved = ista(p.new, p.dictionary, lam=p.lam, n_iter=3000)
    assert (np.abs(gaps(p, solved.coef, bound=lower_bound(p))) <= solved.gap + 1e-9).all()


def test_training_lowers_the_gap_and_a_deeper_layer_is_no_worse_on_what_it_is_judged_by():
    p = small_problem()
    plain = {k: ista(p.new, p.dictionary, lam=p.lam, n_iter=k) for k in (2, 4)}
    bound = lower_bound(p)
    learned = list(learned_coders(p, (2, 4), n_steps=40, seed=0))
    assert {c.method for c in learned} == set(LEARNED)
    reached = {(c.method, c.n_iter): gaps(p, c.code(p.new), bound=bound).mean() for c in learned}
    for method in ("learned steps", ON_DICTIONARY):
        for k in (2, 4):
            assert reached[method, k] < gaps(p, plain[k].coef, bound=bound).mean()
        assert reached[method, 4] < reached[method, 2]
    assert all(c.training_s > 0 for c in learned)


def test_gaps_are_certified_and_ratios_of_the_reference_to_itself_are_one(table):
    rows, _ = table
    assert (rows.gap >= 0).all()
    assert (rows.gap_worst >= rows.gap).all()
    solved = rows[rows.tol.notna()]
    assert (solved.gap_worst <= solved.tol).all()
    reference = rows[(rows.method == REFERENCE) & (rows.tol == TIGHT)]
    assert (reference[["ratio_single", "ratio_batch"]] == 1).all(axis=None)
    assert (rows[["ms_single", "ms_batch"]] > 0).all(axis=None)
    iterated = rows[rows.n_iter.notna()]
    assert (iterated.groupby(["data", "method"]).n_iter.nunique() == 2).all()
    plain = rows[rows.method == "ISTA"].set_index(["data", "n_iter"]).gap
    adaptive = rows[rows.method == ADAPTIVE].set_index(["data", "n_iter"]).gap
    assert (adaptive <= plain + 1e-6).all()  # float32
    assert (ON_DICTIONARY in set(rows[rows.data == "digits"].method)) is True
    assert ON_DICTIONARY not in set(rows[rows.data == GAUSSIAN].method)


def test_summary_and_figures_are_made_of_the_table(table, tmp_path):
    rows, found = table
    headings, lines = found.lines(rows)
    assert len(lines) == len(rows.groupby(["data", "method"]))
    assert {len(line) for line in lines} == {len(headings)}
    by_hand = rows.assign(training_s=np.where(rows.n_iter > 0, 3.0, 0.0), ms_batch=0.5)
    by_hand.loc[by_hand.tol == TIGHT, "ms_batch"] = 2.0
    cell = headings.index("training, points solved")
    assert {line[cell] for line in found.lines(by_hand)[1]} == {"", "1,500"}
    for name, draw in found.figures.items():
        draw(rows, tmp_path / name)
        assert (tmp_path / name).stat().st_size > 10_000
    write_table(rows, tmp_path)
    assert len(read_table(tmp_path / "table.json")) == len(rows)


def test_equal_terms_count_only_what_was_run():
    about = {"data": "a", "gamma": 1.0, "ratio_single": 1.0}
    rows = pd.DataFrame(
        [
            about | {"method": REFERENCE, "tol": 1e-2, "gap": 5e-3, "ratio_batch": 0.5},
            about | {"method": REFERENCE, "tol": TIGHT, "gap": 1e-9, "ratio_batch": 1.0},
            about | {"method": "quick", "n_iter": 2, "gap": 2e-2, "ratio_batch": 0.8},
            about | {"method": "quick", "n_iter": 5, "gap": 9e-3, "ratio_batch": 1.5},
            about | {"method": "slow", "n_iter": 2, "gap": 1e-4, "ratio_batch": 4.0},
            about | {"method": "coarse", "n_iter": 2, "gap": 5e-2, "ratio_batch": 0.2},
        ]
    )
    terms = equal_terms(rows).set_index("method")
    assert terms.gap_batch["quick"] == 2e-2
    assert terms["at_0.1"]["quick"] == 0.8 / 0.5
    assert terms["at_0.01"]["quick"] == 1.5 / 0.5
    assert terms["at_0.01"]["slow"] == 4.0 / 0.5
    assert np.isnan(terms.gap_batch["slow"])
    assert terms["at_0.1"]["coarse"] == 0.2 / 0.5
    assert np.isnan(terms["at_0.01"]["coarse"])
    assert (terms.loc[REFERENCE, ["at_0.1", "at_0.01"]] == 1).all()


def test_problems_keep_what_is_learned_on_apart_from_what_is_coded():
    problem = coding_problem(find_data("digits"), 10.0, seed=3)
    parts = [problem.dictionary, problem.training, problem.new]
    for i in range(3):
        for j in range(i):
            # Squared distances from rounded products: a shared point has 0 up to 1e-12.
            assert (2 - 2 * parts[i] @ parts[j].T).min() > 1e-9
