"""Smoothers, embeddings and token graying: methods on points and tokens."""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from scipy.fft import dctn, idctn
from scipy.sparse import eye_array
from skimage.data import chelsea
from sklearn.datasets import make_swiss_roll
from sklearn.manifold import LocallyLinearEmbedding as TheirEmbedding
from sklearn.manifold._locally_linear import barycenter_weights
from sklearn.neighbors import NearestNeighbors
from torch.nn.functional import scaled_dot_product_attention

from ...solvers import (
    LocallyLinearEmbedding,
    condition_number,
    gray_tokens,
    locally_linear_weights,
    nadaraya_watson,
)
from ...solvers.solution import Array
from .contest import OURS, Contest, Method, on_threads

_N_POINTS, _NEIGHBORS = 10_000, 12
_BLOCKS = (8, 16, 32, 64, 128, 256, 512)
_N_IMAGES = 32


def _difference(result: Array, first: Array) -> dict[str, float]:
    return {"difference": float(np.abs(result - first).max() / np.abs(first).max())}


def make_regression(seed: int, n_jobs: int, *, n_points: int, dtype: str) -> Contest:
    """Queries, keys and values of 32 features; the bandwidth is the usual one of attention."""
    rng = np.random.default_rng(seed)
    q, k, v = (rng.standard_normal((n_points, 32)).astype(dtype) for _ in range(3))
    s = 32**0.25
    ours = partial(nadaraya_watson, q, k, v, bandwidth=s)
    block = _best_block(q, k, v, s)
    methods = [
        *on_threads(ours, n_jobs),
        Method(
            f"NumPy, blocks of {block}", "numpy", partial(_in_blocks, q, k, v, s, block), n_jobs
        ),
        Method("torch attention", "torch", partial(_attention, q, k, v, s), n_jobs),
    ]
    return Contest(methods, _difference)


def _in_blocks(q: Array, k: Array, v: Array, s: float, block: int) -> Array:
    """Softmax of ``q.k / s^2 - |k|^2 / (2 s^2)``, a block of queries at a time."""
    kernel_bias = -(k**2).sum(axis=1) / (2 * s**2)
    smoothed = np.empty((len(q), v.shape[1]), q.dtype)
    for start in range(0, len(q), block):
        rows = slice(start, start + block)
        weights = (q[rows] / q.dtype.type(s**2)) @ k.T
        weights += kernel_bias
        weights -= weights.max(axis=1, keepdims=True)
        np.exp(weights, out=weights)
        smoothed[rows] = (weights @ v) / weights.sum(axis=1, keepdims=True)
    return smoothed


def _best_block(q: Array, k: Array, v: Array, s: float) -> int:
    return min(_BLOCKS, key=lambda block: _seconds(partial(_in_blocks, q[:1024], k, v, s, block)))


def _attention(q: Array, k: Array, v: Array, s: float) -> Array:
    """The key's norm as one more feature, and as wide values: the fused kernel's condition."""
    ones, norms = np.ones((len(q), 1), q.dtype), -(k**2).sum(axis=1, keepdims=True) / 2
    queries, keys, values = (
        torch.from_numpy(np.hstack(pair))[None, None]
        for pair in ((q, ones), (k, norms), (v, np.zeros_like(norms)))
    )
    smoothed = scaled_dot_product_attention(queries, keys, values, scale=1 / s**2)
    return smoothed[0, 0, :, :-1].numpy()


def make_weights(seed: int, n_jobs: int) -> Contest:
    """The neighbours are given to both."""
    X = _swiss_roll(seed, 3)
    graph = NearestNeighbors(n_neighbors=_NEIGHBORS).fit(X).kneighbors_graph()
    neighbors = np.ascontiguousarray(graph.indices.reshape(len(X), _NEIGHBORS))

    def theirs() -> Array:
        C = graph.copy()
        C.data = barycenter_weights(X, X, neighbors, reg=1e-3).ravel()
        return C

    ours = partial(locally_linear_weights, X, graph=graph)
    methods = [*on_threads(ours, n_jobs), Method("scikit-learn", "scikit-learn", theirs)]
    return Contest(methods, lambda C, first: _difference(C.toarray(), first.toarray()))


def make_embedding(seed: int, n_jobs: int, *, n_features: int) -> Contest:
    """Neighbours, weights and eigenvectors."""
    X = _swiss_roll(seed, n_features)
    settings: dict[str, Any] = {"n_neighbors": _NEIGHBORS, "n_components": 2, "random_state": seed}
    C = locally_linear_weights(X, n_neighbors=_NEIGHBORS)
    residual = eye_array(len(X)) - C

    def fit(kind: Any, jobs: int) -> Array:
        return kind(n_jobs=jobs, **settings).fit_transform(X)

    def cost(Y: Array, first: Array) -> dict[str, float]:
        """``|Y - C Y|_F^2`` of the orthonormal coordinates that span the same space."""
        return {"cost": float(((residual @ np.linalg.qr(Y - Y.mean(axis=0))[0]) ** 2).sum())}

    methods = [
        *on_threads(lambda n_jobs: fit(LocallyLinearEmbedding, n_jobs), n_jobs),
        Method("scikit-learn", "scikit-learn", partial(fit, TheirEmbedding, n_jobs), n_jobs),
    ]
    return Contest(methods, cost)


def _swiss_roll(seed: int, n_features: int) -> Array:
    """10,000 points on a roll with noise, in as many dimensions."""
    rng = np.random.default_rng(seed)
    X, _ = make_swiss_roll(_N_POINTS, random_state=seed)
    basis = np.linalg.qr(rng.standard_normal((n_features, 3)))[0]
    return X @ basis.T + 0.05 * rng.standard_normal((len(X), n_features))


def make_graying(seed: int, n_jobs: int, *, image_size: int, patch_size: int) -> Contest:
    """The patches of 32 colour images, as tokens; one image a call."""
    rng = np.random.default_rng(seed)
    picture = chelsea() / 255
    corners = rng.integers(len(picture) - image_size, size=(_N_IMAGES, 2))
    crops = np.stack([picture[y : y + image_size, x : x + image_size] for y, x in corners])
    tokens = _patches(crops.astype(np.float32), patch_size)

    def run(transform: Callable[[Array], Array]) -> Array:
        return np.stack([transform(X) for X in tokens])

    def log_kappa(grayed: Array, first: Array) -> dict[str, float]:
        return _difference(grayed, first) | {
            "log_kappa": float(np.median(np.log(condition_number(grayed))))
        }

    return Contest(
        [
            Method("gray_tokens, DCT", OURS, partial(run, partial(gray_tokens, transform="dct"))),
            Method("gray_tokens, SVD", OURS, partial(run, partial(gray_tokens, transform="svd"))),
            Method("NumPy SVD", "numpy", partial(run, _gray_by_svd)),
            Method("SciPy DCT", "scipy", partial(run, _gray_by_dct)),
            Method("nothing (a copy)", "numpy", partial(run, np.copy)),
        ],
        log_kappa,
    )


def _gray_by_svd(X: Array, eps: float = 0.95) -> Array:
    U, s, Rt = np.linalg.svd(X, full_matrices=False)
    return U * (s[0] * (s / s[0]) ** eps) @ Rt


def _gray_by_dct(X: Array, eps: float = 0.95) -> Array:
    spectrum = dctn(X, norm="ortho")
    size = np.abs(spectrum)
    return idctn(np.sign(spectrum) * size.max() * (size / size.max()) ** eps, norm="ortho")


def _patches(images: Array, size: int) -> Array:
    """(images, patches, pixels and channels of a patch)"""
    n, height, width, channels = images.shape
    grid = images.reshape(n, height // size, size, width // size, size, channels)
    return grid.transpose(0, 1, 3, 2, 4, 5).reshape(n, -1, size * size * channels)


def _seconds(run: Callable[[], Any]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start
