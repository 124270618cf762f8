"""Denoising methods by name: solved methods, peers, networks, and methods of the user."""

import hashlib
import json
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from scipy.ndimage import distance_transform_cdt, gaussian_filter
from torch import nn

from ....solvers import bilateral_filter, l2_boosting, nonlocal_means, sos_boosting, twicing
from ....solvers.inputs import Array
from ....solvers.nonlocal_energy import FilterBank, dct_filters, l1_analysis, total_variation
from ....solvers.sparse_coding import (
    dct_dictionary,
    denoise_ista,
    denoise_lasso,
    denoise_low_rank,
    denoise_pursuit,
)
from ....unrolled.sparse_coding.patches import photograph_dictionary
from ...names import check_names, close_names
from ...run_folder import SETTINGS as RUN_SETTINGS
from ...run_folder import WEIGHTS, find_class, find_object, load_model, read_settings
from ...sources import file_hash, source_of
from .networks import (
    apply,
    exact_start,
    flops_per_pixel,
    load_shipped,
    n_parameters,
    network_names,
    shipped_classes,
    shipped_levels,
    shipped_path,
    solve,
)
from .picture_arrays import is_colour, is_volume

Denoise = Callable[..., Array]  # (noisy image in [0, 1], sigma in grey levels, **settings)
SETTINGS = Path(__file__).with_name("settings.toml")


@dataclass(frozen=True)
class DenoisingMethod:
    """A method that denoises an image, given the noise level; both in grey levels of [0, 1].

    Parameters
    ----------
    name : str
    kind : {"solved", "peer", "own"}
    family : str
        Module of the solver, or package of a peer.
    denoise : callable
        ``denoise(noisy, sigma, **settings)`` returns an image of the same shape.
    grid : dict
        Values of each setting that `choose_settings` tries.
    module : str, default=""
        Module that a peer imports.
    colour : bool, default=False
        Whether the method takes images of shape (height, width, 3); else it gets their channels.
    holes : bool, default=False
        Whether `denoise` takes ``mask``, an array of bool that is True at valid pixels. It gets one
        if the image has holes, which are NaN.
    volumes : bool, default=False
        Whether the method takes volumes of shape (depth, height, width).
    reach : int, optional
        How many voxels away it looks in a volume without holes, which may then be cut into cubes.

    Raises
    ------
    ValueError
        If the kind is unknown.
    """

    name: str
    kind: str
    family: str
    denoise: Denoise
    grid: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    module: str = ""
    colour: bool = False
    holes: bool = False
    volumes: bool = False
    reach: int | None = None

    def __post_init__(self) -> None:
        if self.kind not in (kinds := ("solved", "peer", "own")):
            raise ValueError(f"kind: must be among {', '.join(kinds)}, got {self.kind!r}")

    @property
    def installed(self) -> bool:
        return not self.module or find_spec(self.module) is not None

    def __call__(self, noisy: Array, sigma: float) -> Array:
        valid = np.isfinite(noisy)
        valid = valid.all(axis=-1) if is_colour(noisy) else valid
        options = {} if valid.all() else {"mask": valid}
        return self.denoise(noisy, sigma, **options, **settings_of(self.name))


METHODS: dict[str, DenoisingMethod] = {}


def register_denoiser(method: DenoisingMethod) -> DenoisingMethod:
    """Register a method under its name for `twinsolve denoise`.

    Raises
    ------
    ValueError
        If the name is taken.
    """
    if method.name in METHODS:
        raise ValueError(f"name: {method.name!r} is registered already")
    METHODS[method.name] = method
    return method


def add_methods(methods: Iterable[DenoisingMethod]) -> None:
    """Register the methods of the parent process in a worker."""
    METHODS.update({method.name: method for method in methods})


@cache
def _read_settings() -> dict[str, Any]:
    return tomllib.loads(SETTINGS.read_text()) if SETTINGS.is_file() else {}


def settings_of(name: str) -> dict[str, Any]:
    """Settings of a method that were chosen on validation images; many are in units of sigma."""
    return dict(_read_settings().get(name, {}).get("settings", {}))


def _return_noisy(noisy: Array, sigma: float, mask: Array | None = None) -> Array:
    return noisy if mask is None else np.where(np.isfinite(noisy), noisy, np.nanmean(noisy))


def _gaussian(noisy: Array, sigma: float, width: float = 1.0) -> Array:
    return gaussian_filter(noisy, width, mode="reflect")


def _bilateral(
    noisy: Array,
    sigma: float,
    colour: float = 2.5,
    width: float = 1.5,
    mask: Array | None = None,
) -> Array:
    reach = _reach_across(mask, 5)
    return bilateral_filter(
        noisy, sigma_color=colour * sigma, sigma_spatial=width, win_size=2 * reach + 1, mask=mask
    )


def _reach_across(mask: Array | None, usual: int) -> int:
    """Return how far a window reaches so that it holds a valid pixel everywhere."""
    return usual if mask is None else max(usual, reach_of_holes(mask))


def reach_of_holes(mask: Array) -> int:
    """How many pixels away, along an axis, the nearest valid pixel is at most."""
    return int(distance_transform_cdt(~mask, metric="chessboard").max())


def _find_channel_axis(noisy: Array) -> int | None:
    return -1 if is_colour(noisy) else None


def _usual_window(noisy: Array) -> int:
    """Return how far windows of non-local means reach: a cube has far more voxels."""
    return 3 if is_volume(noisy) else 6


def _nonlocal_means(
    noisy: Array,
    sigma: float,
    h: float = 0.8,
    patch_size: int = 5,
    patch_weights: str = "uniform",
    mask: Array | None = None,
) -> Array:
    return nonlocal_means(
        noisy,
        h=h * sigma,
        sigma=sigma,
        patch_size=patch_size,
        patch_distance=_reach_across(mask, _usual_window(noisy)),
        patch_weights=patch_weights,
        channel_axis=_find_channel_axis(noisy),
        mask=mask,
    )


def _boost_means(
    boosting: Callable[..., Array], noisy: Array, sigma: float, h: float = 0.8, **settings: Any
) -> Array:
    means = partial(
        nonlocal_means,
        h=h * sigma,
        sigma=sigma,
        patch_distance=_usual_window(noisy),
        channel_axis=_find_channel_axis(noisy),
    )
    return boosting(means, noisy, **settings)


def _total_variation(
    noisy: Array, sigma: float, lam: float = 0.6, mask: Array | None = None
) -> Array:
    return total_variation(noisy, lam=lam * sigma, mask=mask, tol=1e-4).coef


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

    colour = is_colour(noisy)
    # rescale_sigma converts the noise level to YCbCr along with the image.
    return denoise_wavelet(
        noisy,
        sigma=sigma,
        convert2ycbcr=colour,
        rescale_sigma=colour,
        channel_axis=_find_channel_axis(noisy),
    )


def _opencv(noisy: Array, sigma: float, h: float = 0.9) -> Array:
    import cv2

    # This form, with joint distances of the channels, beats OpenCV's Lab form at every h.
    levels = np.rint(255 * noisy).clip(0, 255).astype(np.uint8)
    denoised: Any = cv2.fastNlMeansDenoising(levels, None, 255 * h * sigma, 5, 13)
    return denoised / 255.0


def _bm3d(noisy: Array, sigma: float) -> Array:
    import bm3d

    return (bm3d.bm3d_rgb if noisy.ndim == 3 else bm3d.bm3d)(noisy, sigma)


_DECAYS = (0.6, 0.7, 0.8, 0.9, 1.0, 1.2)
_LAMBDAS = (2.0, 2.5, 3.0, 3.5, 4.0)
_GAINS = (0.95, 1.0, 1.05, 1.1, 1.15)


def _register(
    kind: str, family: str, name: str, denoise: Denoise, module: str = "", joint: bool = False,
    holes: bool = False, volumes: bool = False, reach: int | None = None, **grid: tuple[Any, ...],
) -> None:  # fmt: skip
    """Register a method; `joint` says whether it takes all channels together."""
    register_denoiser(
        DenoisingMethod(name, kind, family, denoise, grid, module, joint, holes, volumes, reach)
    )


_solved, _peer = partial(_register, "solved"), partial(_register, "peer")
_solved("none", "noisy", _return_noisy, holes=True, volumes=True, reach=0)
_solved(
    "image_filters", "Gaussian", _gaussian, volumes=True, reach=5, width=(0.7, 0.8, 0.9, 1.0, 1.2),
)  # fmt: skip
_solved(
    "image_filters", "bilateral", _bilateral, holes=True, volumes=True, reach=5,
    colour=(2.0, 2.5, 3.0, 4.0), width=(1.0, 1.25, 1.5, 2.0),
)  # fmt: skip
_solved(
    "image_filters", "non-local means", _nonlocal_means, joint=True, holes=True,
    volumes=True, reach=6, h=_DECAYS, patch_size=(3, 5, 7),
)  # fmt: skip
_solved(
    "image_filters", "non-local means, Gaussian",
    partial(_nonlocal_means, patch_weights="gaussian"), joint=True, holes=True,
    volumes=True, reach=7, h=_DECAYS, patch_size=(5, 7, 9),
)  # fmt: skip
_solved(
    "boosting", "twicing", partial(_boost_means, twicing), joint=True,
    volumes=True, reach=10, h=(*_DECAYS, 1.5, 2.0),
)  # fmt: skip
_solved(
    "boosting", "L2 boosting", partial(_boost_means, l2_boosting), joint=True,
    volumes=True, reach=20, h=(0.8, 1.0, 1.2, 1.5, 2.0), n_iter=(2, 3),
)  # fmt: skip
_solved(
    "boosting", "SOS boosting", partial(_boost_means, sos_boosting), joint=True,
    volumes=True, reach=20, h=(0.7, 0.8, 1.0), rho=(0.3, 0.5, 1.0), n_iter=(2,),
)  # fmt: skip
_solved(
    "nonlocal_energy", "total variation", _total_variation, holes=True,
    lam=(0.5, 0.6, 0.7, 0.8, 0.9),
)  # fmt: skip
_solved("nonlocal_energy", "l1 analysis, DCT", _l1_analysis, lam=(0.8, 1.0, 1.2, 1.5, 1.8))
_solved("sparse_coding", "ISTA, DCT", _ista, lam=_LAMBDAS, n_iter=(6,))
_solved("sparse_coding", "Lasso, DCT", _lasso, lam=_LAMBDAS)
_solved("sparse_coding", "OMP, DCT", partial(_pursuit, "DCT"), gain=_GAINS)
_solved("sparse_coding", "OMP, K-SVD", partial(_pursuit, "K-SVD"), gain=_GAINS)
_solved("sparse_coding", "low-rank groups", _low_rank, gain=(1.4, 2.0, 2.8, 4.0))
_peer(
    "scikit-image", "scikit-image total variation", _chambolle, "skimage",
    volumes=True, weight=(0.8, 1.0, 1.2, 1.5),
)  # fmt: skip
_peer("scikit-image", "scikit-image wavelets", _wavelets, "pywt", True, volumes=True)
_peer("opencv", "OpenCV non-local means", _opencv, "cv2", True, h=(0.7, 0.8, 0.9, 1.0))
_peer("bm3d", "BM3D", _bm3d, "bm3d", True)
BUILT_IN = frozenset(METHODS)


KINDS = ("solved", "peer", "start", "trained", "own")
SOLVER = ", solver"  # end of the name of a network's solver


@dataclass(frozen=True)
class Entry:
    """A method of a table: a name with its kind and, for networks, the class or folder.

    Parameters
    ----------
    method : str
        Name of the method.
    kind : str
        One of `KINDS`.
    network : str, default=""
        Class of `twinsolve.unrolled.models.denoisers`, if the method is a network or its solver.
    folder : str, default=""
        Folder of a training run.
    """

    method: str
    kind: str
    network: str = ""
    folder: str = ""

    @property
    def is_solver(self) -> bool:
        """Whether the method is the solver of a network."""
        return bool(self.network) and self.kind == "solved"

    def takes(self, *what: str) -> bool:
        """Whether the method takes all of what is named: "holes", "volumes".

        A function of the user's takes volumes, unless it is registered as one that does not.
        """
        if self.method in METHODS:
            return all(getattr(METHODS[self.method], each) for each in what)
        return self.kind == "own" and "holes" not in what

    def serves(self, sigma: float) -> bool:
        """Whether the method is for this noise in grey levels of 255; weights are for one level."""
        levels = self.list_levels()
        return levels is None or round(sigma, 6) in levels

    def list_levels(self) -> list[float] | None:
        if self.folder:
            sigma = read_settings(self.folder)["settings"]["task"].get("sigma")
            return [round(255 * sigma, 6)] if isinstance(sigma, float) else None
        return shipped_levels(self.network) if self.kind == "trained" else None

    def network_at(self, sigma: float) -> nn.Module:
        """The network, or that of the solver, for a noise level in grey levels of [0, 1]."""
        if self.kind != "trained":
            return exact_start(self.network, sigma)
        path = Path(self.folder, WEIGHTS) if self.folder else shipped_path(self.network, sigma)
        return _load_trained(self.folder, str(path), file_hash(path) or "")

    def denoiser(self, sigma: float) -> tuple[Denoise, dict[str, Any]]:
        """The function that denoises, and its family, parameters and operations."""
        if self.method in METHODS:
            method = METHODS[self.method]
            return method if method.colour else by_channel(method), {"family": method.family}
        if self.kind == "own":
            return find_function(self.method), {"family": "own"}
        network = self.network_at(sigma)
        if self.is_solver:
            return lambda noisy, sigma: solve(network, noisy), {"family": self.network}
        about = {"family": type(network).__name__, "parameters": n_parameters(network)}
        return partial(_apply_network, network), about | {
            "flops_per_pixel": flops_per_pixel(network)
        }

    def content(self, sigma: float) -> str:
        """Hash of settings, weights or user code, as a key of kept results."""
        known: list[Any] = []
        if self.method in METHODS:
            known = [settings_of(self.method), METHODS[self.method].kind]
            if self.method not in BUILT_IN:
                known.append(source_of(METHODS[self.method].denoise))
        elif self.kind == "own":
            known = [source_of(find_function(self.method))]
        elif self.folder:
            paths = Path(self.folder, WEIGHTS), Path(self.folder, RUN_SETTINGS)
            known = [*map(file_hash, paths), source_of(type(self.network_at(sigma)))]
        elif self.kind == "trained":
            known = [file_hash(shipped_path(self.network, sigma))]
        return hashlib.sha256(json.dumps(known).encode()).hexdigest()[:16]


def by_channel(denoise: Denoise) -> Denoise:
    """Function that applies a method for grey images to each channel of colour images."""

    def each(noisy: Array, sigma: float) -> Array:
        if not is_colour(noisy):
            return denoise(noisy, sigma)
        channels = np.moveaxis(noisy, -1, 0)
        return np.stack([denoise(np.ascontiguousarray(c), sigma) for c in channels], axis=-1)

    return each


@lru_cache(maxsize=8)
def _load_trained(folder: str, path: str, content: str) -> nn.Module:
    return load_model(folder) if folder else load_shipped(Path(path))


def _apply_network(network: nn.Module, noisy: Array, sigma: float) -> Array:
    return apply(network, noisy, sigma)


def method_names() -> dict[str, list[str]]:
    """Names of methods by kind."""
    names: dict[str, list[str]] = {kind: [] for kind in KINDS}
    for name, method in METHODS.items():
        names[method.kind].append(name)
    names["solved"] += [name + SOLVER for name in network_names()]
    for kind in ("start", "trained"):
        names[kind] = [f"{name}, {kind}" for name in network_names()]
    return names


def find_entry(name: str) -> Entry:
    """The method of a name.

    Raises
    ------
    ValueError
        If there is no such method, or it is not installed.
    """
    kinds = {known: kind for kind, names in method_names().items() for known in names}
    if name in (short := shipped_classes()):
        name = f"{short[name]}, trained"
    if name in METHODS:
        if not METHODS[name].installed:
            raise ValueError(
                f"methods: {name} needs {METHODS[name].module}, which is not installed; peers come "
                "with pip install 'twinsolve[peers]'"
            )
        return Entry(name, kinds[name])
    if name in kinds:
        return Entry(name, kinds[name], network=name.partition(",")[0])
    if Path(name).is_dir():
        found = find_class(read_settings(name)["settings"]["model"]["class"])
        return Entry(name, "trained", network=found.__name__, folder=name)
    if ":" in name:
        find_function(name)
        return Entry(name, "own")
    raise ValueError(f"methods: none is named {name!r}{close_names(name, [*short, *kinds])}")


def check_takes(entry: Entry, *what: str) -> None:
    """Refuse a method that does not take all of what is named: "holes", "volumes".

    Raises
    ------
    ValueError
        If that is so: it names those that do.
    """
    if not entry.takes(*what):
        names = [name for name in METHODS if Entry(name, "").takes(*what)]
        words = " with ".join(sorted(what, reverse=True))
        raise ValueError(f"methods: {entry.method} takes no {words}; these do: {', '.join(names)}")


def list_entries(
    methods: Iterable[str] | None, sigmas: Sequence[float], *, what: Sequence[str] = ()
) -> list[Entry]:
    """Methods of the names; None is all that are installed and have weights, without solvers.

    `what` is what all must take: "holes", "volumes".

    Raises
    ------
    ValueError
        If a method is unknown, not installed, not for one of the noise levels, or does not take
        what it must.
    """
    if methods is None:
        known = (name for names in method_names().values() for name in names)
        usable = (name for name in known if name not in METHODS or METHODS[name].installed)
        found = [find_entry(name) for name in usable]
        return [
            entry
            for entry in found
            if not entry.is_solver and any(map(entry.serves, sigmas))
            if not what or entry.takes(*what)
        ]
    entries = [find_entry(name) for name in dict.fromkeys(check_names(methods, "methods") or [])]
    for entry in entries:
        if what:
            check_takes(entry, *what)
        if missing := [sigma for sigma in sigmas if not entry.serves(sigma)]:
            levels = ", ".join(f"{level:g}" for level in entry.list_levels() or []) or "none"
            raise ValueError(
                f"methods: no weights of {entry.method} for a noise of {missing[0]:g}; there are "
                f"for {levels}. NoiseLevelDiffusionDenoiser, trained, serves every noise"
            )
    return entries


def find_function(name: str) -> Denoise:
    """A user's function by ``package.module:function``.

    Raises
    ------
    ValueError
        If there is no such function.
    """
    found: Denoise = find_object(name, "methods: no function")
    if not callable(found):
        raise ValueError(f"methods: {name!r} is not a function")
    return found
