"""The recurrences of test-time regression, and the cases that break kernels of them."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ...solvers.online_regression import (
    delta_rule,
    local_linear_probe,
    mesa,
    mesa_by_cg,
    parallax,
    proximal_point_rule,
    recurrent_linear_attention,
    titans_memory,
)
from ...twins.audit import recurrences as forms
from .cases import Array, Arrays, KernelCase, Subject, Tensors, round_to_bfloat16

_RANGES = {
    "beta": (0.25, 1), "delta": (0.25, 2), "forget": (0.5, 1), "metric": (0.25, 1),
    "step": (0.1, 0.5), "momentum": (0, 0.75), "decay": (0, 0.5), "lam": (0.5, 2),
    "probe": (-1, 1),
}  # fmt: skip
_N_EARLIER = 3


class _Sizes(NamedTuple):
    batch: int = 1
    heads: int = 1
    n: int = 6
    d: int = 4
    e: int = 3


@dataclass(frozen=True)
class _Recurrence:
    equation: str
    words: str
    function: Callable[..., Any]
    form: Callable[[Tensors], Tensors]
    gates: dict[str, str]  # shape of each: "token" (n), "one" (n, 1), "key" (n, d), "features" (d)
    states: str = "S"
    settings: dict[str, Any] = field(default_factory=dict)
    tolerance: float = 1e-10
    long: bool = False  # the files have room for few long cases

    def reference(self, x: Arrays) -> Arrays:
        """Run the solver on the arrays of a case."""
        state = tuple(x[f"initial_{name}"] for name in self.states)
        given = {name: x[name] for name in ("q", "k", "v", *self.gates)}
        out, last = self.function(
            **given, **self.settings, state=state if len(state) > 1 else state[0]
        )
        if self.states == "KV":
            return {"out": out}
        lasts = last if len(state) > 1 else (last,)
        return {"out": out} | {
            f"last_{name}": x for name, x in zip(self.states, lasts, strict=True)
        }


def _fit_locally(q: Array, k: Array, v: Array, *, state: Any, scale: float, reg: float) -> Any:
    probe = local_linear_probe(q, k, scale=scale, reg=reg, state=state[0])
    return parallax(q, k, v, probe=probe, scale=scale, state=state)


_FORGETTING = {"beta": "token", "forget": "token", "lam": "features"}
_RECURRENCES = {
    "recurrent-linear-attention": _Recurrence(
        "TR-1", "S <- diag(a) S + k^T v; o = q S, a = forget",
        recurrent_linear_attention, forms.sum_outer_products, {"forget": "key"}, long=True,
    ),
    "delta-rule": _Recurrence(
        "TR-2", "S <- S + beta k^T (v - k S); o = q S",
        delta_rule, forms.step_delta, {"beta": "token"},
    ),
    "proximal-point": _Recurrence(
        "TR-2p", "S <- argmin 1/2 |v - k S|^2 + |S - S_before|^2 / (2 delta); o = q S",
        proximal_point_rule, forms.step_proximal, {"delta": "token"}, tolerance=1e-8,
    ),
    "gated-delta-rule": _Recurrence(
        "TR-3", "S <- a S; S <- S + beta k^T (v - k S); o = q S, one a = forget for a token",
        delta_rule, forms.step_delta, {"beta": "token", "forget": "one"}, long=True,
    ),
    "gated-delta-rule-per-key": _Recurrence(
        "TR-3", "S <- diag(a) S; S <- S + beta k^T (v - k S); o = q S, a = forget",
        delta_rule, forms.step_delta, {"beta": "token", "forget": "key"},
    ),
    "preconditioned-delta-rule": _Recurrence(
        "TR-6",
        "S <- diag(a) S; S <- S + beta (m o k)^T (v - k S); o = q S, a = forget, m = metric",
        delta_rule, forms.step_delta, {"beta": "token", "forget": "key", "metric": "key"},
    ),
    "mesa": _Recurrence(
        "TR-5", "H <- a H + beta k^T k; G <- a G + beta k^T v; o = q (H + diag(lam))^-1 G",
        mesa, forms.solve_ridge, _FORGETTING, "HG", tolerance=1e-8, long=True,
    ),
    "mesa-by-cg": _Recurrence(
        "TR-5c", "H, G as mesa; o = x G, n_iter steps of CG from 0 on x (H + diag(lam)) = q",
        mesa_by_cg, partial(forms.solve_ridge, n_iter=2), _FORGETTING, "HG", {"n_iter": 2},
    ),
    "titans": _Recurrence(
        "TR-8", "Z <- momentum Z - 2 step k^T (k M - v); M <- (1 - decay) M + Z; o = q M",
        titans_memory, forms.step_titans,
        dict.fromkeys(("step", "momentum", "decay"), "token"), "MZ",
    ),
    "parallax": _Recurrence(
        "TR-9", "p = softmax(scale q K^T) over earlier and present tokens; "
        "o = p V (1 + r.(p K)) - sum p_i (r.k_i) v_i, r = probe",
        parallax, partial(forms.attend_with_probe, scale=0.5), {"probe": "key"}, "KV",
        {"scale": 0.5},
    ),
    "local-linear": _Recurrence(
        "TR-9", "parallax with r = (p K - q) (C + reg tr(C) I)^-1, C = Cov_p(k, k)",
        _fit_locally, partial(forms.attend_with_probe, scale=0.5, reg=0.1), {}, "KV",
        {"scale": 0.5, "reg": 0.1}, 1e-8,
    ),
}  # fmt: skip


_STATES = tuple(f"initial_{name}" for name in "SHGMZ")


def _fill(value: float, *names: str, part: Any = ...) -> Callable[[Arrays], None]:
    """Return a change that fills these arrays, where there are any of them."""

    def change(x: Arrays) -> None:
        for name in x.keys() & set(names):
            x[name][part] = value

    return change


def _set_steps(value: float) -> Callable[[Arrays], None]:
    """Return a change to keys of norm 1, exact in every dtype, and steps of this size."""

    def change(x: Arrays) -> None:
        x["k"][...] = np.where(x["k"] < 0, -0.5, 0.5)
        x["beta"][...] = value

    return change


def _take_small_steps(x: Arrays) -> None:
    """Raise each state, from 1, by less than half a unit of bfloat16 in every 64 tokens."""
    _fill(1.0, "q", "forget", "metric", "lam", *_STATES)(x)
    _fill(0.0, "momentum", "decay", "initial_Z")(x)
    _fill(0.5, "k")(x)
    _fill(1.9375, "v")(x)
    _fill(2.0**-14, "beta", "delta")(x)
    _fill(2.0**-15, "step")(x)
    if not x.keys() & {"beta", "delta", "step"}:
        x["v"] *= 2.0**-14


def _scale_queries(x: Arrays) -> None:
    x["q"] *= 64


_EVEN = (..., slice(0, None, 2), slice(None))


class _Edge(NamedTuple):
    catches: str
    change: Callable[[Arrays], None] = lambda x: None
    sizes: _Sizes = _Sizes()
    needs: frozenset[str] | set[str] = frozenset()  # one of these gates or states
    gradients: bool = True


_EDGES = {
    "plain": _Edge("axes that are swapped", sizes=_Sizes(2, 2, 5)),
    "zero-state": _Edge("a start that is not zero", _fill(0.0, *_STATES), needs={*"SHM"}),
    "one-token": _Edge("decoding: shapes, the first token's gate", sizes=_Sizes(n=1)),
    "partial-chunk": _Edge(
        "a length that is no multiple of a chunk", sizes=_Sizes(n=67, d=2, e=1)
    ),
    "long": _Edge(
        "growth of rounding, states in half precision", _fill(1 - 2.0**-8, "forget"),
        sizes=_Sizes(n=2048, d=2, e=1), gradients=False,
    ),
    "small-steps": _Edge(
        "states in half precision: they stand still", _take_small_steps,
        sizes=_Sizes(n=1920, d=1, e=1), needs={*"SHM"}, gradients=False,
    ),
    "equal-keys": _Edge("chunk systems that explode", _fill(0.5, "k")),
    "zero-keys": _Edge("normalisation of keys of zero", _fill(0.0, "k", part=_EVEN)),
    "zero-queries": _Edge("0 / 0 of iterations", _fill(0.0, "q"), gradients=False),
    "forget-all": _Edge(
        "log of a gate that is 0, quotients of products",
        _fill(0.0, "forget", part=(slice(None), slice(None), 3)), needs={"forget"},
    ),
    "forget-nothing": _Edge("a gate that is exactly 1", _fill(1.0, "forget"), needs={"forget"}),
    "no-step": _Edge(
        "a step of 0: only forgetting", _fill(0.0, "beta", "delta", "step"),
        needs={"beta", "delta", "step"},
    ),
    "beta-n-1": _Edge("Kaczmarz: the error is exactly 0", _set_steps(1.0), needs={"beta"}),
    "beta-n-2": _Edge("reflections, negative eigenvalues", _set_steps(2.0), needs={"beta"}),
    "delta-rule": _Edge(
        "order of decay, step and momentum", _fill(0.0, "momentum", "decay"), needs={"momentum"}
    ),
    "decay-all": _Edge("a decay that is exactly 1", _fill(1.0, "decay"), needs={"decay"}),
    "no-probe": _Edge("attention itself", _fill(0.0, "probe"), needs={"probe"}),
    "large-logits": _Edge("overflow of exp", _scale_queries, needs={"probe"}),
}  # fmt: skip


def recurrences() -> Iterator[Subject]:
    """Yield every recurrence with the cases that it has."""
    for name, recurrence in _RECURRENCES.items():
        cases = [
            _make_case(name, recurrence, edge_name, edge)
            for edge_name, edge in _EDGES.items()
            if (not edge.needs or edge.needs & {*recurrence.gates, *recurrence.states})
            and (recurrence.long or edge_name != "long")
        ]
        yield Subject(
            name, recurrence.equation, recurrence.words, cases, recurrence.settings,
            recurrence.tolerance,
        )  # fmt: skip


def _make_case(name: str, recurrence: _Recurrence, edge_name: str, edge: _Edge) -> KernelCase:
    rng = np.random.default_rng([*f"{name}, {edge_name}".encode()])
    inputs = _draw(recurrence, edge.sizes, rng)
    edge.change(inputs)
    by = tuple(x for x in inputs if x != "weights")
    if not edge.gradients:
        by, _ = (), inputs.pop("weights")
    return KernelCase(edge_name, edge.catches, inputs, recurrence.reference, recurrence.form, by)


def _draw(recurrence: _Recurrence, sizes: _Sizes, rng: np.random.Generator) -> Arrays:
    """Draw tokens, gates, states and weights of mid size: keys have a norm of about 1."""
    *lead, n, d, e = sizes
    of_gate = {"token": (n,), "one": (n, 1), "key": (n, d), "features": (d,)}
    of_state = dict.fromkeys("SGMZ", (d, e)) | {
        "H": (d, d), "K": (_N_EARLIER, d), "V": (_N_EARLIER, e)
    }  # fmt: skip
    x = {name: rng.standard_normal((*lead, n, d)) for name in "qk"}
    x["v"] = rng.standard_normal((*lead, n, e))
    x["k"] /= np.sqrt(d)
    for name, shape in recurrence.gates.items():
        x[name] = rng.uniform(*_RANGES[name], (*lead, *of_gate[shape]))
    for name in recurrence.states:
        x[f"initial_{name}"] = rng.standard_normal((*lead, *of_state[name]))
    if "initial_H" in x:
        x["initial_H"] = np.round(x["initial_H"])
        x["initial_H"] = x["initial_H"] @ x["initial_H"].swapaxes(-1, -2)
    x["weights"] = rng.standard_normal((*lead, n, e))
    return {name: round_to_bfloat16(y) for name, y in x.items()}
