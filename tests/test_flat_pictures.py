"""Flat regions, bars, single pixels and checkerboards: no NaN, and flat stays flat.

The tables are walked: what the wings or the command add and these settings lack fails here.
"""

import inspect
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from twinsolve.bench.vision.denoising.methods import METHODS, find_entry, method_names
from twinsolve.solvers.sparse_coding import dct_dictionary
from twinsolve.solvers.sparse_coding.image_patches import patch_rows
from twinsolve.solvers.sparse_coding.similar_patches import similar_patches
from twinsolve.unrolled.image_filters import BilateralFilter
from twinsolve.unrolled.sparse_coding.patches import similar_patches as torch_similar

from .public import public

SIGMA = 25 / 255
SIDE = 16


def draw_pictures():
    """Pictures by name, each with where it is flat and the level is to stay."""
    texture = 0.3 + 0.4 * np.random.default_rng(0).random((SIDE, SIDE))
    row, column = np.indices(texture.shape)
    outer = np.minimum(row, SIDE - 1 - row) == 0
    bars = np.where(row < 6, 1.0, np.where(row < 11, texture, 0.0))
    bars[:, :4] = np.where(row[:, :4] < 6, 1.0, 0.0)
    squares = np.where(column < 8, (row + column) % 2.0, (row // 4 + column // 4) % 2.0)
    return {
        "white": (np.ones(texture.shape), np.ones(texture.shape, bool)),
        "saturated sky, black border": (bars, outer),
        "one bright pixel": (1.0 * ((row == 8) & (column == 7)), outer),
        "checkerboards": (squares, np.zeros(texture.shape, bool)),
    }


PICTURES = draw_pictures()
D = dct_dictionary(8, 8)
SOLVERS = {
    "bilateral_filter": {"sigma_color": 2 * SIGMA},
    "bilateral_matrix": {},
    "embedded_means": {"embedding": np.ones((1, 1, 3, 3)) / 9, "h": SIGMA},
    "denoise_ista": {"dictionary": D, "lam": 3 * SIGMA, "n_iter": 6},
    "denoise_lasso": {"dictionary": D, "lam": 3 * SIGMA},
    "denoise_low_rank": {"sigma": SIGMA},
    "denoise_matching": {"dictionary": D, "threshold": 2 * SIGMA, "n_iter": 3},
    "denoise_patches": {"code": lambda rows: 0.5 * rows, "patch_size": 5},
    "denoise_pursuit": {"dictionary": D, "sigma": SIGMA},
    "nonlocal_means": {"sigma": SIGMA},
    "nonlocal_means_matrix": {"sigma": SIGMA},
    "oriented_metric": {"patch_size": 5},
}
CLASSIFIER = {
    "image_size": SIDE, "patch_size": 4, "in_channels": 1, "num_classes": 3, "dim": 16, "depth": 1,
    "num_heads": 2,
}  # fmt: skip
LAYERS = {
    "BilateralFilter": {},
    "BoostedFilter": {"base": BilateralFilter()},
    "ClassAttentionTransformer": CLASSIFIER,
    "ConvMixer": {
        "dim": 8, "depth": 1, "kernel_size": 3, "patch_size": 4, "num_classes": 3, "in_channels": 1
    },
    "ConvexRidge": {"lam": SIGMA, "threshold": SIGMA},
    "EmbeddedMeans": {},
    "NonLocalMeansAttention": {"sigma": SIGMA},
    "PatchSparseCoding": {"dictionary": D, "lam": SIGMA},
    "Segmenter": {"n_classes": 3, "image_size": (SIDE, SIDE), "in_channels": 1, "dim": 16,
                  "depth": 1},
    "SelfExpressionTransformer": CLASSIFIER,
    "VisionTransformer": CLASSIFIER,
    "WindowedTransformer": CLASSIFIER | {
        "patch_size": 2, "depth": None, "depths": (1, 1), "num_heads": (2, 2)
    },
}  # fmt: skip


def taking_images(wing, forward):
    """Public things of a wing by name whose first argument is an image."""
    found = {}
    for name, thing in public(wing).items():
        takes = forward(thing)
        first = next(iter(inspect.signature(takes).parameters), "") if takes else ""
        if first in ("image", "images", "noisy", "guide"):
            found[name] = thing
    return found


FUNCTIONS = taking_images("solvers", lambda thing: thing if inspect.isfunction(thing) else None)
MODULES = taking_images(
    "unrolled",
    lambda thing: (
        partial(thing.forward, None)
        if isinstance(thing, type) and issubclass(thing, nn.Module)
        else None
    ),
)
DENOISERS = [name for names in method_names().values() for name in names]


def runs(name):
    if name in METHODS and not METHODS[name].installed:
        return False
    levels = find_entry(name).list_levels()
    return levels is None or 255 * SIGMA in levels


@pytest.mark.parametrize("name", [name for name in DENOISERS if runs(name)])
def test_denoisers_keep_flat_regions(name):
    denoise = find_entry(name).denoiser(SIGMA)[0]
    for kind, (image, flat) in PICTURES.items():
        found = denoise(image, sigma=SIGMA)
        assert np.isfinite(found).all(), kind
        error, spread = np.square(found - image).mean() ** 0.5, image.std()
        assert error < spread + SIGMA, kind
        allowed = 1e-2 * SIGMA if flat.all() else 3 * SIGMA
        assert np.abs(found - image)[flat].max(initial=0) < allowed, kind


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_of_images_are_finite(name):
    for kind, (image, flat) in PICTURES.items():
        planes = (image[None], image[None]) if name == "embedded_means" else (image,)
        found = FUNCTIONS[name](*planes, **SOLVERS[name])
        values = np.squeeze(found[0] if isinstance(found, tuple) else found)
        assert np.isfinite(values).all(), kind
        if values.shape == image.shape and flat.all():
            np.testing.assert_allclose(values, image, rtol=0, atol=1e-12, err_msg=kind)


@pytest.mark.parametrize("name", MODULES)
def test_layers_of_images_and_their_gradients_are_finite(name):
    given = {key: value for key, value in LAYERS.get(name, {}).items() if value is not None}
    layer = MODULES[name](**given).double()
    images = torch.from_numpy(np.stack([image[None] for image, _ in PICTURES.values()]))
    images.requires_grad_()
    found = layer(images)
    wanted = [images, *layer.parameters()]
    gradients = torch.autograd.grad(found.square().sum(), wanted, allow_unused=True)
    assert all(values is None or values.isfinite().all() for values in (found, *gradients))


@pytest.mark.parametrize("kind", PICTURES)
@pytest.mark.parametrize(("n_similar", "window"), [(1, 3), (7, 3), (20, 12)])
def test_each_patch_is_once_in_its_own_group(kind, n_similar, window):
    image = PICTURES[kind][0][:11]
    own = np.arange(8 * 13)
    near = similar_patches(image[None], 4, window, n_similar)
    by_torch = torch_similar(torch.from_numpy(image)[None, None], 4, window, n_similar).numpy()
    for groups in (near, by_torch):
        assert ((groups == own[:, None]).sum(axis=1) == 1).all()
        assert (np.diff(np.sort(groups, axis=1)) > 0).all()
        for group, patch in ((groups % 13, own % 13), (groups // 13, own // 13)):
            assert np.abs(group - patch[:, None]).max() <= window
    assert (near[:, 0] == own).all()
    rows = patch_rows(image[None], 4)
    distances = np.square(rows[near] - rows[:, None]).sum(axis=2)
    np.testing.assert_allclose(
        np.sort(np.square(rows[by_torch] - rows[:, None]).sum(axis=2)), distances, atol=1e-12
    )
    assert (np.diff(distances) >= 0).all()
