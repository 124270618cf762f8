import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

from twinsolve.unrolled import ConvMixer

IMAGES = torch.randn(3, 2, 8, 12, generator=torch.Generator().manual_seed(0))


def model(**options):
    torch.manual_seed(0)
    return ConvMixer(**{"dim": 6, "depth": 2, "kernel_size": 3, "patch_size": 2} | {
        "num_classes": 5, "in_channels": 2} | options)  # fmt: skip


def normalised(norm, x):
    """Batch norm of a fresh layer in training: each channel over images and places."""
    mean = x.mean(dim=(0, 2, 3), keepdim=True)
    return (x - mean) / (x.var(dim=(0, 2, 3), correction=0, keepdim=True) + norm.eps).sqrt()


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
@pytest.mark.parametrize("skip", [True, False])
@pytest.mark.parametrize("kernel_size", [3, 4])
def test_equals_the_formula(skip, kernel_size):
    mixer = model(skip=skip, kernel_size=kernel_size).train()
    embed = mixer.patch_embedding
    x = normalised(mixer.norm, F.gelu(F.conv2d(IMAGES, embed.weight, embed.bias, stride=2)))
    left, right = (kernel_size - 1) // 2, kernel_size // 2
    for layer in mixer.layers:
        padded = F.pad(x, (left, right, left, right))
        y = F.conv2d(padded, layer.spatial.weight, layer.spatial.bias, groups=6)
        y = normalised(layer.spatial_norm, F.gelu(y))
        x = x + y if skip else y
        weight = layer.pointwise.weight[:, :, 0, 0]
        y = torch.einsum("oc,bchw->bohw", weight, x) + layer.pointwise.bias[:, None, None]
        x = normalised(layer.pointwise_norm, F.gelu(y))
    assert_close(mixer(IMAGES), mixer.head(x.mean(dim=(2, 3))), atol=2e-5, rtol=0)


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


@pytest.mark.parametrize("name", ["dim", "kernel_size", "patch_size", "in_channels"])
def test_bad_sizes_are_named(name):
    with pytest.raises(ValueError, match=f"{name}: must be a whole number >= 1"):
        model(**{name: 0})


@pytest.mark.parametrize("shape", [(3, 1, 8, 12), (3, 2, 7, 12), (3, 2, 8, 11), (2, 8, 12)])
def test_bad_images_are_named(shape):
    with pytest.raises(ValueError, match=r"images: must be \(batch, 2, height, width\)"):
        model()(torch.randn(shape))
