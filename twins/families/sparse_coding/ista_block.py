"""Twins of the ISTA block: a nonnegative proximal step, and by how much it lowers the objective."""

import copy
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ....solvers import ista, sparse_code
from ....solvers.sparse_coding import lasso_objective
from ....unrolled.sparse_coding import ISTABlock
from ...heads import Array, Tensors
from ...judging.certificates import proximal_residual
from ...laws.subject import as_array
from ...pairs import Inputs, layer_output
from ...registry import Twin, add_twin
from ...relations import Bound, Identity, Inequalities

_LOOSE = 1e-4  # of the codes that the step is compared with: any codes serve


def _build(X: Array, *, share: float = 0.2, step: float = 0.9) -> ISTABlock:
    """Build with a share of the largest entry as threshold, and of the longest step."""
    generator = torch.Generator().manual_seed(0)
    D = torch.empty(2 * X.shape[1:], dtype=torch.float64).normal_(generator=generator)
    step /= float(torch.linalg.matrix_norm(D, 2)) ** 2
    lam = 2 * share * float(np.abs(X).max() or 1.0) / step
    layer = ISTABlock(X.shape[1], step, lam, dtype=torch.float64)
    with torch.no_grad():
        layer.dictionary.copy_(D)
    return layer


def _solve(layer: ISTABlock, X: Array) -> Array:
    """Take a step of ISTA from the signals."""
    D = as_array(layer.dictionary)
    found = ista(X, D, lam=layer.lam, n_iter=1, step=layer.step, start=X, nonnegative=True)
    return np.asarray(found.coef)


def _certify(twin: Twin, layer: ISTABlock, inputs: Tensors) -> float:
    X, D = as_array(inputs[0]), as_array(layer.dictionary)
    after = layer_output(twin, layer, inputs)
    return proximal_residual(after, X, X, D, step=layer.step, lam=layer.lam, nonnegative=True)


def _bound(layer: ISTABlock, X: Tensor) -> Inequalities:
    """Compare what a step lowers the objective by with what is proved, and the gap with its bound.

    From nonnegative tokens it falls by at least ``(2 / step - |D|_2^2) |z - x|^2``. Both are equal
    for a multiple of a permutation as dictionary and tokens that stay positive.
    """
    sides = Inequalities()
    positive = X.abs()
    _compare_decrease(sides.at_most, layer, positive)
    shifted = _with_shifted_atoms(layer)
    _compare_decrease(sides.attained, shifted, positive + 10 * layer.step * layer.lam)
    Y, D, z = as_array(X), as_array(layer.dictionary), as_array(layer(X))
    u = sparse_code(Y, D, lam=layer.lam, nonnegative=True, tol=_LOOSE).coef.toarray()
    gap = lasso_objective(Y, D, z, lam=layer.lam) - lasso_objective(Y, D, u, lam=layer.lam)
    rate = (np.square(u - Y).sum(axis=1) - np.square(u - z).sum(axis=1)) / layer.step
    sides.at_most(gap, rate, scale=lasso_objective(Y, D, u, lam=layer.lam) + np.abs(rate))
    return sides


def _with_shifted_atoms(layer: ISTABlock) -> ISTABlock:
    """Return the layer with atoms that are the unit vectors, shifted by one, times half of |D|."""
    shifted = copy.deepcopy(layer)
    D = layer.dictionary
    size = torch.linalg.matrix_norm(D.double(), 2).to(D) / 2
    shifted.dictionary.copy_(size * torch.eye(len(D), dtype=D.dtype).roll(1, dims=0))
    return shifted


def _compare_decrease(add: Any, layer: ISTABlock, X: Tensor) -> None:
    Y, D, z = as_array(X), as_array(layer.dictionary), as_array(layer(X))
    before, after = (lasso_objective(Y, D, codes, lam=layer.lam) for codes in (Y, z))
    proved = (2 / layer.step - np.linalg.norm(D, 2) ** 2) * np.square(z - Y).sum(axis=1)
    add(proved, before - after, scale=before)


add_twin(
    name="ista-block",
    family="sparse_coding",
    source="Yu et al. (2023)",
    layer=ISTABlock,
    relation=Identity(certificate=_certify),
    equation="CR-6",
    build=_build,
    options={"low-threshold": lambda X: _build(X, share=0.01)},
    solve=_solve,
    inputs=Inputs("features"),
)
add_twin(
    name="ista-block-descent",
    family="sparse_coding",
    source="Yu et al. (2023)",
    layer=ISTABlock,
    relation=Bound(sides=_bound),
    equation="CR-6",
    build=_build,
    solve=_solve,
    inputs=Inputs("features"),
)
