import numpy as np
import pytest
import torch

from twinsolve.unrolled.twins import catalogue


def small_inputs(twin, dtype, seed=0):
    """Inputs of any twin on a few tokens or a few pixels: two heads, both pairings."""
    rng = np.random.default_rng(seed)
    if twin.inputs.kind == "image":
        arrays = (rng.random((2, 1, 12, 11)),)
    elif twin.inputs.kind == "features":
        arrays = (rng.standard_normal((24, 6)),)
    else:
        q = rng.standard_normal((2, 24, 20))
        k = q if twin.inputs.pairing == "self" else rng.standard_normal((2, 24, 20))
        arrays = (q, k, rng.standard_normal((2, 24, 4)))
    return tuple(torch.from_numpy(x).to(dtype) for x in arrays)


def headed_inputs(twin, seed=0):
    """Small inputs as above, of three heads, of fewer features than tokens, and in colour."""
    rng = np.random.default_rng(seed)
    if twin.inputs.kind == "image":
        arrays = (rng.random((2, 3, 9, 8)),)
    elif twin.inputs.kind == "features":
        arrays = (rng.standard_normal((17, 6)),)
    else:
        q = rng.standard_normal((3, 17, 6))
        k = q if twin.inputs.pairing == "self" else rng.standard_normal((3, 17, 6))
        arrays = (q, k, rng.standard_normal((3, 17, 4)))
    return tuple(torch.from_numpy(x) for x in arrays)


def built(twin, inputs):
    layer = twin.build(*(x.double().numpy() for x in inputs))
    return layer.to(inputs[0].dtype).eval()


TWINS = {twin.name: twin for twin in catalogue()}


@pytest.fixture(params=TWINS)
def twin(request):
    return TWINS[request.param]
