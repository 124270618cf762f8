"""Every layer that works by blocks is checked with small ones."""

import ast
from pathlib import Path

import pytest
from numpy.testing import assert_allclose

from twinsolve import unrolled
from twinsolve.datasets import make_union_of_subspaces
from twinsolve.twins import catalogue, trials_of
from twinsolve.unrolled.block_size import block_size, small_blocks
from twinsolve.unrolled.clustering.edge_features import edge_features

ROOT = Path(unrolled.__file__).parent
# The estimators', which no twin is about: here, and in clustering/test_unrolled_ista.py.
ESTIMATORS = {"clustering.edge_features", "clustering.unrolled_ista"}


def modules():
    """Names and syntax trees of what layers are made of."""
    for path in sorted(ROOT.rglob("*.py")):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        if not name.startswith(("twins.", "laws.")):
            yield name, ast.parse(path.read_text())


def calls(tree, name):
    found = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
    return [node for node in found if getattr(node.func, "id", "") == name]


def is_literal(node):
    try:
        ast.literal_eval(node)
    except ValueError:
        return False
    return True


def test_steps_through_tensors_are_of_a_block_size():
    for name, tree in modules():
        steps = [x for x in calls(tree, "range") if len(x.args) == 3 and not is_literal(x.args[2])]
        assert not steps or calls(tree, "block_size"), name


def test_the_check_reaches_all_of_them(monkeypatch):
    sized = {name for name, tree in modules() if calls(tree, "block_size")}
    reached = set()
    for name in sized:

        def recorded(usual, name=name):
            reached.add(name)
            return block_size(usual)

        monkeypatch.setattr(f"{unrolled.__name__}.{name}.block_size", recorded)
    names = ("blocks, no mask", "blocks, causal", "gradient, in blocks, no mask")
    for twin in {twin.layer: twin for twin in reversed(catalogue())}.values():
        for trial in trials_of(twin):
            if trial.name in names and reached < sized - ESTIMATORS:
                assert trial.measure().holds
    assert reached == sized - ESTIMATORS
    assert len(sized) >= 10


def test_blocks_of_edges_change_nothing():
    X, _ = make_union_of_subspaces(
        20, n_subspaces=2, n_features=9, dimension=2, noise=0.2, random_state=0
    )
    expected = edge_features(X)
    assert len(expected.i) > 3 * 50
    with small_blocks(50):
        found = edge_features(X)
    assert_allclose(found.features, expected.features, atol=1e-12)


def test_blocks_end_with_the_context():
    with small_blocks(3):
        assert [block_size(n) for n in (2, 9)] == [2, 3]
        with pytest.raises(ZeroDivisionError), small_blocks(1):
            block_size(9) / 0
        assert block_size(9) == 3
    assert block_size(2**62) == 2**62
