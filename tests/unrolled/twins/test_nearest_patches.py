"""Of equally close patches the layer's choice counts, of others the solver's."""

import numpy as np
import pytest
import torch

from twinsolve.unrolled.sparse_coding import similar_patches as choice
from twinsolve.unrolled.twins import catalogue

NAMES = ["nonlocal-filter-diffusion", "nonlocal-filter-diffusion-network", "group-coding"]
TWINS = {twin.name: twin for twin in catalogue() if twin.name in NAMES}


def measured(name):
    twin = TWINS[name]
    images = np.random.default_rng(0).integers(3, size=(2, 1, 18, 18)) / 2  # many ties
    layer = twin.build(images).eval()
    return twin.relation.measure(twin, layer, (torch.from_numpy(images),))


@pytest.mark.parametrize("name", NAMES)
def test_images_of_few_grey_levels_are_no_false_alarm(name):
    assert measured(name).passed


@pytest.mark.parametrize("name", NAMES)
def test_a_choice_of_patches_that_are_further_is_no_tie(name, monkeypatch):
    right = choice.similar_patches

    def shifted(images, patch_size, window, n_similar):
        found = right(images, patch_size, window, n_similar)
        return torch.cat([found[:, 1:], found[:, :1].roll(1, dims=0)], dim=1)

    monkeypatch.setattr(choice, "similar_patches", shifted)
    assert not measured(name).passed
