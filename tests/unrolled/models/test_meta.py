"""Every public module can be built without memory and then take a state."""

import inspect
from functools import partial

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import twinsolve.unrolled as layers
from twinsolve.unrolled import image_filters, models, nonlocal_energy, sparse_coding
from twinsolve.unrolled.models import denoisers

from ..operator_calls import Called, qkv
from ..operator_cases import OPERATORS
from .test_catalogue import BACKBONES, IDS, IMAGES

ATOMS = torch.randn(6, 4, generator=torch.Generator().manual_seed(0)).tolist()
X = torch.randn(2, 16, 4, generator=torch.Generator().manual_seed(1))
PICTURE = torch.rand(1, 1, 24, 24, generator=torch.Generator().manual_seed(2))
SINUSOIDAL = ("vision", "windowed", "class_attention")
MAKERS = {
    **{name: (make, IDS if name == "language" else IMAGES.float())
       for name, (make, _) in BACKBONES.items()},
    **{f"{name}, sinusoidal": (
        partial(BACKBONES[name][0], positions="sinusoidal"),
        IDS if name == "language" else IMAGES.float(),
    ) for name in SINUSOIDAL},
    "tupe, sinusoidal": (
        partial(BACKBONES["vision"][0], positions="sinusoidal", operator="tupe"), IMAGES.float()
    ),
    **{f"lista, {kind}": (partial(layers.LISTA, ATOMS, 3, 0.1, kind), X)
       for kind in ("step", "lista", "coupled", "alista", "adaptive")},
    "patch sparse coding": (partial(sparse_coding.PatchSparseCoding, ATOMS, 0.1), PICTURE),
    **{name: (getattr(denoisers, name), PICTURE) for name in denoisers.__all__
       if isinstance(getattr(denoisers, name), type)},
    "segmenter": (partial(models.Segmenter, 3, (24, 24), in_channels=1), PICTURE),
    "self-expression": (partial(models.SelfExpressionTransformer, 8, 2, 1, 5, 8, 2, 2),
                        IMAGES.float()),
    "sequence classifier": (
        partial(models.SequenceClassifier, 3, 8, 2, 2, 18, vocab_size=11), IDS),
    "conv mixer": (partial(layers.ConvMixer, 8, 2, 3, 2, 5, in_channels=1), IMAGES.float()),
    "convex ridge": (partial(layers.ConvexRidge, 0.3, 0.1), PICTURE),
    "nonlocal means": (partial(layers.NonLocalMeansAttention, 0.2, learnable=True), PICTURE),
    "bilateral filter": (image_filters.BilateralFilter, PICTURE),
    "embedded means": (partial(image_filters.EmbeddedMeans, patch_weights="gaussian"), PICTURE),
    "deep self-expression": (partial(layers.DeepSelfExpression, 4), X[0]),
    "self-expressive network": (
        partial(layers.SelfExpressiveNetwork, 4, hidden_features=(8,), width=8), X[0]),
    "unrolled admm": (partial(layers.UnrolledADMM, 2, 0.1), X[0]),
    "unrolled self-expression": (partial(layers.UnrolledSelfExpression, 2, 0.1), X[0]),
    "experts": (partial(layers.SparseMixtureOfExperts, 4, 3, 4), X),
    "feat scale": (partial(layers.FeatScale, 4), X),
    "token graying": (layers.TokenGraying, X),
    "block": (partial(models.Block, 4, 2), X),
}  # fmt: skip


def fill_with_nan(module):
    """What memory may hold."""
    for x in (*module.parameters(), *module.buffers()):
        if x.is_floating_point():
            nn.init.constant_(x.data, torch.nan)


def outputs_of(module, inputs):
    torch.manual_seed(0)
    with torch.no_grad():
        given = module(inputs)
    return given[0] if isinstance(given, tuple) else given


@pytest.mark.parametrize("name", MAKERS)
def test_states_load_into_what_was_built_without_memory(name):
    make, inputs = MAKERS[name]
    torch.manual_seed(0)
    original = make().eval()
    with torch.device("meta"):
        built = make().eval()
    assert all(x.is_meta for x in (*built.parameters(), *built.buffers()))
    built.to_empty(device="cpu")
    fill_with_nan(built)
    built.load_state_dict(original.state_dict())
    expected = outputs_of(original, inputs)
    assert_close(outputs_of(built, inputs), expected, atol=0, rtol=0)
    assert expected.isfinite().all()


@pytest.mark.parametrize("name", OPERATORS)
def test_operators_too(name):
    if OPERATORS[name]().__class__.__name__ == "Solved":
        return
    original = OPERATORS[name]().double()
    with torch.device("meta"):
        built = OPERATORS[name]().double()
    built.to_empty(device="cpu")
    fill_with_nan(built)
    built.load_state_dict(original.state_dict())
    found, expected = (Called(x)(*qkv()) for x in (built, original))
    assert_close(found, expected, atol=0, rtol=0)


def test_no_public_module_is_forgotten():
    wings = (layers, models, sparse_coding, nonlocal_energy, image_filters)
    public = {x for wing in wings for x in map(partial(getattr, wing), wing.__all__)}
    modules = {x for x in public if inspect.isclass(x) and issubclass(x, nn.Module)}
    made = {type(x) for make, _ in MAKERS.values() for x in make().modules()}
    made |= {type(x) for make in OPERATORS.values() for x in make().modules()}
    others = {layers.Operator, layers.FixedPoint, layers.Residual, layers.Biased}
    others |= {
        layers.GeneralizedResidual,
        nonlocal_energy.NonlocalEnergyStep,
    }  # need more than an input
    assert not {x.__name__ for x in modules - made - others}
