"""Data sets of the check as tokens for clustering or vision, with a task number."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from scipy.sparse.csgraph import connected_components
from skimage.metrics import peak_signal_noise_ratio
from sklearn.cluster import KMeans, SpectralClustering
from sklearn.decomposition import TruncatedSVD
from sklearn.metrics import adjusted_rand_score
from sklearn.preprocessing import normalize
from torch import Tensor

from ...datasets import (
    data_root,
    fetch_extended_yale_b,
    fetch_set12,
    load_digits,
    load_photographs,
    make_noisy_crop,
    make_union_of_subspaces,
)
from ...solvers.clustering import symmetric_affinity
from ...twins import Twin

Array = np.ndarray

_N_TOKENS, _N_IMAGES = 256, 64
_OTHER_KEYS = 0.5  # standard deviation of the noise in keys that differ from queries
_CROP, _PATCH, _SIGMA = 20, 5, 0.1


@dataclass(frozen=True)
class ClusteringSample:
    """Tokens with labels and, if there are any, their images.

    Tokens have mean square 1, as after LayerNorm. The task number is the adjusted Rand index of the
    clusters found from the output. Doing nothing is k-means on the tokens or images.
    """

    name: str
    X: Array
    labels: Array
    images: Array | None
    seed: int
    task = "clustering"

    def inputs(self, twin: Twin) -> tuple[Tensor, ...] | None:
        """Inputs of the twin in float64, or None if it cannot take this data.

        Values are ``[X, I]`` with the identity I, so that the output holds both ``C X`` and the
        coefficients C. In head 0, queries and keys are the tokens; keys get noise if the twin needs
        other points than the queries. If they may differ, head 1 projects each at random.
        """
        if twin.inputs.kind == "patches":
            return None
        if twin.inputs.kind == "image":
            return None if self.images is None else (torch.from_numpy(self.images),)
        if twin.inputs.kind == "features":
            return (torch.from_numpy(self.X),)
        (n, dim), rng = self.X.shape, np.random.default_rng(self.seed)
        noise = _OTHER_KEYS * rng.standard_normal(self.X.shape)
        pairs = [(self.X, self.X + noise if twin.inputs.pairing == "cross" else self.X)]
        if twin.inputs.pairing != "self":
            query_weights, key_weights = rng.standard_normal((2, dim, dim)) / np.sqrt(dim)
            pairs.append((self.X @ query_weights, self.X @ key_weights))
        values = np.repeat(np.hstack([self.X, np.eye(n)])[None], len(pairs), axis=0)
        q, k = (np.stack([pair[side] for pair in pairs]) for side in (0, 1))
        return torch.from_numpy(q), torch.from_numpy(k), torch.from_numpy(values)

    def task_number(self, twin: Twin, output: Array, tokens: Array | None) -> float:
        """Adjusted Rand index of `tokens`, the rows of the output; None is all tokens.

        It is NaN for a graph with more parts than clusters.
        """
        if twin.inputs.kind != "tokens":
            return self._of_features(output)
        kept = np.arange(len(self.X)) if tokens is None else tokens
        labels = self.labels[kept]
        affinity = symmetric_affinity(output[0][:, self.X.shape[1] + kept])
        if connected_components(affinity)[0] > len(np.unique(labels)):
            return np.nan  # the choice of parts to merge is arbitrary
        clusterer = SpectralClustering(
            len(np.unique(labels)),
            affinity="precomputed",
            assign_labels="cluster_qr",
            random_state=self.seed,
        )
        with warnings.catch_warnings():  # a disconnected graph is no error here
            warnings.filterwarnings("ignore", message="Graph is not fully connected|k >= N")
            return float(adjusted_rand_score(labels, clusterer.fit_predict(affinity)))

    def number_of_nothing(self, twin: Twin, tokens: Array | None) -> float:
        """The task number of the data as they are."""
        if twin.inputs.kind == "image":
            return self._of_images
        return self._of_tokens if tokens is None else self._of_features(self.X[tokens], tokens)

    @cached_property
    def _of_tokens(self) -> float:
        return self._of_features(self.X)

    @cached_property
    def _of_images(self) -> float:
        assert self.images is not None
        return self._of_features(self.images)

    def _of_features(self, features: Array, tokens: Array | slice | None = None) -> float:
        labels = self.labels[slice(len(features)) if tokens is None else tokens]
        clusterer = KMeans(len(np.unique(labels)), n_init=5, random_state=self.seed)
        found = clusterer.fit_predict(features.reshape(len(features), -1))
        return float(adjusted_rand_score(labels, found))


@dataclass(frozen=True)
class VisionSample:
    """Overlapping patches of a noisy image crop, with the centre pixels as values.

    In tokens, grey levels are scaled to mean 0 and mean square 1 over the crop. Keys come from a
    second crop if they must be other points than queries. The task number is the PSNR of the
    output image; doing nothing leaves the noisy image.
    """

    name: str
    noisy: Array
    clean: Array
    other: Array
    task = "vision"

    def inputs(self, twin: Twin) -> tuple[Tensor, ...] | None:
        if twin.inputs.kind == "image":
            return (torch.from_numpy(self.noisy[None, None]),)
        patches = _patches(self._standardised(self.noisy))
        if twin.inputs.kind in ("features", "patches"):
            return (torch.from_numpy(patches),)
        other = self._standardised(self.other)
        keys = _patches(other) if twin.inputs.pairing == "cross" else patches
        values = keys[:, _PATCH**2 // 2, None]
        q, k, v = (torch.from_numpy(x[None].copy()) for x in (patches, keys, values))
        return q, k, v

    def task_number(self, twin: Twin, output: Array, tokens: Array | None) -> float:
        """PSNR of the pixels `tokens`, all that the output holds; None is all pixels."""
        if twin.inputs.kind == "image":
            return self._psnr(output.ravel(), tokens)
        pixels = (
            output[:, _PATCH**2 // 2]
            if twin.inputs.kind in ("features", "patches")
            else output.ravel()
        )
        return self._psnr(pixels * self.noisy.std() + self.noisy.mean(), tokens)

    def number_of_nothing(self, twin: Twin, tokens: Array | None) -> float:
        """The task number of the data as they are."""
        pixels = self.noisy.ravel()
        return self._psnr(pixels if tokens is None else pixels[tokens], tokens)

    def _psnr(self, pixels: Array, tokens: Array | None) -> float:
        clean = self.clean.ravel() if tokens is None else self.clean.ravel()[tokens]
        return float(peak_signal_noise_ratio(clean, pixels, data_range=1.0))

    def _standardised(self, image: Array) -> Array:
        return (image - self.noisy.mean()) / self.noisy.std()


Sample = ClusteringSample | VisionSample


def check_samples(seed: int) -> list[Sample]:
    """The data of `twinsolve check`: packaged data, and further sets if the data root has them."""
    makers: list[Callable[[int], list[Sample]]] = [_digits, _subspaces, _photographs]
    if (data_root() / "ExtendedYaleB.mat").is_file():
        makers.append(_faces)
    if all((data_root() / "set12" / f"{number:02d}.png").is_file() for number in range(1, 13)):
        makers.append(_set12)
    return [sample for make in makers for sample in make(seed)]


def _patches(image: Array) -> Array:
    padded = np.pad(image, _PATCH // 2, mode="reflect")
    windows = np.lib.stride_tricks.sliding_window_view(padded, (_PATCH, _PATCH))
    return windows.reshape(image.size, -1).copy()


def _unit_rms(X: Array) -> Array:
    return np.sqrt(X.shape[1]) * normalize(X)


def _digits(seed: int) -> list[Sample]:
    digits = load_digits()
    rng = np.random.default_rng(seed)
    rows = rng.choice(len(digits.data), _N_TOKENS, replace=False)
    images = digits.images[rows][:, None] / 16
    noisy = images + _SIGMA * rng.standard_normal(images.shape)
    X, y = digits.data[rows], digits.target[rows]
    return [ClusteringSample("digits", _unit_rms(X), y, noisy[:_N_IMAGES], seed)]


def _subspaces(seed: int) -> list[Sample]:
    X, y = make_union_of_subspaces(
        _N_TOKENS // 4, n_subspaces=4, n_features=30, dimension=5, noise=0.1, random_state=seed
    )
    return [ClusteringSample("subspaces", _unit_rms(X), y, None, seed)]


def _faces(seed: int) -> list[Sample]:
    faces = fetch_extended_yale_b()
    rows = np.flatnonzero(faces.target < 4)[:_N_TOKENS]
    # Not centred: the faces of a person lie near a subspace through the origin.
    features = TruncatedSVD(64, random_state=seed).fit_transform(faces.data[rows])
    images, y = faces.images[rows[:_N_IMAGES], None, ::3, ::3] / 255, faces.target[rows]
    return [ClusteringSample("yale-b", _unit_rms(features), y, images, seed)]


def _photographs(seed: int) -> list[Sample]:
    photographs = load_photographs()
    named = zip(photographs.names, photographs.images, strict=True)
    return [_crops(name, image, seed) for name, image in named]


def _set12(seed: int) -> list[Sample]:
    return [_crops("set12-01", fetch_set12().images[0], seed)]


def _crops(name: str, image: Array, seed: int) -> Sample:
    rng = np.random.RandomState(seed)
    (noisy, clean), (other, _) = _crop(image, rng), _crop(image, rng)
    return VisionSample(name, noisy, clean, other)


def _crop(image: Array, rng: np.random.RandomState) -> tuple[Array, Array]:
    """A crop with more contrast than noise: on a flat crop, the mean beats every filter."""
    while True:
        noisy, clean = make_noisy_crop(image, size=_CROP, sigma=_SIGMA, random_state=rng)
        if noisy.std() > 2 * _SIGMA:
            return noisy, clean
