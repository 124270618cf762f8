"""Data sets as the check wants them: clustering tokens and vision tokens, with a task number."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from skimage.metrics import peak_signal_noise_ratio
from sklearn.cluster import KMeans, SpectralClustering
from sklearn.decomposition import TruncatedSVD
from sklearn.metrics import adjusted_rand_score
from sklearn.preprocessing import normalize
from torch import Tensor

from ..datasets import (
    data_root,
    fetch_extended_yale_b,
    fetch_set12,
    load_digits,
    load_photographs,
    make_noisy_crop,
    make_union_of_subspaces,
)
from ..solvers import symmetric_affinity
from ..unrolled.twins import Twin

Array = np.ndarray

_N_TOKENS = 256
_N_HEADS = 2
_CROP, _PATCH, _SIGMA = 24, 5, 0.1
_N_SMALL = 3  # images for whole models


@dataclass(frozen=True)
class ClusteringSample:
    """Unit-norm tokens with labels; images of them too, where they are images.

    The task number is the adjusted Rand index of the clusters found from the output.
    """

    name: str
    X: Array
    labels: Array
    images: Array | None
    seed: int
    task = "clustering"

    def inputs(self, twin: Twin) -> tuple[Tensor, ...] | None:
        """Inputs of the twin in float64, or None if it cannot take this data.

        Values are ``[X, I]``, so that the output holds both ``C X`` and the coefficients C. Head 0
        has identity projections where queries and keys may be equal; two heads with random
        projections follow where they may differ.
        """
        if twin.inputs == "image":
            return None if self.images is None else (torch.from_numpy(self.images),)
        if twin.inputs == "model":
            if self.images is None or self.images.shape[2:] != (8, 8):
                return None
            return (torch.from_numpy(self.images[:_N_SMALL]),)
        if twin.inputs == "features":
            return (torch.from_numpy(self.X),)
        n, dim = self.X.shape
        projections = [(np.eye(dim), np.eye(dim))] if twin.pairing != "cross" else []
        if twin.pairing != "self":
            rng = np.random.default_rng(self.seed)
            projections += [*rng.standard_normal((_N_HEADS, 2, dim, dim)) / np.sqrt(dim)]
        values = np.repeat(np.hstack([self.X, np.eye(n)])[None], len(projections), axis=0)
        q, k = (np.stack([self.X @ pair[side] for pair in projections]) for side in (0, 1))
        return torch.from_numpy(q), torch.from_numpy(k), torch.from_numpy(values)

    def task_number(self, twin: Twin, output: Array, tokens: Array | None) -> float:
        """Adjusted Rand index of all tokens, or of some, of which alone the output then is."""
        if twin.inputs == "tokens":
            kept = np.arange(len(self.X)) if tokens is None else tokens
            labels = self.labels[kept]
            affinity = symmetric_affinity(output[0][:, self.X.shape[1] + kept])
            clusterer = SpectralClustering(
                len(np.unique(labels)), affinity="precomputed", random_state=self.seed, n_init=20
            )
            with warnings.catch_warnings():  # parts without an edge between them are clusters too
                warnings.filterwarnings("ignore", message="Graph is not fully connected")
                return float(adjusted_rand_score(labels, clusterer.fit_predict(affinity)))
        features, labels = output.reshape(len(output), -1), self.labels[: len(output)]
        clusterer = KMeans(len(np.unique(labels)), n_init=20, random_state=self.seed)
        return float(adjusted_rand_score(labels, clusterer.fit_predict(features)))


@dataclass(frozen=True)
class VisionSample:
    """Overlapping patches of a noisy image crop, with the centre pixels as values.

    Where keys must be other points than queries, they come from a second crop. The task number is
    the PSNR of the image that the output gives.
    """

    name: str
    noisy: Array
    clean: Array
    other: Array
    task = "vision"

    def inputs(self, twin: Twin) -> tuple[Tensor, ...] | None:
        if twin.inputs == "model":
            return None
        if twin.inputs == "image":
            return (torch.from_numpy(self.noisy[None, None]),)
        patches = _patches(self.noisy)
        if twin.inputs == "features":
            return (torch.from_numpy(patches),)
        keys = patches if twin.pairing != "cross" else _patches(self.other)
        values = keys[:, _PATCH**2 // 2, None]
        q, k, v = (torch.from_numpy(x[None].copy()) for x in (patches, keys, values))
        return q, k, v

    def task_number(self, twin: Twin, output: Array, tokens: Array | None) -> float:
        """PSNR of all pixels, or of some, of which alone the output then is."""
        pixels = output[:, _PATCH**2 // 2] if twin.inputs == "features" else output.ravel()
        clean = self.clean.ravel() if tokens is None else self.clean.ravel()[tokens]
        return float(peak_signal_noise_ratio(clean, pixels, data_range=1.0))


Sample = ClusteringSample | VisionSample


def check_samples(seed: int) -> list[Sample]:
    """The data of `twinsolve check`: packaged, and from the data root what lies there."""
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


def _digits(seed: int) -> list[Sample]:
    digits = load_digits()
    rng = np.random.default_rng(seed)
    rows = rng.choice(len(digits.data), _N_TOKENS, replace=False)
    images = digits.images[rows][:, None] / 16
    noisy = images + _SIGMA * rng.standard_normal(images.shape)
    return [
        ClusteringSample("digits", normalize(digits.data[rows]), digits.target[rows], noisy, seed)
    ]


def _subspaces(seed: int) -> list[Sample]:
    X, y = make_union_of_subspaces(
        _N_TOKENS // 4, n_subspaces=4, n_features=30, dimension=5, noise=0.1, random_state=seed
    )
    return [ClusteringSample("subspaces", normalize(X), y, None, seed)]


def _faces(seed: int) -> list[Sample]:
    faces = fetch_extended_yale_b()
    rows = np.flatnonzero(faces.target < 4)[:_N_TOKENS]
    # Not centred: the faces of a person lie near a subspace through the origin.
    features = TruncatedSVD(64, random_state=seed).fit_transform(faces.data[rows])
    images = faces.images[rows][:, None, ::3, ::3] / 255
    return [ClusteringSample("yale-b", normalize(features), faces.target[rows], images, seed)]


def _photographs(seed: int) -> list[Sample]:
    photographs = load_photographs()
    named = zip(photographs.names, photographs.images, strict=True)
    return [_crops(name, image, seed) for name, image in named]


def _set12(seed: int) -> list[Sample]:
    return [_crops("set12-01", fetch_set12().images[0], seed)]


def _crops(name: str, image: Array, seed: int) -> Sample:
    rng = np.random.RandomState(seed)
    noisy, clean = make_noisy_crop(image, size=_CROP, sigma=_SIGMA, random_state=rng)
    other, _ = make_noisy_crop(image, size=_CROP, sigma=_SIGMA, random_state=rng)
    return VisionSample(name, noisy, clean, other)
