from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import yaleb
from scipy.io import savemat
from shared.recipes import run_recipes
from yaleb import (
    RECIPES,
    faces_study,
    summarize_faces,
)

from twinsolve.bench.clustering.data import find_data
from twinsolve.bench.jobs import Options


@pytest.fixture(scope="module")
def data_home(tmp_path_factory):
    """12 persons, 6 images each: sums of 3 images of the person's own, and a few bright pixels."""
    rng = np.random.default_rng(0)
    own = rng.uniform(0, 60, (12, 3, 2016))
    images = np.einsum("psk,pkd->psd", rng.uniform(0.1, 1, (12, 6, 3)), own).reshape(72, 2016)
    images[rng.random(images.shape) < 0.01] = 255
    folder = tmp_path_factory.mktemp("data")
    content = {"EYALEB_DATA": images.T.astype(np.uint8), "EYALEB_LABEL": np.repeat(range(1, 13), 6)}
    savemat(folder / "ExtendedYaleB.mat", content)
    return str(folder)


def test_trials_are_the_standard_subsets():
    counts = [len(find_data(f"yaleb-{n}").trials()) for n in (2, 3, 5, 8, 10, 38)]
    assert counts == [163, 416, 812, 136, 3, 1]
    assert find_data("yaleb-10").trials()[1] == "+".join(map(str, range(11, 21)))
    chosen = find_data("yaleb-5").trials(60)
    assert len(set(chosen)) == 60
    assert chosen == find_data("yaleb-5").trials(60)
    assert set(chosen) <= set(find_data("yaleb-5").trials())


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_a_trial_runs_every_recipe_on_every_seed(data_home):
    options = Options(seeds=2, data_home=data_home)
    data = find_data("yaleb-3", data_home)
    rows = run_recipes([(data, ["2+4+11"], list(RECIPES.values()))], options)
    assert len(rows) == 2 * len(RECIPES)
    assert list(rows.recipe.unique()) == list(RECIPES)
    assert (rows.trial == "2+4+11").all()
    assert (rows.n_clusters == 3).all()
    assert rows.error.between(0, 100).all()
    gap = rows.groupby("recipe").gap.first()
    assert gap["SSC optimum"] <= 1e-6 < gap["SSC ADMM, paper"] < gap["SSC ADMM, circulated"]
    assert (gap[["LSR", "LSR, SVD and power"]] < 1e-12).all()
    assert (rows.seconds > 0).all()
    assert rows[rows.tuned].recipe.unique().tolist() == ["LSR, SVD and power"]
    assert (rows[rows.recipe == "SSC optimum"].error == 0).all()
    assert gap["SSC ADMM, paper, run on"] < 0.1 * gap["SSC ADMM, paper"]


def test_the_study_runs_all_of_two_and_some_of_three(data_home, monkeypatch):
    known = ("SSC optimum", "SSC ADMM, paper", "SSC ADMM, circulated")
    monkeypatch.setattr(yaleb, "_LITERATURE", known)
    spared = replace(RECIPES["SSC ADMM, circulated"], most_clusters=2)
    monkeypatch.setitem(RECIPES, "SSC ADMM, circulated", spared)
    monkeypatch.setattr("twinsolve.datasets.faces._GROUPS", (range(3), range(4, 7)))
    study = faces_study(n_subjects=(2, 3), n_trials=1)
    table = study.run(Options(seeds=2, data_home=data_home))
    trials = table.groupby("n_subjects").subjects.nunique()
    assert trials.to_dict() == {2: 6, 3: 1}
    found = table.groupby("n_subjects").recipe.unique()
    assert (tuple(found[2]), tuple(found[3])) == (known, known[:2])
    headings, lines = study.lines(table)
    assert len(lines) == 5
    assert all(len(line) == len(headings) for line in lines)


def test_summary_says_what_was_measured():
    def row(recipe, subjects, seed, error, seconds, gap=1e-7):
        return {
            "n_subjects": 2, "subjects": subjects, "recipe": recipe, "steps": "s", "tuned": False,
            "seed": seed, "error": error, "gap": gap, "seconds": seconds,
        }  # fmt: skip

    table = pd.DataFrame(
        [
            row("SSC optimum", "1 2", 0, 2.0, 1.0),
            row("SSC optimum", "1 2", 1, 4.0, 1.0),
            row("SSC optimum", "1 3", 0, 0.0, 2.0),
            row("SSC optimum", "1 3", 1, 0.0, 2.0),
            row("SSC ADMM, paper", "1 2", 0, 3.0, 3.0, 1e-2),
            row("SSC ADMM, paper", "1 2", 1, 3.0, 3.0, 1e-2),
            row("SSC ADMM, paper", "1 3", 0, 1.0, 10.0, 1e-1),
            row("SSC ADMM, paper", "1 3", 1, 1.0, 10.0, 1e-1),
        ]
    )
    headings, lines = summarize_faces(table)
    optimum, admm = (dict(zip(headings, line, strict=True)) for line in lines)
    assert optimum["trials"] == "2"
    assert (optimum["error %"], admm["error %"]) == ("1.50", "2.00")
    assert optimum["over seeds"] == "1.00 to 2.00"
    assert (optimum["against ADMM"], admm["against ADMM"]) == ("-0.50", "+0.00")
    assert (optimum["time"], admm["time"]) == ("1.00", "4.00")
    assert (optimum["gap"], admm["gap"]) == ("1.0e-07", "1.0e-01")


@pytest.mark.slow
def test_optimum_and_admm_agree_on_faces(real_data):
    known = [RECIPES[name] for name in ("SSC optimum", "SSC ADMM, paper")]
    data = find_data("yaleb-2")
    error = (
        run_recipes([(data, data.trials(8), known)], Options(seeds=1))
        .groupby("recipe")
        .error.mean()
    )
    assert abs(error["SSC optimum"] - error["SSC ADMM, paper"]) < 0.5
    assert error["SSC optimum"] < 6
