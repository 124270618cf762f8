"""The transformer of one self-expression problem: layer by layer its solver's iterates."""

import pytest
import torch
from torch.testing import assert_close

import twinsolve
from twinsolve.unrolled.models import SelfExpressionTransformer

SIZES = {"dim": 12, "depth": 4, "num_heads": 3}


def small(**options):
    torch.manual_seed(0)
    return SelfExpressionTransformer(8, 2, 1, 5, **SIZES | options).double().eval()


@pytest.fixture(scope="module")
def images():
    return torch.rand(3, 1, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def changed(model):
    """With steps and penalties of their own, as after training."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return model


@pytest.mark.parametrize("model", [small(), changed(small())], ids=["start", "changed"])
def test_each_layer_is_its_solvers_iterate(model, images):
    for depth in range(1, 1 + SIZES["depth"]):
        model.codes.n_iter = depth
        report = twinsolve.check(model, images)
        assert [row["name"] for row in report.judged] == ["codes"]
        assert report.judged[0]["verdict"] == "correct"
    model.codes.n_iter = SIZES["depth"]


def test_codes_are_of_the_stated_problem_from_one_layer_to_the_next(images):
    """Written out for one head of one image: a step on the codes that the layer before left."""
    model = changed(small())
    Z = model.features(model.tokens(images))[1, 2].detach()
    G = Z @ Z.T
    off = G - torch.diag(G.diagonal())
    lam_max = 2 * off.abs().amax(dim=1, keepdim=True)
    C = torch.zeros_like(G)
    for t in range(SIZES["depth"]):
        step = model.codes.step[t]() / torch.linalg.matrix_norm(Z.T @ Z)
        C = C + step * (Z - C @ Z) @ Z.T
        threshold = step * model.codes.lam[t]() * lam_max / 2
        C = C.sign() * (C.abs() - threshold).clamp(min=0)
        C = C - torch.diag(C.diagonal())
        model.codes.n_iter = t + 1
        assert_close(model.codes(model.features(model.tokens(images)))[1, 2], C, rtol=0, atol=1e-12)


def test_gradients_are_those_of_differences(images):
    model = changed(small(dim=6, depth=2, num_heads=2))
    torch.autograd.gradcheck(model, images[:1].requires_grad_(), atol=1e-7)


def test_scores_do_not_depend_on_the_batch_and_sizes_are_checked(images):
    model = small()
    assert_close(model(images)[1:2], model(images[1:2]))
    with pytest.raises(ValueError, match="num_heads=5"):
        small(num_heads=5)
    with pytest.raises(ValueError, match="depth"):
        small(depth=0)
