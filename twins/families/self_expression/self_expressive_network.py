"""Twins: the self-expressive network by its formula, and the elastic net that bounds its loss.

The evidence is a formula: the coefficients are the output of a network, which solves no problem.
"""

from functools import partial
from typing import Any

import numpy as np
import torch
from scipy.linalg import hadamard
from torch import Tensor

from ....solvers import sparse_self_expression
from ....unrolled.self_expression import SelfExpressiveNetwork
from ...heads import Array
from ...laws.subject import as_array
from ...pairs import Derivatives, Inputs, Numerics
from ...registry import add_twin
from ...relations import Bound, Identity, Inequalities
from ..tasks import expressing

_TOL = 1e-12
_N_PAIRS = 8
_SMALL, _SHARE = 0.3, 0.3  # weights with nearly linear tanh; threshold as a share of products


def _build(X: Array, **settings: Any) -> SelfExpressiveNetwork:
    """Build with weights so large that products have many sizes, some below the threshold."""
    generator = torch.Generator().manual_seed(0)
    first: dict[str, Any] = {"hidden_features": (32, 32), "width": 16, "threshold": 0.3}
    network = SelfExpressiveNetwork(X.shape[1], dtype=torch.float64, **first | settings)
    size = X.shape[1] ** 0.5 / np.linalg.norm(X, axis=1).mean()
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if name.endswith("weight"):
                scale = size if name.split(".")[1] == "0" else 1.0
                std = scale * parameter.shape[1] ** -0.5
                parameter.normal_(std=std, generator=generator)
            elif name.endswith("bias"):
                parameter.normal_(std=0.1, generator=generator)
    return network


def _build_products(X: Array) -> SelfExpressiveNetwork:
    """Build so that coefficients are about inner products minus a share of the largest one."""
    dim = X.shape[1]
    network = SelfExpressiveNetwork(
        dim, hidden_features=(), width=dim, threshold=_SHARE * _SMALL**2 * dim, dtype=torch.float64
    )
    with torch.no_grad():
        for perceptron in (network.query, network.key):
            weight, bias = perceptron.parameters()
            weight.copy_(_SMALL * torch.eye(dim))
            bias.zero_()
    return network


def _coefficients(network: SelfExpressiveNetwork, X: Tensor) -> Tensor:
    return torch.from_numpy(network.coefficients(X).toarray()).to(X.dtype)


def _solve_coefficients(network: SelfExpressiveNetwork, X: Array) -> Array:
    products = _products(network, X)
    return np.asarray(products - np.diag(products.diagonal()))


def _solve(network: SelfExpressiveNetwork, X: Array) -> Array:
    C = _solve_coefficients(network, X)
    return np.hstack([C @ X, C, (_loss(network, X, C) / network.gamma)[:, None]])


def _products(network: SelfExpressiveNetwork, X: Array) -> Array:
    """Return the coefficients of all points in all points, including themselves."""
    Q, K = _run_perceptron(network.query, X), _run_perceptron(network.key, X)
    b, products = float(network.threshold().detach().double()), Q @ K.T
    shrunk = np.where(np.abs(products) > b, products - np.sign(products) * b, 0)
    return np.asarray(shrunk / network.width)


def _run_perceptron(perceptron: torch.nn.Module, X: Array) -> Array:
    """Run the perceptron in float64, by NumPy."""
    weights = [as_array(w) for w in perceptron.parameters()]
    *hidden, (W, b) = zip(weights[::2], weights[1::2], strict=True)
    for V, a in hidden:
        X = np.maximum(X @ V.T + a, 0)
    return np.tanh(X @ W.T + b)


def _loss(network: SelfExpressiveNetwork, X: Array, C: Array) -> Array:
    return network.gamma / 2 * ((X - C @ X) ** 2).sum(axis=1) + _penalty(network, C)


def _penalty(network: SelfExpressiveNetwork, C: Array) -> Array:
    r = network.l1_ratio
    return r * np.abs(C).sum(axis=1) + (1 - r) / 2 * (C**2).sum(axis=1)


def _output(network: SelfExpressiveNetwork, X: Tensor) -> Tensor:
    """Return reconstructions, coefficients, and losses divided by gamma."""
    loss = network.objective(X)[:, None] / network.gamma
    return torch.cat([network(X), _coefficients(network, X), loss.to(X.dtype)], dim=1)


def _training_output(network: SelfExpressiveNetwork, X: Tensor) -> Tensor:
    """Return what training differentiates: reconstructions, also of new points, and losses."""
    loss = network.objective(X)[:, None] / network.gamma
    of_batch = (network.loss(X, torch.arange(0, len(X), 2)) / network.gamma).expand(len(X), 1)
    return torch.cat([network(X), network(X.flip(0), X), loss, of_batch], dim=1).to(X.dtype)


def _solve_training(network: SelfExpressiveNetwork, X: Array) -> Array:
    """Return what `_training_output` must be, from the coefficients."""
    products = _products(network, X)
    C = products - np.diag(products.diagonal())
    loss = _loss(network, X, C)[:, None] / network.gamma
    of_batch = np.full_like(loss, loss[::2].mean())
    return np.hstack([C @ X, products[::-1] @ X, loss, of_batch])


def _bound(network: SelfExpressiveNetwork, X: Tensor) -> Inequalities:
    """No loss is below the certified optimum of the elastic net; a network of pairs attains it."""
    sides = Inequalities()
    lowest = _lower_bounds(network, X)
    for losses in _losses(network, X):
        sides.at_most(lowest, losses)
    pairs = _build_pairs(network, X)
    tokens = torch.eye(_N_PAIRS, dtype=X.dtype).repeat_interleave(2, dim=0)
    lowest = _lower_bounds(network, tokens)
    for losses in _losses(pairs, tokens):
        sides.attained(lowest, losses)
    return sides


def _lower_bounds(network: SelfExpressiveNetwork, X: Tensor) -> Array:
    """Return the certified lower bound of the elastic net for each token."""
    tokens, scale = as_array(X), network.gamma / 2
    solution = sparse_self_expression(tokens, lam=1 / scale, l1_ratio=network.l1_ratio, tol=_TOL)
    return scale * (solution.objective - solution.gap * (tokens**2).sum(axis=1))


def _losses(network: SelfExpressiveNetwork, X: Tensor) -> tuple[Array, Array]:
    """Return the network's own losses, and those computed from its output and coefficients."""
    C, tokens = network.coefficients(X).toarray().astype(np.float64), as_array(X)
    residuals = tokens - as_array(network(X))
    of_output = network.gamma / 2 * (residuals**2).sum(axis=1) + _penalty(network, C)
    return as_array(network.objective(X)), of_output


def _build_pairs(network: SelfExpressiveNetwork, X: Tensor) -> SelfExpressiveNetwork:
    """Build a network with the optimal coefficients for pairs of equal unit vectors.

    It maps the vector of a pair to signs that are orthogonal to those of other pairs. The optimal
    coefficient of a point on its equal is ``c = (gamma - r) / (gamma + 1 - r)``; the threshold
    shrinks the product 1 to it.
    """
    gamma, r, n = network.gamma, network.l1_ratio, _N_PAIRS
    optimum = max(gamma - r, 0.0) / (gamma + 1 - r)
    pairs = SelfExpressiveNetwork(
        n, hidden_features=(n,), width=n, gamma=gamma, l1_ratio=r, threshold=n * (1 - optimum),
        dtype=X.dtype,
    )  # fmt: skip
    signs = 20.0 * torch.from_numpy(hadamard(n, dtype=float))  # tanh(20) rounds to 1
    for perceptron in (pairs.query, pairs.key):
        hidden, last = (weights for weights in perceptron.parameters() if weights.ndim == 2)
        hidden.copy_(torch.eye(n))
        last.copy_(signs.T)
    return pairs


_network = partial(
    add_twin,
    family="self_expression",
    equation="CL-11",
    source="Zhang, You, Vidal and Li (2021)",
    layer=SelfExpressiveNetwork,
    build=_build,
    task=expressing(_build_products, _coefficients, _solve_coefficients),
    numerics=Numerics(passes=lambda network: len(network.query)),
)
_with_coefficients = partial(
    _network,
    solve=_solve,
    inputs=Inputs("features", apply=_output),
    derivatives=Derivatives(of=False),  # coefficients come as a sparse array
)
_OPTIONS = {
    "lasso": partial(_build, l1_ratio=1.0, gamma=20.0),
    "shallow": partial(_build, hidden_features=(), width=8),
}
_with_coefficients(name="self-expressive-network", relation=Identity(), options=_OPTIONS)
_network(
    name="self-expressive-network-training",
    relation=Identity(),
    options=_OPTIONS,
    solve=_solve_training,
    inputs=Inputs("features", apply=_training_output),
)
_with_coefficients(name="self-expressive-network-bound", relation=Bound(sides=_bound))
