"""What all networks that denoise have in common."""

import pytest
import torch

from twinsolve.unrolled.models import denoisers


@pytest.mark.parametrize("name", denoisers.__all__)
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_an_image_that_is_not_finite_leaves_the_others_of_its_batch_alone(name, bad):
    torch.manual_seed(0)
    network = getattr(denoisers, name)(sigma=0.1).double().eval()
    images = torch.rand(2, 1, 20, 20, dtype=torch.float64)
    broken = images.clone()
    broken[1, 0, 5, 5] = bad
    with torch.no_grad():
        expected, found = network(images), network(broken)
    torch.testing.assert_close(found[0], expected[0], rtol=1e-12, atol=1e-12)
    assert not torch.isfinite(found[1]).all()
