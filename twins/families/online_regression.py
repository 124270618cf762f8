"""Twins of the layers that learn at test time.

Each query's output is computed by the recurrence on the keys that it sees. Gates come as the shell
gives them, and are opened here anew.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from scipy.special import expit, softmax

from ...solvers.online_regression import (
    delta_rule,
    mesa,
    mesa_by_cg,
    mini_batch_rule,
    parallax,
    proximal_point_rule,
    recurrent_linear_attention,
    titans_memory,
)
from ...unrolled.attention import Context
from ...unrolled.online_regression import (
    DeltaRule,
    GatedLinear,
    HeavyBall,
    LocalLinear,
    Mesa,
    MiniBatch,
    ProximalPoint,
)
from ..heads import Array, HeadCall, head_value
from ..judging.certificates import range_of
from ..pairs import Derivatives, Inputs, Numerics
from ..registry import add_twin, having
from ..relations import Identity, Iterate
from .kernel_smoothing.regression import dot_product_logits, scale_of

_LEAST = 1e-6  # of the squared norm of a row, as the layers have it
_SOFTPLUS_IS_1 = math.log(math.e - 1)
_FEW = 100  # keys
_MANY = 50  # steps of conjugate gradients
_ROUND = np.finfo(np.float64)


def _draw_gates(n_wide: int, n_narrow: int) -> Callable[[Array, Array, Array], Context]:
    """Return a maker of gates: for each key `n_wide` times its width, and `n_narrow` numbers.

    Some of them are far out, where gates are shut or open. With few keys half of all draws have
    none of these, so that layers forget little in a block of tokens. With many keys, as on data,
    this would leave a graph of ties that are smaller than rounding.
    """

    def gates(q: Array, k: Array, v: Array) -> Context:
        rng = np.random.default_rng(k.shape[1])
        raw = rng.standard_normal((*k.shape[:2], n_narrow + n_wide * k.shape[2]))
        if k.shape[1] > _FEW or rng.random() < 0.5:
            raw[rng.random(raw.shape) < 0.1] *= 1e3
        return Context(gates=torch.from_numpy(raw))

    return gates


def _opened(layer: Any, call: HeadCall) -> dict[str, Array]:
    """Return the gates of a head, (n_keys, 1) or (n_keys, d)."""
    open_gate = {
        "beta": lambda raw: getattr(layer, "largest_step", 2.0) * expit(raw),
        "delta": lambda raw: np.logaddexp(raw + _SOFTPLUS_IS_1, 0),
        "eta": lambda raw: layer.largest_step * expit(raw) / layer.batch_size,
        "step": lambda raw: layer.largest_step / 2 * expit(raw),
        "log_momentum": expit,
        "log_keep": lambda raw: np.exp(np.minimum(raw, 0)),
        "log_forget": lambda raw: np.exp(np.minimum(raw, 0)),
        "metric": lambda raw: 1.5 ** np.tanh(raw),
    }
    opened, first = {}, 0
    for name, of in layer.gates.items():
        width = call.k.shape[1] if of == "feature" else 1
        opened[name] = open_gate[name](call.gates[:, first : first + width])
        first += width
    return opened


def _unit(x: Array) -> Array:
    return x / np.sqrt((x**2).sum(axis=1, keepdims=True) + _LEAST)


def _solve_delta(layer: DeltaRule, call: HeadCall) -> Array:
    """Solve by the literal recurrence."""
    gates, k = _opened(layer, call), _unit(call.k)
    _, state = delta_rule(
        k, k, call.v, beta=gates["beta"][:, 0], forget=gates.get("log_forget", 1.0),
        metric=gates.get("metric", 1.0),
    )  # fmt: skip
    return np.asarray(_unit(call.q) @ state)


def _solve_proximal(layer: ProximalPoint, call: HeadCall) -> Array:
    """Solve the regularised problem of each token as a linear system."""
    gates, k = _opened(layer, call), _unit(call.k)
    _, state = proximal_point_rule(
        k, k, call.v, delta=gates["delta"][:, 0], forget=gates.get("log_forget", 1.0)
    )
    return np.asarray(_unit(call.q) @ state)


def _solve_sums(layer: GatedLinear, call: HeadCall) -> Array:
    """Sum token by token."""
    forget = _opened(layer, call)["log_forget"]
    _, state = recurrent_linear_attention(call.k, layer.scale * call.k, call.v, forget=forget)
    return np.asarray(call.q @ state)


def _solve_mesa(layer: Mesa, call: HeadCall) -> Array:
    """Solve the ridge regression on all keys, or iterate, and read it with each query."""
    gates, q, k = _opened(layer, call), _unit(call.q), _unit(call.k)
    n_keys, n_iter = len(k), None if _converges(layer) else layer.n_iter
    # Every query stands at the last token; those before it only fill the statistics.
    given: dict[str, Any] = {
        "beta": gates["beta"][:, 0], "forget": gates.get("log_forget", np.ones((n_keys, 1)))[:, 0],
        "lam": head_value(layer.lam, call.head),
    }  # fmt: skip
    _, (H, G) = mesa(k, k, call.v, **given)
    last: dict[str, Any] = {"beta": 0.0, "forget": 1.0, "lam": given["lam"], "state": (H, G)}
    one = q[:, None], np.zeros((len(q), 1, k.shape[1])), np.zeros((len(q), 1, G.shape[1]))
    if n_iter is None:
        return mesa(*one, **last)[0][:, 0]
    return mesa_by_cg(*one, n_iter=n_iter, **last)[0][:, 0]


def _solve_batches(layer: MiniBatch, call: HeadCall) -> Array:
    """Solve by the literal recurrence; keys that are hidden take no places in its batches."""
    eta, k = _opened(layer, call)["eta"][:, 0], _unit(call.k)
    _, state = mini_batch_rule(k, k, call.v, eta=eta, batch_size=layer.batch_size)
    return np.asarray(_unit(call.q) @ state)


def _solve_heavy_ball(layer: HeavyBall, call: HeadCall) -> Array:
    """Solve by the literal recurrence."""
    gates, k = _opened(layer, call), _unit(call.k)
    step, momentum, keep = (x[:, 0] for x in gates.values())
    _, (M, _) = titans_memory(k, k, call.v, step=step, momentum=momentum, decay=1 - keep)
    return np.asarray(_unit(call.q) @ M)


def _draw_probe(q: Array, k: Array, v: Array) -> Context:
    """Return probes that follow from the queries, so that a permutation takes them along."""
    return Context(query_gates=torch.from_numpy(np.cos(3 * q) / np.sqrt(q.shape[-1])))


def _with_bias(call: HeadCall, scale: float) -> tuple[Array, Array]:
    """Return queries (n, 1, d + 1) and keys (n, n_keys, d + 1) whose products hold the bias too."""
    keys = np.broadcast_to(call.k, (len(call.q), *call.k.shape))
    bias = np.zeros(keys.shape[:2]) if call.bias is None else call.bias
    q = np.c_[call.q, np.ones(len(call.q))][:, None]
    return q, np.concatenate([keys, bias[..., None] / scale], axis=2)


def _solve_learned_probe(layer: LocalLinear, call: HeadCall) -> Array:
    """Correct each query as the last token, whose probe does not see the bias."""
    scale = scale_of(layer, call.q)
    q, keys = _with_bias(call, scale)
    values = np.broadcast_to(call.v, (len(q), *call.v.shape))
    probe = np.c_[call.query_gates, np.zeros(len(q))][:, None]
    out, _ = parallax(
        q, keys[:, -1:], values[:, -1:], probe=probe, scale=scale,
        state=(keys[:, :-1], values[:, :-1]),
    )  # fmt: skip
    return out[:, 0]


def _fit_affine(layer: LocalLinear, call: HeadCall) -> Array:
    """Fit an affine function around each query by least squares, with the penalty as more rows.

    Numbers are relative to those of the heaviest key. Keys that are one point up to rounding, or
    whose covariance underflows, have no slope.
    """
    logits = dot_product_logits(layer, call) + (0.0 if call.bias is None else call.bias)
    weights = softmax(logits, axis=1)
    fitted, d = np.empty((len(call.q), call.v.shape[1])), call.k.shape[1]
    for i, (p, q) in enumerate(zip(weights, call.q, strict=True)):
        first, root = p.argmax(), np.sqrt(p)[:, None]
        x, v = call.k - call.k[first], call.v - call.v[first]
        near, mean = p @ x, p @ v
        fitted[i] = p @ call.v
        grain = 8 * _ROUND.eps * np.linalg.norm(call.k[p > 0], axis=1).max()
        spread = (p[:, None] * (x - near) ** 2).sum()
        span = np.linalg.norm((x - near)[p > 0], axis=1).max()
        if span <= grain or spread <= _ROUND.tiny / _ROUND.eps:
            continue
        rows = np.concatenate([root * (x - near), np.sqrt(layer.reg * spread) * np.eye(d)])
        right = np.concatenate([root * (v - mean), np.zeros((d, v.shape[1]))])
        fitted[i] += (q - call.k[first] - near) @ np.linalg.lstsq(rows, right, rcond=None)[0]
    return fitted


def _converges(layer: Mesa) -> bool:
    """Whether gradients are implicit after so many steps that they are those of the output."""
    return layer.implicit and layer.n_iter is not None and layer.n_iter >= _MANY


def _condition(layer: Mesa, q: Array, k: Array, v: Array) -> float:
    """Return a bound of the condition number: weights are at most 2, and keys have norm 1."""
    return 1 + 2 * k.shape[-2] / layer.lam.initial


_online = partial(add_twin, family="online_regression", relation=Identity(evidence="solver"))
_sums = partial(_online, equation="TR-1", layer=GatedLinear, solve=_solve_sums)
_sums(
    name="decaying-linear-attention",
    source="Sun et al. (2023), Dao and Gu (2024)",
    build=lambda q, k, v: GatedLinear(0.2),
    inputs=Inputs(context=_draw_gates(0, 1)),
    covers=having(forget="token"),
)
_sums(
    name="gated-linear-attention",
    source="Yang et al. (2024)",
    build=lambda q, k, v: GatedLinear(0.2, "feature"),
    inputs=Inputs(context=_draw_gates(1, 0)),
    covers=having(forget="feature"),
)
_delta = partial(_online, layer=DeltaRule, solve=_solve_delta)
_delta(
    name="deltanet",
    equation="TR-2",
    source="Schlag et al. (2021), Yang et al. (2024)",
    build=lambda q, k, v: DeltaRule(),
    options={"overshooting": lambda q, k, v: DeltaRule(largest_step=2.0)},
    inputs=Inputs(context=_draw_gates(0, 1)),
    covers=having(forget=None, preconditioned=False),
)
_delta(
    name="gated-deltanet",
    equation="TR-3",
    source="Yang, Kautz and Hatamizadeh (2025)",
    build=lambda q, k, v: DeltaRule("token"),
    options={"overshooting": lambda q, k, v: DeltaRule("token", largest_step=2.0)},
    inputs=Inputs(context=_draw_gates(0, 2)),
    covers=having(forget="token", preconditioned=False),
)
_delta(
    name="kimi-delta-attention",
    equation="TR-3",
    source="Kimi Team (2025)",
    build=lambda q, k, v: DeltaRule("feature"),
    inputs=Inputs(context=_draw_gates(1, 1)),
    covers=having(forget="feature", preconditioned=False),
)
for _name, _forget in (
    ("preconditioned-deltanet", None),
    ("preconditioned-gated-deltanet", "token"),
    ("preconditioned-kimi-delta-attention", "feature"),
):
    _delta(
        name=_name,
        equation="TR-6",
        source="PGDN, PKDA",
        build=lambda q, k, v, forget=_forget: DeltaRule(forget, preconditioned=True),
        inputs=Inputs(context=_draw_gates(1 + (_forget == "feature"), 1 + (_forget == "token"))),
        covers=having(forget=_forget, preconditioned=True),
    )
for _name, _forget in (
    ("proximal-point-rule", None),
    ("decaying-proximal-point-rule", "token"),
    ("gated-proximal-point-rule", "feature"),
):
    _online(
        name=_name,
        equation="TR-2p",
        source="Liu et al. (2024)",
        layer=ProximalPoint,
        solve=_solve_proximal,
        build=lambda q, k, v, forget=_forget: ProximalPoint(forget),
        inputs=Inputs(context=_draw_gates(_forget == "feature", 1 + (_forget == "token"))),
        covers=having(forget=_forget),
    )
_mesa = partial(
    add_twin,
    family="online_regression",
    source="von Oswald et al. (2025)",
    layer=Mesa,
    solve=_solve_mesa,
    inputs=Inputs(context=_draw_gates(0, 1)),
)
_mesa(
    name="mesa-layer",
    equation="TR-5",
    relation=Identity(evidence="solver"),
    build=lambda q, k, v: Mesa(0.5, num_heads=len(q), learnable=True, dtype=torch.float64),
    covers=having(forget=None, n_iter=None),
)
for _name, _forget in (("", None), ("forgetting-", "token")):
    _steps = partial(
        _mesa,
        inputs=Inputs(context=_draw_gates(0, 1 + (_forget == "token"))),
        numerics=Numerics(_condition, lambda layer: layer.n_iter),
    )
    _steps(
        name=f"{_name}mesa-by-conjugate-gradients",
        equation="TR-5c",
        relation=Iterate(n_iter=(1, 2, 3, 6), evidence="solver"),
        build=lambda q, k, v, forget=_forget: Mesa(0.1 * k.shape[-2], n_iter=2, forget=forget),
        covers=lambda layer, forget=_forget: (
            layer.n_iter is not None and layer.forget == forget and not _converges(layer)
        ),
    )
    _steps(
        name=f"{_name}mesa-with-implicit-gradient",
        equation="TR-5g",
        relation=Identity(evidence="solver"),
        build=lambda q, k, v, forget=_forget: Mesa(
            0.1 * k.shape[-2], n_iter=60, implicit=True, forget=forget
        ),
        derivatives=Derivatives(twice=()),
        covers=lambda layer, forget=_forget: layer.forget == forget and _converges(layer),
    )
_mesa(
    name="forgetting-mesa",
    equation="TR-5",
    relation=Identity(evidence="solver"),
    build=lambda q, k, v: Mesa(0.5, forget="token"),
    inputs=Inputs(context=_draw_gates(0, 2)),
    covers=having(forget="token", n_iter=None),
)
_online(
    name="heavy-ball",
    equation="TR-8",
    source="Behrouz, Zhong and Mirrokni (2025)",
    layer=HeavyBall,
    build=lambda q, k, v: HeavyBall(),
    options={"short-steps": lambda q, k, v: HeavyBall(0.6)},
    solve=_solve_heavy_ball,
    inputs=Inputs(context=_draw_gates(0, 3)),
)
_online(
    name="mini-batches",
    equation="TR-7",
    source="Sun et al. (2024)",
    layer=MiniBatch,
    build=lambda q, k, v: MiniBatch(4),
    options={
        "longer-than-a-chunk": lambda q, k, v: MiniBatch(100),
        "long-steps": lambda q, k, v: MiniBatch(3, 2.0),
    },
    solve=_solve_batches,
    inputs=Inputs(context=_draw_gates(0, 1)),
)
_local = partial(_online, equation="TR-9", layer=LocalLinear)
_local(
    name="parallax",
    source="Parallax",
    build=lambda q, k, v: LocalLinear(),
    options={"scaled": lambda q, k, v: LocalLinear(scale=0.7)},
    solve=_solve_learned_probe,
    inputs=Inputs(context=_draw_probe, reads_bias=True),
    numerics=Numerics(range_of(dot_product_logits)),
    covers=having(probe="learned"),
)
_local(
    name="local-linear-attention",
    source="Cleveland (1979)",
    relation=Identity(1e-8, evidence="solver"),
    build=lambda q, k, v: LocalLinear("exact"),
    options={"weak-penalty": lambda q, k, v: LocalLinear("exact", reg=1e-3, scale=0.7)},
    solve=_fit_affine,
    inputs=Inputs(reads_bias=True),
    # A bound of the condition number of the penalised covariance.
    numerics=Numerics(range_of(dot_product_logits), lambda layer: 1 + round(1 / layer.reg)),
    covers=having(probe="exact"),
)
