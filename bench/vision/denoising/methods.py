"""Methods that denoise: solved ones and peers, each with settings in units of the noise."""

import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from scipy.ndimage import gaussian_filter

from ....solvers import bilateral_filter, l2_boosting, nonlocal_means, sos_boosting, twicing
from ....solvers.nonlocal_energy import FilterBank, dct_filters, l1_analysis, total_variation
from ....solvers.solution import Array
from ....solvers.sparse_coding import (
    dct_dictionary,
    denoise_ista,
    denoise_lasso,
    denoise_low_rank,
    denoise_pursuit,
)
from ....unrolled.sparse_coding.patches import photograph_dictionary

Denoise = Callable[..., Array]  # (noisy image in [0, 1], sigma in grey levels, **settings)
SETTINGS = Path(__file__).with_name("settings.toml")


@dataclass(frozen=True)
class DenoisingMethod:
    """A method that takes a noisy image and its noise level, both in grey levels of [0, 1].

    Parameters
    ----------
    name : str
    kind : {"solved", "peer", "own"}
    family : str
        Where its solver stands, or the package of a peer.
    denoise : callable
        ``denoise(noisy, sigma, **settings)`` returns an image of the same shape.
    grid : dict
        Values of each setting that `choose_settings` tries.
    module : str, default=""
        What a peer imports.
    colour : bool, default=False
        Whether it takes images of shape (height, width, 3) too; else it gets their channels.

    Raises
    ------
    ValueError
        If the kind is another one.
    """

    name: str
    kind: str
    family: str
    denoise: Denoise
    grid: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    module: str = ""
    colour: bool = False

    def __post_init__(self) -> None:
        if self.kind not in (kinds := ("solved", "peer", "own")):
            raise ValueError(f"kind: must be among {', '.join(kinds)}, got {self.kind!r}")

    @property
    def installed(self) -> bool:
        return not self.module or find_spec(self.module) is not None

    def __call__(self, noisy: Array, sigma: float) -> Array:
        return self.denoise(noisy, sigma, **settings_of(self.name))


METHODS: dict[str, DenoisingMethod] = {}


def register_denoiser(method: DenoisingMethod) -> DenoisingMethod:
    """Make a method known to `twinsolve denoise` by its name.

    Raises
    ------
    ValueError
        If there is one of that name.
    """
    if method.name in METHODS:
        raise ValueError(f"name: {method.name!r} is registered already")
    METHODS[method.name] = method
    return method


def know(methods: Iterable[DenoisingMethod]) -> None:
    """Tell a worker process the methods that its parent knows."""
    METHODS.update({method.name: method for method in methods})


@cache
def _chosen() -> dict[str, Any]:
    return tomllib.loads(SETTINGS.read_text()) if SETTINGS.is_file() else {}


def settings_of(name: str) -> dict[str, Any]:
    """Settings that were chosen on images for validation, in units of the noise where it counts."""
    return dict(_chosen().get(name, {}).get("settings", {}))


def _noisy(noisy: Array, sigma: float) -> Array:
    return noisy


def _gaussian(noisy: Array, sigma: float, width: float = 1.0) -> Array:
    return gaussian_filter(noisy, width, mode="reflect")


def _bilateral(noisy: Array, sigma: float, colour: float = 2.5, width: float = 1.5) -> Array:
    return bilateral_filter(noisy, sigma_color=colour * sigma, sigma_spatial=width, win_size=11)


def _axis(noisy: Array) -> int | None:
    return -1 if noisy.ndim == 3 else None


def _nonlocal_means(
    noisy: Array,
    sigma: float,
    h: float = 0.8,
    patch_size: int = 5,
    patch_weights: str = "uniform",
) -> Array:
    return nonlocal_means(
        noisy,
        h=h * sigma,
        sigma=sigma,
        patch_size=patch_size,
        patch_weights=patch_weights,
        channel_axis=_axis(noisy),
    )


def _boosted(
    boosting: Callable[..., Array], noisy: Array, sigma: float, h: float = 0.8, **settings: Any
) -> Array:
    means = partial(nonlocal_means, h=h * sigma, sigma=sigma, channel_axis=_axis(noisy))
    return boosting(means, noisy, **settings)


def _total_variation(noisy: Array, sigma: float, lam: float = 0.6) -> Array:
    return total_variation(noisy, lam=lam * sigma, tol=1e-4).coef


def _l1_analysis(noisy: Array, sigma: float, lam: float = 1.5, size: int = 7) -> Array:
    bank = FilterBank(dct_filters(size))
    return l1_analysis(noisy, bank, lam=lam * sigma / size**2, tol=1e-4).coef


def _ista(noisy: Array, sigma: float, lam: float = 3.0, n_iter: int = 6) -> Array:
    return denoise_ista(noisy, dct_dictionary(8, 11), lam=lam * sigma, n_iter=n_iter)


def _lasso(noisy: Array, sigma: float, lam: float = 3.0) -> Array:
    return denoise_lasso(noisy, dct_dictionary(8, 11), lam=lam * sigma)[0]


def _pursuit(dictionary: str, noisy: Array, sigma: float, gain: float = 1.15) -> Array:
    D = dct_dictionary(8, 11) if dictionary == "DCT" else photograph_dictionary().numpy()
    return denoise_pursuit(noisy, D, sigma=sigma, gain=gain)


def _low_rank(noisy: Array, sigma: float, gain: float = 2.8) -> Array:
    return denoise_low_rank(noisy, sigma=sigma, gain=gain)


def _chambolle(noisy: Array, sigma: float, weight: float = 1.2) -> Array:
    from skimage.restoration import denoise_tv_chambolle

    return denoise_tv_chambolle(noisy, weight=weight * sigma)


def _wavelets(noisy: Array, sigma: float) -> Array:
    from skimage.restoration import denoise_wavelet

    colour = noisy.ndim == 3
    # Without rescale_sigma, the level would not follow the image to YCbCr.
    return denoise_wavelet(
        noisy,
        sigma=sigma,
        convert2ycbcr=colour,
        rescale_sigma=colour,
        channel_axis=_axis(noisy),
    )


def _opencv(noisy: Array, sigma: float, h: float = 0.9) -> Array:
    import cv2

    # The form of OpenCV that goes by Lab is behind this one, on joint distances, at every h.
    levels = np.rint(255 * noisy).clip(0, 255).astype(np.uint8)
    denoised: Any = cv2.fastNlMeansDenoising(levels, None, 255 * h * sigma, 5, 13)
    return denoised / 255.0


def _bm3d(noisy: Array, sigma: float) -> Array:
    import bm3d

    return (bm3d.bm3d_rgb if noisy.ndim == 3 else bm3d.bm3d)(noisy, sigma)


_DECAYS = (0.6, 0.7, 0.8, 0.9, 1.0, 1.2)
_LAMBDAS = (2.0, 2.5, 3.0, 3.5, 4.0)
_GAINS = (0.95, 1.0, 1.05, 1.1, 1.15)

for _method in (
    DenoisingMethod("noisy", "solved", "none", _noisy),
    DenoisingMethod(
        "Gaussian", "solved", "image_filters", _gaussian, {"width": (0.7, 0.8, 0.9, 1.0, 1.2)}
    ),
    DenoisingMethod(
        "bilateral",
        "solved",
        "image_filters",
        _bilateral,
        {"colour": (2.0, 2.5, 3.0, 4.0), "width": (1.0, 1.25, 1.5, 2.0)},
    ),
    DenoisingMethod(
        "non-local means",
        "solved",
        "image_filters",
        _nonlocal_means,
        {"h": _DECAYS, "patch_size": (3, 5, 7)},
        colour=True,
    ),
    DenoisingMethod(
        "non-local means, Gaussian",
        "solved",
        "image_filters",
        partial(_nonlocal_means, patch_weights="gaussian"),
        {"h": _DECAYS, "patch_size": (5, 7, 9)},
        colour=True,
    ),
    DenoisingMethod(
        "twicing",
        "solved",
        "boosting",
        partial(_boosted, twicing),
        {"h": (*_DECAYS, 1.5, 2.0)},
        colour=True,
    ),
    DenoisingMethod(
        "L2 boosting",
        "solved",
        "boosting",
        partial(_boosted, l2_boosting),
        {"h": (0.8, 1.0, 1.2, 1.5, 2.0), "n_iter": (2, 3)},
        colour=True,
    ),
    DenoisingMethod(
        "SOS boosting",
        "solved",
        "boosting",
        partial(_boosted, sos_boosting),
        {"h": (0.7, 0.8, 1.0), "rho": (0.3, 0.5, 1.0), "n_iter": (2,)},
        colour=True,
    ),
    DenoisingMethod(
        "total variation",
        "solved",
        "nonlocal_energy",
        _total_variation,
        {"lam": (0.5, 0.6, 0.7, 0.8, 0.9)},
    ),
    DenoisingMethod(
        "l1 analysis, DCT",
        "solved",
        "nonlocal_energy",
        _l1_analysis,
        {"lam": (0.8, 1.0, 1.2, 1.5, 1.8)},
    ),
    DenoisingMethod(
        "ISTA, DCT",
        "solved",
        "sparse_coding",
        _ista,
        {"lam": _LAMBDAS, "n_iter": (6,)},
    ),
    DenoisingMethod("Lasso, DCT", "solved", "sparse_coding", _lasso, {"lam": _LAMBDAS}),
    DenoisingMethod(
        "OMP, DCT", "solved", "sparse_coding", partial(_pursuit, "DCT"), {"gain": _GAINS}
    ),
    DenoisingMethod(
        "OMP, K-SVD", "solved", "sparse_coding", partial(_pursuit, "K-SVD"), {"gain": _GAINS}
    ),
    DenoisingMethod(
        "low-rank groups",
        "solved",
        "sparse_coding",
        _low_rank,
        {"gain": (1.4, 2.0, 2.8, 4.0)},
    ),
    DenoisingMethod(
        "scikit-image total variation",
        "peer",
        "scikit-image",
        _chambolle,
        {"weight": (0.8, 1.0, 1.2, 1.5)},
        "skimage",
    ),
    DenoisingMethod(
        "scikit-image wavelets", "peer", "scikit-image", _wavelets, module="pywt", colour=True
    ),
    DenoisingMethod(
        "OpenCV non-local means",
        "peer",
        "opencv",
        _opencv,
        {"h": (0.7, 0.8, 0.9, 1.0)},
        "cv2",
        colour=True,
    ),
    DenoisingMethod("BM3D", "peer", "bm3d", _bm3d, module="bm3d", colour=True),
):
    register_denoiser(_method)
BUILT_IN = frozenset(METHODS)
