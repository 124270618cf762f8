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
    "ista block": (partial(sparse_coding.ISTABlock, X.shape[-1]), X),
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


def on_meta(make):
    with torch.device("meta"):
        built = make()
    assert all(x.is_meta for x in (*built.parameters(), *built.buffers()))
    return built


def in_empty_memory(make):
    built = on_meta(make).to_empty(device="cpu")
    fill_with_nan(built)
    return built


def loaded(make, state):
    """What takes the state without memory: by a copy into memory, and in place of its tensors."""
    copied, assigned = in_empty_memory(make), on_meta(make)
    copied.load_state_dict(state)
    assigned.load_state_dict(state, assign=True)
    return copied.eval(), assigned.eval()


@pytest.mark.parametrize("name", MAKERS)
def test_states_load_into_what_was_built_without_memory(name):
    make, inputs = MAKERS[name]
    torch.manual_seed(0)
    original = make().eval()
    expected = outputs_of(original, inputs)
    assert expected.isfinite().all()
    for built in loaded(make, original.state_dict()):
        assert_close(outputs_of(built, inputs), expected, atol=0, rtol=0)


@pytest.mark.parametrize("name", OPERATORS)
def test_operators_too(name):
    if OPERATORS[name]().__class__.__name__ == "Solved":
        return

    def make():
        return OPERATORS[name]().double()

    original = make()
    expected = Called(original)(*qkv())
    for built in loaded(make, original.state_dict()):
        assert_close(Called(built)(*qkv()), expected, atol=0, rtol=0)


def test_states_without_memory_leave_no_sinusoids_in_it():
    make = MAKERS["vision, sinusoidal"][0]
    with torch.device("meta"):
        built = make()
        built.load_state_dict(built.state_dict(), assign=True)
    assert all(x.is_meta for x in (*built.parameters(), *built.buffers()))


@pytest.mark.parametrize("make", [*(make for make, _ in MAKERS.values()), *OPERATORS.values()])
def test_what_can_be_reset_needs_no_state(make):
    built = in_empty_memory(make)
    reset = [part for part in built.modules() if hasattr(part, "reset_parameters")]
    reset = [part for part in reset if not isinstance(part, layers.LISTA)]  # by its dictionary
    for part in reset:
        part.reset_parameters()
    assert not any(x.isnan().any() for part in reset for x in (*part.parameters(), *part.buffers()))


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
