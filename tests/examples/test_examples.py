"""Each example runs as a script of its own, in an empty folder, and draws what it shows."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))


def test_examples_are_there():
    assert len(EXAMPLES) >= 10


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs(example, tmp_path):
    if example.stem == "plot_huggingface":
        pytest.importorskip("transformers")
    found = subprocess.run(
        [sys.executable, "-W", "error::RuntimeWarning", example],
        cwd=tmp_path,
        env=os.environ | {"MPLBACKEND": "Agg"},
        capture_output=True,
        text=True,
    )
    assert found.returncode == 0, found.stderr
    assert not [*tmp_path.iterdir()], "the gallery runs examples where they stand"


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_example_is_a_page_of_the_gallery(example):
    """A title and a paragraph first, and at least one figure: what sphinx-gallery asks for."""
    text = example.read_text()
    docstring = text.split('"""')[1].strip().splitlines()
    assert docstring[1] == "=" * len(docstring[0])
    assert text.count("plt.show()") >= 1
    assert text.count("\n# %%") >= 2
