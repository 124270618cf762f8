"""Numbers that tests draw, the same in each run."""

import torch


def tokens(*shape, seed=0, dtype=torch.float64):
    """Of mean zero and deviation one."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=dtype)


def uniform(*shape, seed=0):
    """Between zero and one, as pixels are."""
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(shape, generator=generator, dtype=torch.float64)


class OnGpu(torch.Tensor):
    """It says that it is on a GPU, without one."""

    is_cuda = True


def moved(layer, scale=0.2, seed=0):
    """The layer with all of its parameters moved off their start."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in layer.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
            parameter += scale * noise
    return layer
