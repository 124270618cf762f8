"""Where tokens stand in models: whom each one sees, literally, and by what each one is placed."""

import itertools
from contextlib import nullcontext

import pytest
import torch
from torch.testing import assert_close

from twinsolve.unrolled import CrissCross, Local, VisionTransformer, WindowedTransformer
from twinsolve.unrolled.block_size import small_blocks

SETTINGS = {"in_channels": 1, "num_classes": 5, "dim": 8, "dtype": torch.float64}
SIZES = {**SETTINGS, "image_size": (12, 20), "patch_size": 2, "num_heads": 2}
GRID = (6, 10)


def near(radius):
    return lambda a, b: max(abs(a[0] - b[0]), abs(a[1] - b[1])) <= radius


def in_window(window, shift=(0, 0)):
    """Tokens of one tile of a shifted tiling."""

    def tile(cell):
        return tuple((x - s) // w for x, s, w in zip(cell, shift, window, strict=True))

    return lambda a, b: tile(a) == tile(b)


def pairs(sees, grid=GRID, n_class=0):
    """Which tokens each one sees; class tokens, in front, see all and are seen by all."""
    cells = [*itertools.product(*map(range, grid))]
    seen = torch.ones(len(cells) + n_class, len(cells) + n_class, dtype=torch.bool)
    seen[n_class:, n_class:] = torch.tensor([[sees(a, b) for b in cells] for a in cells])
    return seen


def reached(model):
    """Which patches the features of each token change with, of shape (tokens, patches)."""
    image = torch.randn(1, *model.patch_embedding.image_shape, dtype=torch.float64)
    weights = torch.randn(model.norm.normalized_shape, dtype=torch.float64)
    slopes = torch.autograd.functional.jacobian(
        lambda x: model.forward_features(x)[0] @ weights, image
    )
    return model.patch_embedding.patches(slopes[:, 0]).abs().amax(-1) > 0


def vision(operator, **options):
    return VisionTransformer(**SIZES, depth=1, operator=operator, **options)


def windowed(image_size, window_size, depth, operator="softmax"):
    return WindowedTransformer(
        image_size, 1, depths=(depth,), num_heads=(2,), window_size=window_size,
        operator=operator, **SETTINGS,
    )  # fmt: skip


def product(second, first):
    return second.double() @ first.double() > 0


REACH = {
    "local in windows over one side": (
        lambda: windowed((2, 8), 4, 1, Local(1)),
        pairs(in_window((2, 4)), (2, 8)) & pairs(near(1), (2, 8)),
    ),
    "local": (lambda: vision(Local(1)), pairs(near(1), n_class=1)),
    "local, no class token": (lambda: vision(Local(2), pool="mean"), pairs(near(2))),
    "criss-cross": (
        lambda: vision(CrissCross()),
        pairs(lambda a, b: a[0] == b[0] or a[1] == b[1], n_class=1),
    ),
    "windows": (lambda: windowed((8, 12), 4, 1), pairs(in_window((4, 4)), (8, 12))),
    "windows over one side": (lambda: windowed((2, 12), 4, 1), pairs(in_window((2, 4)), (2, 12))),
    "shifted windows": (
        lambda: windowed((8, 12), 4, 2),
        product(pairs(in_window((4, 4), (2, 2)), (8, 12)), pairs(in_window((4, 4)), (8, 12))),
    ),
    "local in windows": (
        lambda: windowed((8, 4), 4, 1, Local(1)),
        pairs(in_window((4, 4)), (8, 4)) & pairs(near(1), (8, 4)),
    ),
}


@pytest.mark.parametrize("name", REACH)
def test_tokens_depend_on_those_whom_they_see(name):
    make, seen = REACH[name]
    for blocks in (nullcontext(), small_blocks(4)):
        torch.manual_seed(0)
        with blocks:
            found = reached(make())
        assert_close(found, seen[:, len(seen) - found.shape[1] :])
