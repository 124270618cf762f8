"""Derivatives of derivatives: right, or refused, for every layer that has a gradient."""

from copy import deepcopy
from functools import partial

import pytest
import torch
from torch.autograd import gradgradcheck
from torch.func import functional_call, grad, jvp, vjp, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.testing import assert_close

import twinsolve.unrolled as layers
from twinsolve.unrolled import make_operator

from .operator_calls import Called, tokens
from .operator_cases import OPERATORS


def test_the_fused_kernel_names_the_way_to_second_derivatives():
    q, k, v = (x.requires_grad_() for x in qkv())
    (slope,) = torch.autograd.grad(layers.Softmax()(q, k, v).sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match=r"scaled_dot_product.*MATH"):
        torch.autograd.grad(slope.sum(), k)


def repeated(X):
    """A matrix of the size of X whose singular values are 3, 3, 1, 1, ..."""
    U, s, Rt = torch.linalg.svd(X, full_matrices=False)
    return (U * torch.tensor([3.0, 3.0, 1.0, 1.0, 1.0])[: s.shape[-1]]) @ Rt


def below_the_largest():
    """Queries, keys and values: the keys' smaller singular values are equal to the last digit."""
    q, k, v = qkv()
    return q, torch.eye(6, 5).double() * torch.tensor([4.0, 2.0, 2.0, 1.0, 1.0]) + 0 * k, v


def qkv():
    return tuple(tokens(1, 3, 6, 5, seed=seed) for seed in range(3))


def wide():
    """Values far narrower than queries, for which attention leaves PyTorch's kernel."""
    q, k = tokens(1, 1, 264, 48, seed=1), tokens(1, 1, 264, 48, seed=2)
    return q / 4, k / 4, tokens(1, 1, 264, 2, seed=3)


# Operators whose gradients are our own, at other inputs than those of the laws too, and layers
# that are no operators.
OF_OPERATORS = (
    "sparsemax", "laplace kernel", "spatial gaussian per head", "relative self-expression",
    "support self", "ridge per head", "low rank per head", "solved sparse coding",
)  # fmt: skip
RIDGE = layers.Ridge(0.1, relative=True, num_heads=3, learnable=True)
LOW_RANK = layers.LowRank(0.1, relative=True, num_heads=3, learnable=True)
IMAGE = partial(layers.NonLocalMeansAttention, 0.8, patch_size=3, learnable=True)
LAYERS = {name: (lambda name=name: Called(OPERATORS[name]()), qkv) for name in OF_OPERATORS} | {
    "relative ridge at repeated values": (lambda: Called(deepcopy(RIDGE)), below_the_largest),
    "relative low rank at repeated values": (lambda: Called(deepcopy(LOW_RANK)), below_the_largest),
    "low rank of few keys": (
        lambda: Called(layers.LowRank(0.7)),
        lambda: tuple(x[..., :4, :] for x in qkv()),
    ),
    "narrow values": (lambda: Called(layers.Softmax()), wide),
    "gray svd": (lambda: layers.TokenGraying("svd", eps=0.6), lambda: (repeated(tokens(6, 4)),)),
    "image": (lambda: IMAGE(patch_distance=2), lambda: (tokens(1, 1, 6, 6),)),
    "whole noisy image": (
        lambda: IMAGE(patch_distance=None, sigma=0.1),
        lambda: (tokens(1, 1, 6, 6),),
    ),
    "unrolled relative": (
        lambda: layers.UnrolledSelfExpression(3, lam=0.1, relative=True),
        lambda: (tokens(6, 5),),
    ),
    "network": (
        lambda: layers.SelfExpressiveNetwork(5, hidden_features=(7,), width=4),
        lambda: (tokens(6, 5),),
    ),
}


# What is refused outside torch.func.
REFUSED = {
    "solved sparse coding": "solved_lasso: has no second derivative",
    "gray svd": "TokenGraying.* has no second derivative",
}


class Problem:
    """A scalar function of a layer's inputs and parameters, their values and a direction."""

    def __init__(self, name):
        torch.manual_seed(0)
        make, inputs = LAYERS[name]
        self.layer = make().double()
        inputs = inputs()
        self.names = dict(self.layer.named_parameters())
        self.n_inputs = len(inputs)
        values = (*inputs, *(p.detach() for p in self.names.values()))
        self.values = tuple(x.clone().requires_grad_() for x in values)
        self.plain = tuple(x.detach() for x in values)
        self.direction = tuple(
            tokens(x.numel(), seed=i + 9).reshape(x.shape) for i, x in enumerate(values)
        )

    def __call__(self, *values):
        given = dict(zip(self.names, values[self.n_inputs :], strict=True))
        out = functional_call(self.layer, given, values[: self.n_inputs])
        return (out + torch.arange(out.numel()).cos().reshape(out.shape)).sin().sum()

    def along(self, gradients):
        return sum((g * d).sum() for g, d in zip(gradients, self.direction, strict=True))

    def slope(self):
        """The derivative along the direction, to be differentiated again."""
        return self.along(gradient(self(*self.values), self.values, create_graph=True))

    def difference(self, h=1e-5):
        """Differences of fourth order of the first derivatives, along the direction."""
        change = [torch.zeros_like(x) for x in self.plain]
        for step, weight in ((1, 8), (-1, -8), (2, -1), (-2, 1)):
            moved = zip(self.plain, self.direction, strict=True)
            moved = [(x + step * h * d).requires_grad_() for x, d in moved]
            for total, part in zip(change, gradient(self(*moved), moved), strict=True):
                total += weight * part / (12 * h)
        return change


def gradient(out, values, **options):
    options |= {"allow_unused": True, "materialize_grads": True}
    return torch.autograd.grad(out, values, **options)


def close(found, expected, tolerance):
    """To a tolerance relative to the largest number of all, as they are one vector."""
    atol = tolerance * max(float(x.abs().max()) for x in expected)
    for a, b in zip(found, expected, strict=True):
        assert_close(a, b, atol=atol, rtol=0)


@pytest.fixture(params=LAYERS)
def name(request, monkeypatch):
    """In blocks that do not hold all queries, so that they are recomputed."""
    monkeypatch.setattr("twinsolve.unrolled.attention.fused._QUERY_BLOCK", 4)
    return request.param


def test_second_derivatives_are_right_or_refused(name):
    """Differences err by h^4 = 1e-20 of a fifth derivative, and by eps / h = 1e-11 in rounding."""
    f = Problem(name)
    with sdpa_kernel(SDPBackend.MATH):
        expected, slope = f.difference(), f.slope()
        if name not in REFUSED:
            found = gradient(slope, f.values, retain_graph=True)
            alone = [gradient(slope, [x], retain_graph=True)[0] for x in f.values]
            close(found, expected, 1e-8)
            close(alone, found, 1e-13)
            _, product = torch.autograd.functional.hvp(f, f.plain, f.direction)
            close(product, found, 1e-13)
            return
        with pytest.raises(RuntimeError, match=REFUSED[name]):
            slope.backward(retain_graph=True)
        for x, change in zip(f.values, expected, strict=True):
            if change.abs().max() > 0:
                with pytest.raises(RuntimeError, match=REFUSED[name]):
                    gradient(slope, [x], retain_graph=True)


def test_transforms_give_the_same_or_refuse(name):
    """Gradients, of mapped functions, mapped, of batches, twice, and forward."""
    f = Problem(name)
    all_values = tuple(range(len(f.values)))

    def twice(x):
        return torch.stack([x, x])

    def mapped(*values):
        return vmap(f)(*map(twice, values)).sum()

    with sdpa_kernel(SDPBackend.MATH):
        out = f(*f.values)
        expected = gradient(out, f.values, retain_graph=True)
        if name.startswith("solved"):
            for transformed in (grad(f, all_values), mapped, lambda *x: jvp(f, x, x)):
                with pytest.raises(RuntimeError, match=r": torch\.func cannot transform"):
                    transformed(*f.plain)
            return
        weights = torch.tensor([1.0, 2.0], dtype=torch.float64)
        several = torch.autograd.grad(
            out, f.values, weights, is_grads_batched=True, allow_unused=True
        )
        several = [0 * x if y is None else y[1] for x, y in zip(expected, several, strict=True)]
        close(several, [2 * x for x in expected], 1e-12)
        close(grad(f, all_values)(*f.plain), expected, 1e-12)
        close(grad(mapped, all_values)(*f.plain), [2 * x for x in expected], 1e-12)
        found = vmap(grad(f, all_values))(*map(twice, f.plain))
        close([x[1] for x in found], expected, 1e-12)
        _, pull = vjp(f, *f.plain)
        close([x[1] for x in vmap(pull)(weights)], [2 * x for x in expected], 1e-12)
        try:
            change = jvp(f, f.plain, f.direction)[1]
        except NotImplementedError as error:
            assert "forward" in str(error)  # noqa: PT017 -- PyTorch names the function
        else:
            close([change], [f.along(expected)], 1e-11)
        again = grad(lambda *x: f.along(grad(f, all_values)(*x)), all_values)
        if name not in REFUSED:
            close(again(*f.plain), f.difference(), 1e-8)
        else:
            with pytest.raises(RuntimeError, match=REFUSED[name]):
                again(*f.plain)


def test_low_rank_has_two_derivatives_and_no_third():
    q, k, v = (x[..., :4, :3].requires_grad_() for x in qkv())
    layer = layers.LowRank(0.9, num_heads=3, learnable=True, dtype=torch.float64)
    assert gradgradcheck(layer, (q, repeated(k).detach().requires_grad_(), v))
    first = gradient(layer(q, k, v).sin().sum(), [k], create_graph=True)[0]
    second = gradient(first.sin().sum(), [k], create_graph=True)[0]
    with pytest.raises(RuntimeError, match="LowRank: has no third derivative"):
        gradient(second.sum(), [k])


@pytest.mark.parametrize("name", ["low_rank", "ridge", "sparse_coding", "neutreno"])
def test_padding_in_a_layer_leaves_second_derivatives_finite(name):
    """Fewer visible keys than a head has features: the Gram matrix has several zero eigenvalues."""
    torch.manual_seed(0)
    operator = make_operator(name, num_heads=2, head_dim=8)
    layer = layers.Attention(16, 2, operator=operator, dtype=torch.float64)
    x = tokens(1, 6, 16).requires_grad_()
    hidden, context = torch.arange(6)[None] >= 4, layers.Context(tokens(6, 16, seed=1))
    with sdpa_kernel(SDPBackend.MATH):
        out = layer(x, x, x, hidden, need_weights=False, context=context)[0][:, :4]
        (first,) = gradient(out.square().sum(), [x], create_graph=True)
        (second,) = gradient(first.square().sum(), [x])
        assert second.isfinite().all()


def test_support_steps_have_finite_second_derivatives_where_singular_values_tie():
    q, k = tokens(4, 3).requires_grad_(), torch.eye(3, dtype=torch.float64, requires_grad=True)
    out = layers.SparseCoding(0.3, step="support")(q, k, k)
    first = gradient(out.square().sum(), [q, k], create_graph=True)
    second = gradient(sum(x.square().sum() for x in first), [q, k])
    assert all(x.isfinite().all() for x in second)
