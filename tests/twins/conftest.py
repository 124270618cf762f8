import numpy as np
import pytest
import torch

from twinsolve.twins import catalogue
from twinsolve.twins.judging.subjects import LawsTried
from twinsolve.twins.laws import draw_inputs


def small_inputs(twin, dtype, *, heads=2, n=24, width=20, images=(2, 1, 12, 11)):
    """Inputs of any twin on a few tokens or a few pixels, of both pairings."""
    rng, same = np.random.default_rng(0), twin.inputs.pairing == "self"
    sizes = {"heads": heads, "n": n, "images": images}
    sizes["width"] = width if twin.inputs.kind == "tokens" else 6
    return tuple(x.to(dtype) for x in draw_inputs(twin.inputs.kind, rng, same=same, **sizes))


def headed_inputs(twin):
    """Small inputs of three heads, of fewer features than tokens, and in colour."""
    return small_inputs(twin, torch.float64, heads=3, n=17, width=6, images=(2, 3, 9, 8))


def built(twin, inputs):
    layer = twin.build(*(x.double().numpy() for x in inputs))
    return layer.to(inputs[0].dtype).eval()


@pytest.fixture
def no_laws(monkeypatch):
    """For what depends on the data: laws are tried on drawn tokens, the same for every data."""
    for place in ("layer_check", "model_check"):
        where = f"twinsolve.twins.judging.{place}.try_laws"
        monkeypatch.setattr(where, lambda *given: LawsTried([]))


TWINS = {twin.name: twin for twin in catalogue()}


@pytest.fixture(params=TWINS)
def twin(request):
    return TWINS[request.param]
