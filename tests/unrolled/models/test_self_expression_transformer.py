"""The transformer of one self-expression problem: layer by layer its solver's iterates."""

import pytest
import torch
from torch.nn import functional as F
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
        judged = [x for x in report.findings if x.verdict != "not judged"]
        assert [(x.where, x.verdict) for x in judged] == [("codes", "holds")]
    model.codes.n_iter = SIZES["depth"]


def written_out(model, image):
    """Scores of one image, by the docstring's formulas, head by head."""
    patches = F.unfold(image[None], 2, stride=2)[0].mT
    x = patches @ model.patch_embedding.projection.weight.T + model.patch_embedding.projection.bias
    x = model.token_norm(x + model.positions.weight)
    features, values = (
        (x @ part.projection.weight.T).chunk(3, dim=1) for part in (model.features, model.values)
    )
    coded = []
    for Z, V in zip(features, values, strict=True):
        G = Z @ Z.T
        lam_max = 2 * (G - torch.diag(G.diagonal())).abs().amax(dim=1, keepdim=True)
        C = torch.zeros_like(G)
        for t in range(SIZES["depth"]):
            step = model.codes.step[t]() / torch.linalg.matrix_norm(Z.T @ Z)
            C = C + step * (Z - C @ Z) @ Z.T
            threshold = step * model.codes.lam[t]() * lam_max / 2
            C = C.sign() * (C.abs() - threshold).clamp(min=0)
            C = C - torch.diag(C.diagonal())
        coded.append(C @ V)
    x = model.norm(x + model.out_proj(torch.cat(coded, dim=1)))
    return model.head(x.mean(dim=0))


def test_scores_are_those_of_the_stated_problem(images):
    """A step in each layer on the codes that the one before left."""
    model = changed(small())
    expected = torch.stack([written_out(model, image) for image in images])
    assert_close(model(images), expected, rtol=0, atol=1e-12)


def test_gradients_are_those_of_differences(images):
    model = changed(small(dim=6, depth=2, num_heads=2))
    torch.autograd.gradcheck(model, images[:1].requires_grad_(), atol=1e-7)
