"""The recurrences of test-time regression, literally: a loop over tokens, in any dtype.

Each takes tensors by name: ``q``, ``k``, ``v`` of shape (..., tokens, width), gates of shape
(..., tokens) or (..., tokens, width), and states ``initial_...``, zero by default. It returns
``out`` and the states ``last_...``. Functions of others are held to them, and
`twinsolve.bench.vectors` holds them to the solvers of `twinsolve.solvers.online_regression`.

Scripts of broken laws contain them, and a gate that is 0 has a gradient here. The layers of
`twinsolve.unrolled.online_regression`, which take logarithms of gates, cannot serve for that.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

Tensors = dict[str, Tensor]


def _tokens(x: Tensors, *gates: str) -> Iterator[tuple[Tensor, ...]]:
    """Yield q, k, v and gates of each token, (..., 1, width); gates of a number have width 1."""
    x = dict.fromkeys(("forget", "metric"), torch.ones_like(x["k"])) | x
    rows = (x[name] for name in ("q", "k", "v", *gates))
    wide = (y if y.ndim == x["k"].ndim else y[..., None] for y in rows)
    yield from zip(*(y.split(1, dim=-2) for y in wide), strict=True)


def _start(x: Tensors, state: str, columns: str = "v") -> Tensor:
    """Return the state before the first token: given, or zeros (keys' width, `columns`' width)."""
    zeros = torch.zeros_like(x["k"][..., :1, :].mT @ x[columns][..., :1, :])
    return x.get(f"initial_{state}", zeros)


def sum_outer_products(x: Tensors) -> Tensors:
    """Return outputs and state of ``S_t = diag(a_t) S_{t-1} + k_t^T v_t``: TR-1."""
    S, out = _start(x, "S"), []
    for q, k, v, a in _tokens(x, "forget"):
        S = a.mT * S + k.mT @ v
        out.append(q @ S)
    return {"out": torch.cat(out, dim=-2), "last_S": S}


def step_delta(x: Tensors) -> Tensors:
    """Return outputs and state of the delta rule, with decay and metric: TR-2, TR-3 and TR-6."""
    S, out = _start(x, "S"), []
    for q, k, v, beta, a, m in _tokens(x, "beta", "forget", "metric"):
        S = a.mT * S
        S = S + beta * (m * k).mT @ (v - k @ S)
        out.append(q @ S)
    return {"out": torch.cat(out, dim=-2), "last_S": S}


def step_comba(x: Tensors) -> Tensors:
    """Comba: the error is that of p, before the state forgets; p = a k is TR-3."""
    S, out = _start(x, "S"), []
    for q, k, v, p, beta, a in _tokens(x, "p", "beta", "forget"):
        S = a.mT * S + beta * k.mT @ (v - p @ S)
        out.append(q @ S)
    return {"out": torch.cat(out, dim=-2), "last_S": S}


def step_proximal(x: Tensors) -> Tensors:
    """Return those of the proximal step, a delta rule with shorter steps: TR-2p."""
    beta = x["delta"] / (1 + x["delta"] * x["k"].square().sum(-1))
    return step_delta(x | {"beta": beta})


def solve_ridge(x: Tensors, n_iter: int | None = None) -> Tensors:
    """Return those of ridge regression: TR-5 or, by `n_iter` conjugate gradient steps, TR-5c."""
    H, G, out = _start(x, "H", "k"), _start(x, "G"), []
    for q, k, v, beta, a in _tokens(x, "beta", "forget"):
        H, G = a * H + beta * k.mT @ k, a * G + beta * k.mT @ v
        A = H + torch.diag_embed(x["lam"])
        row = torch.linalg.solve(A.mT, q.mT).mT if n_iter is None else _iterate(A, q, n_iter)
        out.append(row @ G)
    return {"out": torch.cat(out, dim=-2), "last_H": H, "last_G": G}


def _iterate(A: Tensor, b: Tensor, n_iter: int) -> Tensor:
    """Solve ``x A = b`` approximately by conjugate gradients."""
    x, r, p = torch.zeros_like(b), b, b
    for _ in range(n_iter):
        pA, rho = p @ A, r @ r.mT
        alpha = _divide(rho, pA @ p.mT)
        x, r = x + alpha * p, r - alpha * pA
        p = r + _divide(r @ r.mT, rho) * p
    return x


def _divide(above: Tensor, below: Tensor) -> Tensor:
    """Return the quotient, and 0 where the divisor is not positive."""
    zero = below <= 0
    return torch.where(zero, 0, above / torch.where(zero, 1, below))


def step_titans(x: Tensors) -> Tensors:
    """Return outputs and states of gradient steps with momentum and decay: TR-8."""
    M, Z, out = _start(x, "M"), _start(x, "Z"), []
    for q, k, v, theta, eta, alpha in _tokens(x, "step", "momentum", "decay"):
        Z = eta * Z - 2 * theta * k.mT @ (k @ M - v)
        M = (1 - alpha) * M + Z
        out.append(q @ M)
    return {"out": torch.cat(out, dim=-2), "last_M": M, "last_Z": Z}


def attend_with_probe(x: Tensors, scale: float = 1.0, reg: float | None = None) -> Tensors:
    """Return the output of TR-9, with the exact probe if there is a `reg`."""
    K = torch.cat([x.get("initial_K", x["k"][..., :0, :]), x["k"]], dim=-2)
    V = torch.cat([x.get("initial_V", x["v"][..., :0, :]), x["v"]], dim=-2)
    n, all_ = x["k"].shape[-2], K.shape[-2]
    seen = torch.ones(n, all_).tril(all_ - n) > 0
    p = (scale * x["q"] @ K.mT).masked_fill(~seen, -torch.inf).softmax(-1)
    mean = p @ K
    r = x["probe"] if reg is None else _fit_probe(p, K, mean - x["q"], mean, reg)
    return {"out": p @ V * (1 + (r * mean).sum(-1, keepdim=True)) - (p * (r @ K.mT)) @ V}


def _fit_probe(p: Tensor, K: Tensor, offset: Tensor, mean: Tensor, reg: float) -> Tensor:
    """Return the exact probe: offsets times the inverse of the weighted covariance of keys."""
    x = K[..., None, :, :] - mean[..., None, :]
    spread = (p[..., None] * x).mT @ x
    trace = spread.diagonal(dim1=-2, dim2=-1).sum(-1)[..., None, None]
    return torch.linalg.solve(spread + reg * trace * torch.eye(K.shape[-1]).to(K), offset)
