"""Twins: ISTA and the LISTA family, whose iterates are those of ISTA for scaled parameters.

The evidence for the recursion with free weights is a formula: it is not an iteration for a problem.
"""

from collections.abc import Iterator
from functools import partial
from typing import cast, get_args

import numpy as np
import torch
from torch import Tensor, nn

from ....solvers import ista, sparse_code
from ....solvers.sparse_coding import lam_max, lasso_objective
from ....unrolled.sparse_coding import LISTA
from ....unrolled.sparse_coding.learned_ista import Parametrization
from ...heads import Array, Tensors, iteration_values, perturb_parameters
from ...judging.certificates import first_and_last, proximal_residual
from ...laws.subject import as_array
from ...pairs import Inputs, Numerics, layer_output
from ...registry import Twin, add_twin
from ...relations import FixedPointLimit, Identity, Iterate, with_n_iter

_N_LAYERS = 5
_LIMIT_TOL = 1e-13


def _build_start(X: Array, parametrization: Parametrization, fraction: float = 0.1) -> LISTA:
    """Build at a fraction of the penalty that makes the median code zero, two atoms a feature.

    Half of the atoms are the principal directions; the others are random.
    """
    drawn = np.random.default_rng(0).standard_normal((X.shape[1], X.shape[1]))
    drawn /= np.linalg.norm(drawn, axis=1, keepdims=True)
    atoms = np.concatenate([np.linalg.svd(X.T)[0].T, drawn])
    lam = fraction * float(np.median(lam_max(X, atoms)))
    return LISTA(atoms, _N_LAYERS, lam, parametrization)


def _build_iterates(X: Array, *, parametrization: Parametrization) -> LISTA:
    """Build ISTA with shorter steps; factors on the weights are divided out of the steps."""
    layer, rng = _build_start(X, parametrization), np.random.default_rng(1)
    turned = np.linalg.qr(rng.standard_normal((X.shape[1],) * 2))[0]
    scales = np.ones(_N_LAYERS)
    with torch.no_grad():
        if parametrization == "adaptive":
            scales[:] = rng.uniform(0.5, 2)
            layer.input_weight.mul_(scales[0])
            layer.gram_weight.copy_(torch.from_numpy(np.sqrt(scales[0]) * turned))
        elif parametrization in ("lista", "coupled"):
            scales = rng.uniform(0.5, 2, _N_LAYERS)
            for name, weight in layer.named_parameters():
                if name.endswith("weight"):
                    weight.mul_(torch.from_numpy(scales)[:, None, None])
    _scale_parameters(layer.step, rng.uniform(0.7, 1, _N_LAYERS) / scales)
    _scale_parameters(layer.lam, 1.3 * scales)
    return layer


def _build_alista(X: Array) -> LISTA:
    """Build ALISTA with steps of 0.9 and penalties of 1.3 times the initial ones."""
    layer = _build_start(X, "alista", fraction=0.3)
    _scale_parameters(layer.step, np.full(_N_LAYERS, 0.9))
    _scale_parameters(layer.lam, np.full(_N_LAYERS, 1.3))
    return layer


def _scale_parameters(values: nn.ModuleList, factors: Array) -> None:
    """Multiply the values by the factors."""
    with torch.no_grad():
        for value, factor in zip(values, factors, strict=True):
            cast(Tensor, value.log).add_(float(np.log(factor)))


def _output(layer: LISTA, X: Tensor) -> Tensor:
    """Return the reconstructions and the codes, side by side."""
    codes = layer(X)
    return torch.cat([codes @ layer.dictionary.to(X.dtype), codes], dim=1)


def _output_and_costs(layer: LISTA, X: Tensor) -> Tensor:
    """Return the reconstructions, the codes and the layer's own objective, side by side."""
    output = _output(layer, X)
    costs = layer.objective(X, output[:, X.shape[1] :])
    return torch.cat([output, costs[:, None]], dim=1)


def _join_codes(codes: Array, layer: LISTA) -> Array:
    return np.hstack([codes @ as_array(layer.dictionary), codes])


def _weight_scales(layer: LISTA) -> tuple[Array, bool]:
    """Return the factors of learned weights over ISTA's, and whether nothing else differs."""
    D, n = as_array(layer.dictionary), len(layer.step)
    first = {
        "lista": {"input_weight": D.T, "gram_weight": D @ D.T},
        "coupled": {"weight": D},
        "adaptive": {"input_weight": np.eye(D.shape[1]), "gram_weight": np.eye(D.shape[1])},
    }.get(layer.parametrization, {})
    if not first:
        return np.ones(n), layer.parametrization == "step"
    learned = {name: np.broadcast_to(as_array(layer.get_parameter(name)), (n, *W.shape))
             for name, W in first.items()}  # fmt: skip
    if layer.parametrization == "adaptive":
        learned["gram_weight"] = learned["gram_weight"].transpose(0, 2, 1) @ learned["gram_weight"]
    name = next(iter(first))
    scales = np.einsum("tij,ij->t", learned[name], first[name]) / (first[name] ** 2).sum()
    are_scaled = all(_are_close(learned[k], scales[:, None, None] * first[k], layer) for k in first)
    return scales, bool(are_scaled and (scales > 0).all())


def _are_close(a: Array, b: Array, layer: LISTA) -> bool:
    eps = torch.finfo(layer.dictionary.dtype).eps
    return bool(np.abs(a - b).max() <= 100 * eps * np.abs(b).max())


def _is_ista(layer: LISTA) -> bool:
    """Whether the layer is ISTA with one penalty."""
    scales, are_scaled = _weight_scales(layer)
    lams = iteration_values(layer.lam, len(scales)) / np.where(scales > 0, scales, 1)
    return are_scaled and _are_close(lams, lams.mean(), layer)


def _solve_iterates(layer: LISTA, X: Array) -> Array:
    """Solve by ISTA with the layer's steps and penalty."""
    D, n_iter = as_array(layer.dictionary), layer.n_iter
    scales = _weight_scales(layer)[0]
    lams = iteration_values(layer.lam, len(scales)) / scales
    at = np.minimum(np.arange(n_iter), len(scales) - 1)
    codes = ista(X, D, lam=lams.mean(), n_iter=n_iter, step=_steps(layer, n_iter, D) * scales[at])
    return _join_codes(codes.coef, layer)


def _certify(twin: Twin, layer: LISTA, inputs: Tensors) -> float:
    """Return the worst `proximal_residual` of the first and the last iteration."""
    X, D = as_array(inputs[0]), as_array(layer.dictionary)
    scales = _weight_scales(layer)[0]
    steps, lams = _steps(layer, len(scales), D) * scales, iteration_values(layer.lam, len(scales))

    def codes(n_iter: int) -> Array:
        return layer_output(twin, with_n_iter(layer, n_iter), inputs)[:, X.shape[1] :]

    residuals = [
        proximal_residual(after, before, X, D, step=steps[t], lam=lams[t] / scales[t])
        for t, before, after in first_and_last(codes, layer.n_iter)
    ]
    return float(np.max(residuals))


def _steps(layer: LISTA, n_iter: int, D: Array) -> Array:
    unit = 1 / np.linalg.norm(D.T @ D) if layer.parametrization == "adaptive" else 1.0
    return unit * iteration_values(layer.step, n_iter)


def _printed_weights(layer: LISTA, D: Array) -> Iterator[tuple[Array, Array, float]]:
    """Yield We, Wc and th of each iteration ``S_th(Y We + C Wc)`` for the dictionary D."""
    kind = layer.parametrization
    weights = {
        name: as_array(w) for name, w in layer.state_dict().items() if name.endswith("weight")
    }
    lams = iteration_values(layer.lam, layer.n_iter)
    for t, step in enumerate(_steps(layer, layer.n_iter, D)):
        iteration_weights = {
            k: w[min(t, len(layer.step) - 1)] if w.ndim == 3 else w for k, w in weights.items()
        }
        if kind == "lista":
            pull, gram = iteration_weights["input_weight"], iteration_weights["gram_weight"]
        elif kind == "adaptive":
            pull = iteration_weights["input_weight"] @ D.T
            gram = (D @ iteration_weights["gram_weight"].T) @ (
                D @ iteration_weights["gram_weight"].T
            ).T
        else:
            pull = (
                analytic_weights(D) if kind == "alista" else iteration_weights.get("weight", D)
            ).T
            gram = D @ pull
        yield step * pull, np.eye(len(D)) - step * gram, step * lams[t] / 2


def analytic_weights(D: Array) -> Array:
    """Return the dual frame of the atoms, scaled to an inner product of one with each atom."""
    dual = np.linalg.pinv(D).T
    return np.asarray(dual / (dual * D).sum(axis=1, keepdims=True))


def _solve_recursion(layer: LISTA, X: Array) -> Array:
    """Solve by the printed recursion, with the objective of its codes."""
    D = as_array(layer.dictionary)
    codes = _recursion(layer, X, D)
    return np.c_[_join_codes(codes, layer), lasso_objective(X, D, codes, lam=layer.penalty)]


def _recursion(layer: LISTA, X: Array, D: Array) -> Array:
    """Iterate ``C <- S_th(Y We + C Wc)``."""
    codes = np.zeros((len(X), len(D)))
    for pull, keep, threshold in _printed_weights(layer, D):
        z = X @ pull + codes @ keep
        codes = np.where(np.abs(z) > threshold, z - threshold * np.sign(z), 0)
    return codes


def _code_in_other_dictionary(layer: LISTA, X: Tensor) -> Tensor:
    """Run the layer in a dictionary of fewer atoms, with other lengths and directions."""
    D = layer.dictionary.to(X.dtype)
    lengths = torch.linspace(0.5, 1.5, D.shape[1], dtype=torch.float64).to(X.dtype)
    return layer(X, lengths * D[: len(D) - 3].flip(1))


def _other_dictionary(D: Array) -> Array:
    """Return fewer atoms with other lengths and directions."""
    return np.linspace(0.5, 1.5, D.shape[1]) * D[: len(D) - 3, ::-1]


def _code_in_fewer_atoms(layer: LISTA, X: Tensor) -> Tensor:
    """Reconstruct with all atoms except the last three."""
    D = layer.dictionary.to(X.dtype)[:-3]
    return layer(X, D) @ D


def _has_a_limit(layer: LISTA) -> bool:
    steps, lams = (iteration_values(v, len(layer.step)) for v in (layer.step, layer.lam))
    return layer.parametrization == "alista" and steps.min() == steps.max() and np.ptp(lams) == 0


def _solve_alista(layer: LISTA, X: Array) -> Array:
    """Solve the weighted Lasso of whitened signals, with the weights moved into the atoms."""
    U, s, Vt = np.linalg.svd(as_array(layer.dictionary), full_matrices=False)
    leverage = (U**2).sum(axis=1, keepdims=True)
    lam = float(iteration_values(layer.lam, 1)[0])
    solution = sparse_code(X @ Vt.T / s, U / leverage, lam=lam, tol=_LIMIT_TOL)
    return _join_codes(solution.coef.toarray() / leverage.T, layer)


def _logit_range(layer: LISTA, X: Array) -> float:
    D = as_array(layer.dictionary)
    return float(_steps(layer, len(layer.step), D).max() * np.ptp(X @ D.T))


def _covers(layer: LISTA, *, parametrization: Parametrization) -> bool:
    return layer.parametrization == parametrization and _is_ista(layer)


def _build_recursion(X: Array, *, parametrization: Parametrization = "lista") -> LISTA:
    layer: LISTA = perturb_parameters(_build_start(X, parametrization), 0.05)
    return layer


_lista = partial(
    add_twin,
    family="sparse_coding",
    source="Gregor and LeCun (2010) and followers",
    layer=LISTA,
    inputs=Inputs("features", apply=_output),
    numerics=Numerics(_logit_range, lambda layer: max(layer.n_iter, 1)),
)
_KINDS: tuple[Parametrization, ...] = ("step", "coupled", "lista", "adaptive")
for kind in _KINDS:
    _lista(
        name=f"learned-ista-{kind}",
        relation=Iterate(certificate=_certify),
        equation="LS-2",
        build=partial(_build_iterates, parametrization=kind),
        solve=_solve_iterates,
        covers=partial(_covers, parametrization=kind),
    )
_lista(
    name="learned-ista-recursion",
    relation=Identity(),
    equation="SE-15L",
    build=_build_recursion,
    options={
        kind: partial(_build_recursion, parametrization=kind)
        for kind in get_args(Parametrization)
        if kind != "lista"
    },
    solve=_solve_recursion,
    inputs=Inputs("features", apply=_output_and_costs),
)
_lista(
    name="learned-ista-other-dictionary",
    relation=Identity(),
    equation="LS-3",
    source="Aberdam, Golts and Elad (2020)",
    build=partial(_build_recursion, parametrization="adaptive"),
    solve=lambda layer, X: _recursion(layer, X, _other_dictionary(as_array(layer.dictionary))),
    inputs=Inputs("features", apply=_code_in_other_dictionary),
    covers=lambda layer: layer.parametrization == "adaptive",
    task={
        "build": partial(_build_start, parametrization="adaptive", fraction=0.02),
        "inputs": Inputs("features", apply=_code_in_fewer_atoms),
        "solve": lambda layer, X: (
            _recursion(layer, X, as_array(layer.dictionary)[:-3]) @ as_array(layer.dictionary)[:-3]
        ),
    },
)
_lista(
    name="analytic-lista-limit",
    relation=FixedPointLimit(n_iter=2000, evidence="solver"),
    equation="LS-2",
    source="Liu, Chen, Wang and Yin (2019)",
    build=_build_alista,
    solve=_solve_alista,
    covers=_has_a_limit,
    # A contraction damps the rounding of earlier iterations.
    numerics=Numerics(_logit_range, lambda layer: 50),
)
