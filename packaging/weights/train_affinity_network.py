"""Train the packaged affinity network on generated data, from nothing.

``python packaging/weights/train_affinity_network.py OUTPUT.npz`` takes two to three minutes of one
processor and 2 GiB, and gives the packaged file again, up to rounding of other processors. It is
trained on unions of clusters of many kinds, drawn without end: points of each kind at random sizes,
dimensions, noise and nearness, from easy to hopeless.
"""

import argparse
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
from sklearn.preprocessing import normalize

from twinsolve.datasets import make_rigid_motions, make_union_of_manifolds, make_union_of_subspaces
from twinsolve.solvers.inputs import Array
from twinsolve.unrolled.clustering.affinity_network import (
    LabelledEdges,
    save_affinity_network,
    train_affinity_network,
)
from twinsolve.unrolled.clustering.edge_features import edge_features

N_EACH = 60
Points = tuple[Array, Array]
_N_LEADING = 200


def make_union(kind: str, seed: int = 0, trial: int = 0) -> Points:
    """Draw points of unit norm, at most 200 coordinates each, and their clusters from 0."""
    number = list(KINDS).index(kind)
    X, y = KINDS[kind](np.random.RandomState([seed, number, trial]))
    return normalize(_leading(X)), np.unique(y, return_inverse=True)[1]


def make_unions(n_each: int, seed: int = 0) -> Iterator[Points]:
    """Draw `n_each` problems of each kind."""
    for kind in KINDS:
        for trial in range(n_each):
            yield make_union(kind, seed, trial)


def _leading(X: Array) -> Array:
    """Coordinates along at most 200 leading right singular vectors."""
    U, s, _ = np.linalg.svd(X, full_matrices=False)
    return (U * s)[:, :_N_LEADING]


def _subspaces(rng: np.random.RandomState) -> Points:
    """Of one dimension, linear or affine, mostly more of them than are independent."""
    k, d = rng.randint(2, 9), rng.randint(2, 10)
    crowded = rng.uniform() < 0.7
    n_features = d + 1 + rng.randint(1, 1 + 2 * d * k) if crowded else rng.randint(2 * d + 2, 150)
    return make_union_of_subspaces(
        list(rng.randint(max(15, 3 * d), 70, size=k)),
        n_subspaces=k,
        n_features=n_features,
        dimension=d,
        affine=bool(rng.uniform() < 0.25),
        noise=rng.uniform(0, 0.6),
        random_state=rng,
    )


def _close_subspaces(rng: np.random.RandomState) -> Points:
    """At equal angles to each other."""
    k, d = rng.randint(2, 6), rng.randint(2, 7)
    return make_union_of_subspaces(
        list(rng.randint(max(20, 4 * d), 70, size=k)),
        n_subspaces=k,
        n_features=(k + 1) * d + rng.randint(60),
        dimension=d,
        noise=rng.uniform(0, 0.4),
        angle=rng.uniform(0.2, 0.9),
        random_state=rng,
    )


def _manifolds(rng: np.random.RandomState) -> Points:
    """Closed curves and surfaces, and rolled sheets, mostly in few dimensions."""
    k, crowded = rng.randint(2, 8), rng.uniform() < 0.7
    shape = "closed" if rng.uniform() < 0.6 else "roll"
    d = rng.randint(2, 4) if shape == "closed" else rng.randint(1, 4)
    smallest = {("closed", 2): 4, ("closed", 3): 8}.get((shape, d), d + 2)
    return make_union_of_manifolds(
        list(rng.randint(30, 80, size=k)),
        n_manifolds=k,
        n_features=smallest + rng.randint(5 if crowded else 20),
        dimension=d,
        shape=shape,
        curvature=rng.uniform(0.1, 1.5 if shape == "closed" else 1.0),
        noise=rng.uniform(0, 0.3),
        random_state=rng,
    )


def _lit_surfaces(rng: np.random.RandomState) -> Points:
    """Pictures of Lambertian surfaces that differ little, under the same lights."""
    k, n, shape = rng.randint(2, 9), rng.randint(30, 70), (24, 20)
    y, x = np.meshgrid(*(np.linspace(-1, 1, size) for size in shape), indexing="ij")
    depth = 1.5 * np.sqrt(np.maximum(1.8 - x**2 - y**2, 0)) + 0.15 * _smooth(rng, shape, 3)
    albedo = 1 + 0.3 * _smooth(rng, shape, 1.5)
    spread = np.array([rng.uniform(0.5, 1.2), rng.uniform(0.3, 0.9), 0])
    lights = normalize(rng.standard_normal((n, 3)) * spread + [0, 0, 1])
    ambient, difference = rng.uniform(0, 0.1), 10 ** rng.uniform(-1.6, -0.4)
    pictures = []
    for _ in range(k):
        own = depth + 0.35 * difference * _smooth(rng, shape, rng.uniform(1.5, 3))
        slopes = np.gradient(shape[0] / 4 * own)
        normals = np.stack([-slopes[1], -slopes[0], np.ones(shape)], axis=-1).reshape(-1, 3)
        colour = albedo + 0.6 * difference * _smooth(rng, shape, rng.uniform(0.6, 1.5))
        turned = lights + rng.uniform(0, 0.1) * rng.standard_normal((n, 3))
        lit = np.maximum(turned @ normalize(normals).T, 0) + ambient
        exposure = rng.uniform(0.5, 1.5, size=(n, 1))
        pictures.append(exposure * lit * np.maximum(colour.ravel(), 0.05))
    X = np.vstack(pictures)
    X += rng.uniform(0, 0.05) * X.std() * rng.standard_normal(X.shape)
    return np.clip(X, 0, np.quantile(X, 0.995)), np.repeat(np.arange(k), n)


def _turned_objects(rng: np.random.RandomState) -> Points:
    """Pictures of objects on a turntable: clipped closed curves, some objects alike."""
    k, n, m, shape = rng.randint(2, 9), rng.randint(30, 80), rng.randint(4, 25), (16, 16)
    turns = np.arange(n) / n if rng.uniform() < 0.5 else rng.uniform(size=n)
    angles = 2 * np.pi * turns[:, None] * np.arange(1, m + 1)
    sizes = np.arange(1, m + 1) ** -rng.uniform(0.2, 1.4)
    curve = np.hstack([sizes * np.cos(angles), sizes * np.sin(angles)]) / np.linalg.norm(sizes)
    common, spread = _smooth(rng, shape, 3).ravel(), rng.uniform(0.2, 1.0)
    pictures, maps = [], None
    for _ in range(k):
        coarse = rng.uniform(1, 3)
        fresh = np.stack([_smooth(rng, shape, coarse).ravel() for _ in range(2 * m + 1)])
        part = rng.uniform(0, 0.5) if maps is not None and rng.uniform() < 0.6 else 1.0
        maps = fresh if maps is None else (1 - part) * maps + part * fresh
        moved = spread * rng.uniform(0.2, 1.5) * curve @ maps[1:]
        pictures.append(np.maximum(common + 0.7 * maps[0] + moved + rng.uniform(-0.5, 1), 0))
    X = np.vstack(pictures)
    return X + rng.uniform(0, 0.1) * rng.standard_normal(X.shape), np.repeat(np.arange(k), n)


def _decoded(rng: np.random.RandomState) -> Points:
    """What a random network makes of the code of a class and of few latent variables."""
    k, d, width = rng.randint(3, 11), rng.randint(2, 9), rng.randint(20, 100)
    sizes = rng.randint(25, 60, size=k)
    y = np.repeat(np.arange(k), sizes)
    codes = rng.uniform(0.25, 1.0) * rng.standard_normal((k, 8))
    mixing = rng.uniform(0, 0.5)
    own = (1 - mixing) * np.eye(d) + mixing * rng.standard_normal((k, d, d)) / np.sqrt(d)
    latent = np.einsum("nd,nde->ne", rng.standard_normal((len(y), d)), own[y])
    hidden = np.hstack([codes[y], latent])
    for n_out in (width, width, rng.randint(20, 200)):
        weights = rng.standard_normal((hidden.shape[1], n_out)) / np.sqrt(hidden.shape[1] / 2)
        hidden = np.maximum(hidden @ weights + 0.3 * rng.standard_normal(n_out), 0)
    return hidden + rng.uniform(0, 0.3) * hidden.std() * rng.standard_normal(hidden.shape), y


def _motions(rng: np.random.RandomState) -> Points:
    """Trajectories of points on rigid bodies, as they are or along leading directions."""
    k = rng.randint(2, 5)
    X, y = make_rigid_motions(
        list(rng.randint(25, 90, size=k)),
        n_motions=k,
        n_frames=rng.randint(12, 40),
        noise=rng.uniform(0, 1),
        random_state=rng,
    )
    return (X if rng.uniform() < 0.5 else _leading(X)[:, : 4 * k]), y


def _smooth(rng: np.random.RandomState, shape: tuple[int, int], coarseness: float) -> Array:
    """White noise under a Gaussian filter, of standard deviation 1."""
    frequencies = np.fft.fftfreq(shape[0])[:, None] ** 2 + np.fft.fftfreq(shape[1]) ** 2
    spectrum = np.fft.fft2(rng.standard_normal(shape)) * np.exp(-2 * coarseness**2 * frequencies)
    field: Array = np.fft.ifft2(spectrum).real
    return field / field.std()


KINDS: dict[str, Callable[[np.random.RandomState], Points]] = {
    "subspaces": _subspaces,
    "close subspaces": _close_subspaces,
    "manifolds": _manifolds,
    "lit surfaces": _lit_surfaces,
    "turned objects": _turned_objects,
    "decoded": _decoded,
    "motions": _motions,
}


def training_problems(n_each: int = N_EACH, seed: int = 0) -> list[LabelledEdges]:
    """Graphs of generated unions, `n_each` of every kind, with features in float32."""
    found = []
    for X, labels in make_unions(n_each, seed):
        edges = edge_features(X)
        features = edges.features.astype(np.float32)
        found.append(LabelledEdges(replace(edges, features=features), labels))
    return found


def main(arguments: list[str] | None = None) -> None:
    """Train and write the network; the loss of each epoch goes to the screen."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("output", help="file of arrays to write, .npz")
    parser.add_argument("--n-each", type=int, default=N_EACH, help="problems of each kind")
    parser.add_argument("--n-epochs", type=int, default=6)
    given = parser.parse_args(arguments)
    network, losses = train_affinity_network(
        training_problems(given.n_each), n_epochs=given.n_epochs
    )
    for epoch, loss in enumerate(losses):
        print(f"epoch {epoch}: loss {loss:.4f}")
    save_affinity_network(network, given.output)


if __name__ == "__main__":
    main()
