"""Examples have what sphinx-gallery asks for, which runs them as it builds the documentation."""

from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))


def test_examples_are_there():
    assert len(EXAMPLES) >= 10


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_example_is_a_page_of_the_gallery(example):
    """A title and a paragraph first, and at least one figure."""
    text = example.read_text()
    docstring = text.split('"""')[1].strip().splitlines()
    assert docstring[1] == "=" * len(docstring[0])
    assert text.count("plt.show()") >= 1
    assert text.count("\n# %%") >= 2
