"""Every operator, a line for each, and what it is called with."""

import math
import warnings
from functools import partial

import numpy as np
import torch

import twinsolve.unrolled as layers
from twinsolve.twins.laws import Accuracy, Subject, draw_inputs

from .draws import moved
from .operator_calls import context_of


def off_zero(operator):
    """The operator with parameters that start at 0 or 1 moved off it."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in operator.parameters():
            parameter += 0.2 + 0.5 * torch.rand(parameter.shape, generator=generator)
    return operator


def quiet(make, *arguments):
    """Make an operator whose warnings are known."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return make(*arguments)


# For queries of so many features.
OF_WIDTH = {
    "logistic": lambda d: layers.Logistic(d, num_heads=3),
    "graph attention": lambda d: layers.Logistic(d, num_heads=3, negative_slope=0.2),
    "tupe": lambda d: layers.Tupe(6, 3, head_dim=d),
}
OPERATORS = {name: partial(make, 5) for name, make in OF_WIDTH.items()} | {
    "softmax": lambda: layers.Softmax(),
    "softmax scaled": lambda: layers.Softmax(scale=0.7),
    "gaussian": lambda: layers.Gaussian(),
    "gaussian per head": lambda: layers.Gaussian(0.9, num_heads=3, learnable=True),
    "symmetric": lambda: layers.Symmetric(),
    "sparsemax": lambda: layers.Sparsemax(),
    "sparsemax scaled": lambda: layers.Sparsemax(scale=2.0),
    "entmax": lambda: layers.kernel_smoothing.Entmax(scale=1.0),
    "entmax per head": lambda: layers.kernel_smoothing.Entmax(1.3, num_heads=3, learnable=True),
    "linear": lambda: layers.Linear(scale=0.2),
    "feature kernel": lambda: layers.kernel_smoothing.FeatureKernel(),
    "laplace kernel": lambda: layers.Kernel("laplace", 0.8),
    "exponential kernel per head": lambda: layers.Kernel(
        "exponential", 1.5, num_heads=3, learnable=True
    ),
    "local": lambda: layers.Local(2),
    "local on a grid": lambda: layers.Local(1, width=4, scale=0.8),
    "criss-cross": lambda: layers.CrissCross(4),
    "top-k": lambda: layers.TopK(3),
    "spatial gaussian": lambda: layers.SpatialGaussian(1.1, width=4),
    "spatial gaussian per head": lambda: layers.SpatialGaussian(1.1, num_heads=3, learnable=True),
    "twicing": lambda: layers.Twicing(layers.Gaussian(1.2)),
    "twicing twice": lambda: layers.Twicing(layers.Twicing(layers.Softmax())),
    "sparse coding": lambda: layers.SparseCoding(0.5),
    "self-expression": lambda: layers.SparseCoding(0.5, n_iter=8, zero_diagonal=True),
    "nonnegative": lambda: layers.SparseCoding(0.5, nonnegative=True),
    "sparse coding per head": lambda: layers.SparseCoding(0.5, num_heads=3, learnable=True),
    "relative sparse coding": lambda: layers.SparseCoding(
        0.2, relative=True, n_iter=4, num_heads=3, learnable=True, per_iteration=True
    ),
    "relative self-expression": lambda: layers.SparseCoding(0.2, relative=True, zero_diagonal=True),
    "support steps": lambda: layers.SparseCoding(0.5, step="support", num_heads=3, learnable=True),
    "support self": lambda: layers.SparseCoding(
        0.5, n_iter=8, step="support", zero_diagonal=True, nonnegative=True
    ),
    "locally linear": lambda: layers.LocallyLinear(4),
    "locally linear self": lambda: layers.LocallyLinear(4, zero_diagonal=True),
    "attn scale": lambda: off_zero(layers.AttnScale(layers.Softmax())),
    "attn scale per head": lambda: off_zero(layers.AttnScale(layers.Gaussian(), num_heads=3)),
    "attn scale of twicing": lambda: off_zero(layers.AttnScale(layers.Twicing(layers.Softmax()))),
    "twicing of attn scale": lambda: layers.Twicing(off_zero(layers.AttnScale(layers.Softmax()))),
    "re-attention": lambda: off_zero(layers.ReAttention(layers.Softmax(), 3)),
    "decaying sums": lambda: layers.online_regression.GatedLinear(0.2),
    "gated sums": lambda: layers.online_regression.GatedLinear(0.2, "feature"),
    "delta rule": lambda: layers.online_regression.DeltaRule(largest_step=2.0),
    "gated delta rule": lambda: layers.online_regression.DeltaRule("token"),
    "preconditioned": lambda: layers.online_regression.DeltaRule("feature", preconditioned=True),
    "heavy ball": lambda: layers.online_regression.HeavyBall(),
    "mesa": lambda: layers.online_regression.Mesa(0.7, num_heads=3, learnable=True),
    "mesa by steps": lambda: layers.online_regression.Mesa(0.7, n_iter=2, forget="token"),
    "local linear": lambda: layers.online_regression.LocalLinear("exact"),
    "parallax": lambda: layers.online_regression.LocalLinear(scale=0.7),
    "mini-batches": lambda: layers.online_regression.MiniBatch(3, 2.0),
    "proximal point": lambda: layers.online_regression.ProximalPoint("feature"),
    "linformer": lambda: moved(layers.Linformer(8192, 6), 0.05),
    "nystrom": lambda: layers.Nystrom(4),
    "hopfield": lambda: layers.Hopfield(3),
    "hopfield scaled": lambda: layers.Hopfield(2, beta=0.8),
    "token statistics": lambda: layers.TokenStatistics(0.3, c=0.7),
    "token statistics per head": lambda: layers.TokenStatistics(0.3, num_heads=3, learnable=True),
    "coding rate": lambda: layers.coding_rate.CodingRate(0.7),
    "coding rate per head": lambda: layers.coding_rate.CodingRate(
        0.1, relative=True, num_heads=3, learnable=True
    ),
    "subspace self-attention": lambda: layers.coding_rate.SubspaceSelfAttention(0.6),
    "talking heads": lambda: off_zero(layers.kernel_smoothing.TalkingHeads(3)),
    "bilateral": lambda: layers.Bilateral(),
    "bilateral per head": lambda: layers.Bilateral(1.1, 0.9, num_heads=3, learnable=True),
    "bilateral distances": lambda: layers.Bilateral(0.8, 1.3, distances=True, learnable=True),
    "nonlocal": lambda: layers.Bilateral(math.inf, 1.2),
    "alibi": lambda: layers.ALiBi(3),
    "alibi learnable": lambda: layers.ALiBi(3, slopes=[0.3, 0.1, 0.0], learnable=True),
    "elliptical": lambda: layers.Elliptical(),
    "sinkhorn": lambda: layers.Sinkhorn(layers.Gaussian(1.2), n_iter=4),
    "sinkhorn elliptical": lambda: layers.Sinkhorn(layers.Elliptical()),
    "twicing bilateral": lambda: layers.Twicing(layers.Bilateral()),
    "ridge": lambda: layers.Ridge(0.7),
    "ridge self": lambda: layers.Ridge(0.7, zero_diagonal=True),
    "ridge per head": lambda: layers.Ridge(0.7, num_heads=3, learnable=True, zero_diagonal=True),
    "low rank": lambda: layers.LowRank(0.7),
    "low rank per head": lambda: layers.LowRank(2.0, num_heads=3, learnable=True),
    "relative ridge self": lambda: layers.Ridge(0.1, relative=True, zero_diagonal=True),
    "relative low rank": lambda: layers.LowRank(0.1, relative=True, num_heads=3, learnable=True),
    "twicing explicit": lambda: layers.Twicing(layers.Softmax()),
    "neutreno": lambda: layers.Neutreno(layers.Softmax()),
    "neutreno per head": lambda: layers.Neutreno(
        layers.Gaussian(1.2), 0.4, num_heads=3, learnable=True, n_iter=3
    ),
    "neutreno safe": lambda: layers.Neutreno(layers.Twicing(layers.Softmax()), relaxed=True),
    "twicing of neutreno": lambda: quiet(layers.Twicing, layers.Neutreno(layers.Gaussian(1.2))),
    "solved neutreno": lambda: layers.Solved(
        layers.Neutreno(layers.Softmax(), learnable=True), tol=1e-15
    ),
    "solved sparse coding": lambda: layers.Solved(layers.SparseCoding(4.0), tol=1e-13),
    "solved self-expression": lambda: layers.Solved(
        layers.SparseCoding(4.0, zero_diagonal=True, num_heads=3, learnable=True), tol=1e-13
    ),
}


def make(name, width=5):
    """The operator for queries of this width; weights that are drawn are the same each time."""
    torch.manual_seed(0)
    operator = OF_WIDTH[name](width) if name in OF_WIDTH else OPERATORS[name]()
    return operator.double()


def subject_of(name):
    """The operator as its laws take it, without a reference."""
    inputs = draw_inputs("tokens", np.random.default_rng(0), same=False)
    layer = make(name, inputs[0].shape[-1])
    return Subject(
        layer, inputs, declared=layer,
        build=lambda inputs, rng: make(name, inputs[0].shape[-1]),
        make_context=lambda inputs: context_of(*inputs),
        twice={"backward": "either", "torch.func": "either"},
        accuracy=Accuracy(
            passes=lambda layer: 3, logit_range=lambda *_: 10.0, iterates=layer.data_dependent,
            continuous=getattr(layer, "step", None) != "support",
        ),
    )  # fmt: skip
