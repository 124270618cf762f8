"""What papers misprint, planted in the layers; `tests/faults` plants hundreds more."""

import pytest
import torch

from twinsolve.unrolled import TokenGraying
from twinsolve.unrolled.kernel_smoothing import spatial_gaussian
from twinsolve.unrolled.sparse_coding import code_blocks

from .conftest import TWINS, built, small_inputs


def passes(name, option=None):
    twin = TWINS[name]
    inputs = small_inputs(twin, torch.float64)
    layer = twin.options[option](*(x.numpy() for x in inputs)) if option else built(twin, inputs)
    return twin.relation.measure(twin, layer, inputs).holds


@pytest.mark.parametrize("name", [name for name in TWINS if name.startswith("nonnegative")])
def test_finds_a_signed_threshold(monkeypatch, name):
    """Erratum E3-f: the one-sided and the two-sided threshold solve different problems."""
    right = code_blocks._shrink_
    monkeypatch.setattr(code_blocks, "_shrink_", lambda z, one_sided: right(z, False))
    assert not passes(name)


@pytest.mark.parametrize(
    ("way", "place", "option"),
    [("_smooth_rows", 2, "sequence"), ("_smooth_grid", 1, "class-tokens")],
)
def test_finds_a_missing_two_of_the_spatial_width(monkeypatch, way, place, option):
    """Erratum E0-b: h^2 is 2 s^2."""
    assert passes("spatial-gaussian", option)
    right = getattr(spatial_gaussian, way)
    monkeypatch.setattr(
        spatial_gaussian, way, lambda *x: right(*x[:place], x[place] / 2**0.5, *x[place + 1 :])
    )
    assert not passes("spatial-gaussian", option)


@pytest.mark.parametrize("name", ["token-graying-svd", "token-graying-condition"])
def test_finds_the_printed_listing(monkeypatch, name):
    """Erratum E4-i: the largest singular value becomes 1."""
    right = TokenGraying.forward
    monkeypatch.setattr(
        TokenGraying, "forward", lambda self, X: right(self, X) / torch.linalg.matrix_norm(X, 2)
    )
    assert not passes(name)
