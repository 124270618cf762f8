import pytest
import torch
from torch import nn
from torch.testing import assert_close

from twinsolve.unrolled import ConvMixer

IMAGES = torch.randn(3, 2, 8, 12, generator=torch.Generator().manual_seed(0))


def model(**options):
    torch.manual_seed(0)
    return ConvMixer(**{"dim": 6, "depth": 2, "kernel_size": 3, "patch_size": 2} | {
        "num_classes": 5, "in_channels": 2} | options)  # fmt: skip


def test_gradcheck():
    mixer = model(dim=3, depth=1, dtype=torch.float64).eval()
    assert torch.autograd.gradcheck(mixer, IMAGES[:1].double().requires_grad_())


def test_constructs_on_the_meta_device_and_exports():
    empty, mixer = model(device="meta").to_empty(device="cpu"), model()
    for m in (empty, mixer):
        torch.manual_seed(1)
        m.reset_parameters()
        m.eval()
    assert_close(empty(IMAGES), mixer(IMAGES), atol=0, rtol=0)
    exported = torch.export.export(mixer, (IMAGES,)).module()
    assert_close(exported(IMAGES), mixer(IMAGES), atol=1e-6, rtol=0)
    assert isinstance(model(num_classes=0).head, nn.Identity)


def test_bad_sizes_and_images_are_named():
    for name in ("dim", "kernel_size", "patch_size", "in_channels"):
        with pytest.raises(ValueError, match=f"{name}: must be a whole number >= 1"):
            model(**{name: 0})
    for shape in ((3, 1, 8, 12), (3, 2, 7, 12), (3, 2, 8, 11), (2, 8, 12)):
        with pytest.raises(ValueError, match=r"images: must be \(batch, 2, height, width\)"):
            model()(torch.randn(shape))
