"""The command `twinsolve hopkins` on a few written sequences, and its numbers on the real ones."""

import json

import numpy as np
import pytest
from scipy.io import savemat
from typer.testing import CliRunner

from twinsolve.bench import hopkins, segment_motion, summarize_motion
from twinsolve.bench.cli import app
from twinsolve.datasets import make_union_of_subspaces


@pytest.fixture
def sequences(tmp_path, monkeypatch):
    """Four sequences in Hopkins' format, the last of them too noisy to be segmented."""
    for number, (n_motions, noise) in enumerate([(2, 0.0), (3, 0.0), (2, 0.0), (2, 3.0)]):
        X, y = make_union_of_subspaces(
            15, n_subspaces=n_motions, n_features=20, dimension=3, noise=noise, random_state=number
        )
        x = np.ones((3, len(X), 10))
        x[:2] = X.reshape(-1, 10, 2).transpose(2, 0, 1)
        folder = tmp_path / "data" / "hopkins155" / f"s{number}"
        folder.mkdir(parents=True)
        savemat(folder / f"s{number}_truth.mat", {"x": x, "s": y[:, None] + 1})
    monkeypatch.setenv("TWINSOLVE_DATA", str(tmp_path / "data"))
    return tmp_path


def run(*arguments):
    return CliRunner().invoke(app, ["hopkins", *arguments])


def test_every_recipe_segments_clean_sequences(sequences):
    table = segment_motion(seed=3, n_seeds=2)
    assert set(table.recipe) == set(hopkins.RECIPES)
    assert len(table) == len(hopkins.RECIPES) * 4 * 2
    assert set(table.seed) == {3, 4}
    assert (table[table.sequence != "s3"].error < 5).all()
    assert (table[table.sequence == "s3"].error > 10).all()
    assert table.error.between(0, 100).all()


def test_command_writes_its_results_and_resumes(sequences, monkeypatch):
    arguments = ("--output", str(sequences / "out"), "--n-seeds", "2", "--recipe", "LRSC 4n")
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    rows = json.loads((sequences / "out" / "table.json").read_text())
    assert [row["sequences"] for row in rows] == ["2 motions", "3 motions", "all"]
    assert {row["recipe"] for row in rows} == {"LRSC 4n"}
    settings = json.loads((sequences / "out" / "settings.json").read_text())["settings"]
    assert settings == {"seed": 0, "n_seeds": 2, "recipes": ["LRSC 4n"]}
    assert "LRSC 4n" in (sequences / "out" / "summary.md").read_text()

    monkeypatch.setattr(hopkins, "_errors", None)  # nothing is left to compute
    assert run(*arguments).exit_code == 0
    assert json.loads((sequences / "out" / "table.json").read_text()) == rows
    for changed in (("--seed", "1"), ("--n-seeds", "1")):
        assert isinstance(run(*arguments, *changed).exception, TypeError)
    monkeypatch.setattr(hopkins, "source_hash", lambda: "another source")
    assert isinstance(run(*arguments).exception, TypeError)


def test_summary_by_hand(sequences):
    table = segment_motion(recipes=["LSR 2F"], n_seeds=1)
    table = table.loc[table.index.repeat(2)].reset_index(drop=True)
    table["seed"] = np.tile([0, 1], 4)
    table["error"] = [0.0, 8.0, 10.0, 12.0, 3.0, 5.0, 40.0, 60.0]
    summary = summarize_motion(table).set_index("sequences")
    assert summary["mean"].tolist() == pytest.approx([116 / 6, 11.0, 138 / 8])
    assert summary["median"].tolist() == pytest.approx([4.0, 11.0, 7.5])
    assert summary["lowest"]["all"] == pytest.approx(53 / 4)
    assert summary["highest"]["all"] == pytest.approx(85 / 4)


def test_bad_settings_and_missing_data_are_named(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="recipes: must be among"):
        segment_motion(recipes=["SSC by hand"])
    with pytest.raises(ValueError, match="seed: must be >= 0 and n_seeds >= 1"):
        segment_motion(n_seeds=0)
    monkeypatch.setenv("TWINSOLVE_DATA", str(tmp_path))
    result = run("--output", str(tmp_path / "out"))
    assert result.exit_code == 2
    assert "hopkins155" in result.output
    assert run("--recipe", "SSC by hand").exit_code == 2


def test_help_explains_itself():
    result = run("--help")
    assert result.exit_code == 0
    for word in ("--seed", "--n-seeds", "--recipe", "--output", "TWINSOLVE_DATA"):
        assert word in result.output


# Mean error in % on 2 motions, 3 motions and all, of other code with the same recipes.
REFERENCES = {
    "SSC circulated 2F": (1.53, 4.41, 2.18),
    "SSC circulated 4n": (1.84, 4.40, 2.42),
    "SSC paper 2F": (1.58, 4.45, 2.23),
    "LRR growing penalty 2F + 1": (1.36, 1.66, 1.43),
    "LRSC 4n": (2.84, 4.65, 3.25),
    "LSR 2F": (3.66, 7.57, 4.54),
}


@pytest.mark.slow
@pytest.mark.parametrize("recipe", REFERENCES)
def test_recipes_reproduce_the_reference(real_data, recipe):
    summary = summarize_motion(segment_motion(recipes=[recipe], n_seeds=1))
    assert np.abs(summary["mean"] - REFERENCES[recipe]).max() < 0.15
