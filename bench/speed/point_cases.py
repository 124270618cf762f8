"""Smoothers, embeddings and token graying: methods on points and tokens."""

from functools import partial
from typing import Any

import numpy as np
import torch
from scipy.fft import dctn, idctn
from scipy.sparse import csr_array, eye_array
from skimage.data import chelsea
from skimage.util import view_as_blocks
from sklearn.datasets import make_swiss_roll
from sklearn.manifold import LocallyLinearEmbedding as TheirEmbedding
from sklearn.manifold._locally_linear import barycenter_weights
from sklearn.neighbors import NearestNeighbors
from torch.nn.functional import scaled_dot_product_attention

from ...solvers import LocallyLinearEmbedding, gray_tokens, locally_linear_weights, nadaraya_watson
from ...solvers.conditioning import condition_number
from ...solvers.solution import Array
from ..timing import in_turns, seconds_of
from .contest import OURS
from .peers import Case, Contest, Method, on_threads

_N_POINTS, _NEIGHBORS = 10_000, 12
_BLOCKS = (16, 32, 64, 128, 256, 512)
_N_IMAGES = 32


def _difference(results: list[Any], first: list[Any]) -> dict[str, float]:
    pairs = zip(results, first, strict=True)
    return {"difference": max(float(abs(a - b).max() / abs(b).max()) for a, b in pairs)}


def make_regression(seed: int, n_jobs: int, *, n_points: int, dtype: str) -> Contest:
    """Queries, keys and values of 32 features; the bandwidth is the usual one of attention."""
    rng = np.random.default_rng(seed)
    q, k, v = (rng.standard_normal((n_points, 32)).astype(dtype) for _ in range(3))
    s = 32**0.25
    block = _best_block(q, k, v, s)
    blocks = partial(_in_blocks, s=s, block=block)
    methods = [
        *on_threads(partial(nadaraya_watson, bandwidth=s), n_jobs),
        Method(f"NumPy, blocks of {block}", "numpy", blocks, n_jobs),
        Method("torch attention", "torch", partial(_attention, s=s), n_jobs),
    ]
    return Contest([(q, k, v)], methods, _difference)


def _in_blocks(q: Array, k: Array, v: Array, *, s: float, block: int) -> Array:
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
    """By the median of three rounds, each over enough queries to pay for memory once."""
    smooth = partial(_in_blocks, q[: 8 * _BLOCKS[-1]], k, v, s=s)
    runs = [partial(seconds_of, partial(smooth, block=block)) for block in _BLOCKS]
    return _BLOCKS[np.median(in_turns(runs, 3), axis=1).argmin()]


def _attention(q: Array, k: Array, v: Array, *, s: float) -> Array:
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

    def theirs(X: Array) -> csr_array:
        data = barycenter_weights(X, X, neighbors, reg=1e-3).ravel()
        return csr_array((data, graph.indices, graph.indptr), shape=graph.shape)

    methods = [
        *on_threads(partial(locally_linear_weights, graph=graph), n_jobs),
        Method("scikit-learn", "scikit-learn", theirs),
    ]
    return Contest([(X,)], methods, _difference)


def make_embedding(seed: int, n_jobs: int, *, n_features: int) -> Contest:
    """Neighbours, weights and eigenvectors."""
    X = _swiss_roll(seed, n_features)
    residual = eye_array(len(X)) - locally_linear_weights(X, n_neighbors=_NEIGHBORS)

    def cost(results: list[Array], first: list[Array]) -> dict[str, float]:
        """``|Y - C Y|_F^2`` of the orthonormal coordinates that span the same space."""
        (Y,) = results
        return {"cost": float(((residual @ np.linalg.qr(Y - Y.mean(axis=0))[0]) ** 2).sum())}

    theirs = partial(_embedded, kind=TheirEmbedding, seed=seed, n_jobs=n_jobs)
    methods = [
        *on_threads(partial(_embedded, kind=LocallyLinearEmbedding, seed=seed), n_jobs),
        Method("scikit-learn", "scikit-learn", theirs, n_jobs),
    ]
    return Contest([(X,)], methods, cost)


def _embedded(X: Array, kind: Any, seed: int, n_jobs: int) -> Array:
    estimator = kind(n_neighbors=_NEIGHBORS, random_state=seed, n_jobs=n_jobs)
    coordinates: Array = estimator.fit_transform(X)
    return coordinates


def _swiss_roll(seed: int, n_features: int) -> Array:
    """10,000 points on a roll with noise, in as many dimensions."""
    rng = np.random.default_rng(seed)
    X, _ = make_swiss_roll(_N_POINTS, random_state=seed)
    basis = np.linalg.qr(rng.standard_normal((n_features, 3)))[0]
    return X @ basis.T + 0.05 * rng.standard_normal((len(X), n_features))


def make_graying(
    seed: int, n_jobs: int, *, transform: str, image_size: int, patch_size: int
) -> Contest:
    """The patches of 32 colour images, as tokens; one image a call."""
    rng = np.random.default_rng(seed)
    picture = (chelsea() / 255).astype(np.float32)
    corners = rng.integers(len(picture) - image_size, size=(_N_IMAGES, 2))
    crops = (picture[y : y + image_size, x : x + image_size] for y, x in corners)

    def log_kappa(results: list[Array], first: list[Array]) -> dict[str, float]:
        kappa = condition_number(np.stack(results))
        return _difference(results, first) | {"log_kappa": float(np.median(np.log(kappa)))}

    listing = {
        "svd": Method("NumPy's SVD", "numpy", _gray_by_svd),
        "dct": Method("SciPy's DCT", "scipy", _gray_by_dct),
    }
    methods = [
        Method(OURS, OURS, partial(gray_tokens, transform=transform)),
        listing[transform],
        Method("nothing (a copy)", "numpy", np.copy),
    ]
    return Contest([(_patches(crop, patch_size),) for crop in crops], methods, log_kappa)


def _gray_by_svd(X: Array, eps: float = 0.95) -> Array:
    U, s, Rt = np.linalg.svd(X, full_matrices=False)
    return U * (s[0] * (s / s[0]) ** eps) @ Rt


def _gray_by_dct(X: Array, eps: float = 0.95) -> Array:
    spectrum = dctn(X, norm="ortho")
    size = np.abs(spectrum)
    return idctn(np.sign(spectrum) * size.max() * (size / size.max()) ** eps, norm="ortho")


def _patches(image: Array, size: int) -> Array:
    """(patches, pixels and channels of a patch)"""
    blocks = view_as_blocks(np.ascontiguousarray(image), (size, size, image.shape[-1]))
    return blocks.reshape(-1, size * size * image.shape[-1])


POINT_CASES = {
    **{
        f"regression-{dtype}": Case(
            "50,000 queries and keys of 32 features",
            partial(make_regression, n_points=50_000, dtype=dtype),
            dtype,
        )
        for dtype in ("float64", "float32")
    },
    "lle-weights": Case("10,000 points, 12 given neighbours each", make_weights, "float64"),
    **{
        f"lle-{n}": Case(
            f"10,000 points in {n} dimensions, 12 neighbours, 2 components",
            partial(make_embedding, n_features=n),
            "float64",
        )
        for n in (3, 50)
    },
    **{
        f"graying-{transform}-{width}": Case(
            f"tokens of 32 colour images, {width} pixels wide, patches of {size}",
            partial(make_graying, transform=transform, image_size=width, patch_size=size),
            "float32",
            memory=False,
        )
        for width, size in ((224, 16), (64, 4))
        for transform in ("svd", "dct")
    },
}
