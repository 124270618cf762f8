"""What all networks that denoise have in common."""

import pytest
import torch

from twinsolve.unrolled.models import denoisers


@pytest.mark.parametrize("name", denoisers.__all__)
def test_what_is_not_finite_is_seen_in_the_answer_and_in_no_other_image(name):
    """A pixel, in the answer to its image alone; a parameter, in every answer."""
    torch.manual_seed(0)
    network = getattr(denoisers, name)(sigma=0.1).double().eval().requires_grad_(False)
    images = torch.rand(2, 1, 20, 20, dtype=torch.float64)
    for bad in (torch.nan, torch.inf, -torch.inf):
        broken = images.clone()
        broken[1, 0, 5, 5] = bad
        expected, found = network(images), network(broken)
        torch.testing.assert_close(found[0], expected[0], rtol=1e-12, atol=1e-12)
        assert not torch.isfinite(found[1]).all(), bad
    for place, parameter in enumerate(network.parameters()):
        kept = parameter.clone()
        parameter.fill_(torch.nan)
        assert not torch.isfinite(network(images)).all(), place
        parameter.copy_(kept)


# Of pixels in [0, 1]: the spacing of the dtype at 1 times a few hundred roundings of either sign.
ROUNDING = {torch.float64: 1e-5, torch.float32: 1e-5, torch.bfloat16: 0.1, torch.float16: 0.02}


@pytest.mark.parametrize("name", denoisers.__all__)
def test_the_answer_has_the_type_of_the_images_and_autocast_computes_what_it_promises(name):
    torch.manual_seed(0)
    network, images = getattr(denoisers, name)().eval(), torch.rand(2, 1, 24, 20)
    with torch.no_grad():
        expected = network(images)
        for dtype, rounding in ROUNDING.items():
            found = network(images.to(dtype))
            assert found.dtype == dtype
            torch.testing.assert_close(found.float(), expected, rtol=0, atol=rounding)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = network(images)
    torch.testing.assert_close(found.float(), expected, rtol=0, atol=ROUNDING[torch.bfloat16])
    if hasattr(network, "certificate"):
        assert found.dtype == torch.float32
        rounding = 4 * torch.finfo(torch.float32).eps / (1 - network.ridge.rho)
        assert (network.certificate(images, found) <= network.tol + rounding).all()
