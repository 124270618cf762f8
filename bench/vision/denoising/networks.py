"""Denoising networks as methods: at the start, trained, and by their solvers."""

import copy
import inspect
import json
import re
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from ....solvers.inputs import Array
from ....twins import twins_of
from ....unrolled.generators import kept_generators, seeded
from ....unrolled.models import denoisers
from ....unrolled.nonlocal_energy import ConvexRidge
from ....unrolled.users_code import reporting
from ...names import close_names, split_settings
from ...run_folder import (
    find_class,
    load_model,
    load_tensors,
    read_notes,
    read_settings,
    save_tensors,
)
from ...timing import Progress
from .picture_arrays import space_of


def in_tiles(
    denoise: Callable[[Array], Array],
    noisy: Array,
    *,
    margin: int,
    side: int = 512,
    progress: Progress | None = None,
) -> Array:
    """Denoise an image in tiles, or a volume in cubes: the same result, with the memory of one.

    Each tile of `side` x `side` pixels is denoised with `margin` pixels around it, fewer at the
    border of the image, which are then cut off. The result is that for the whole image if no output
    pixel depends on its position or on pixels further away than `margin` along an axis.

    Parameters
    ----------
    denoise : callable
        Takes and returns an image.
    noisy : ndarray of shape (height, width) or (height, width, channels)
        Or a volume, (depth, height, width), as `is_volume` tells.
    margin : int
        >= 0; for a network, its attribute `margin`.
    side : int, default=512
        >= 1.
    progress : callable, optional
        ``progress(iterable, total)`` wraps the iteration over the tiles, if there are several.

    Raises
    ------
    ValueError
        If a number is out of range.

    Examples
    --------
    >>> import numpy as np
    >>> from scipy.ndimage import uniform_filter
    >>> from twinsolve.bench.vision.denoising.networks import in_tiles
    >>> image = np.random.default_rng(0).random((9, 11))
    >>> parts = in_tiles(lambda part: uniform_filter(part, 3), image, margin=1, side=4)
    >>> np.allclose(parts, uniform_filter(image, 3), rtol=0, atol=1e-15)
    True
    """
    if margin < 0 or side < 1:
        raise ValueError(f"margin, side: must be >= 0 and >= 1, got {margin} and {side}")
    denoised = np.empty(noisy.shape)
    places = list(product(*(_cut_axis(extent, side, margin) for extent in space_of(noisy))))
    shown = progress(places, len(places)) if progress and len(places) > 1 else places
    for place in shown:
        outer, inner, own = zip(*place, strict=True)
        denoised[own] = denoise(noisy[outer])[inner]
    return denoised


def _cut_axis(extent: int, side: int, margin: int) -> Iterator[tuple[slice, slice, slice]]:
    """Slices along an axis: what a tile sees, and its pixels within that and in the image."""
    for start in range(0, extent, side):
        stop = min(start + side, extent)
        first = max(0, start - margin)
        yield (
            slice(first, min(extent, stop + margin)),
            slice(start - first, stop - first),
            slice(start, stop),
        )


_SHIPPED = Path(__file__).with_name("weights")
LARGE = 512  # side of tiles
_COUNTED = 192  # side of the image for counting operations


def network_names() -> list[str]:
    """Names of the classes of `twinsolve.unrolled.models.denoisers`."""
    return list(denoisers.__all__)


def build_network(name: str, *, sigma: float, seed: int = 0) -> nn.Module:
    """A network by ``Class``, ``Class:name=value`` or ``package.module:Class:name=value``.

    Raises
    ------
    ValueError
        If there is no such class, or it refuses its settings.
    """
    head, _, rest = name.partition(":")
    if "=" in rest.partition(":")[0] or not rest:
        if head not in network_names():
            raise ValueError(
                f"network: must be package.module:Class or among {', '.join(network_names())}; got "
                f"{head!r}{close_names(head, network_names())}"
            )
        path, words = f"{denoisers.__name__}:{head}", rest
    else:
        word, _, words = rest.partition(":")
        path = f"{head}:{word}"
    found = find_class(path)
    settings = split_settings(f":{words}", "network")[1]
    if "sigma" in inspect.signature(found).parameters:
        settings = {"sigma": sigma, **settings}
    with seeded(seed), reporting(f"network: cannot make {name!r}"):
        return found(**settings)


@kept_generators()
def at_start(name: str, sigma: float) -> nn.Module:
    """A network before training: the iterate of a classical method for this noise."""
    return getattr(denoisers, name)(sigma=sigma).eval()


@lru_cache(maxsize=8)
def exact_start(name: str, sigma: float) -> nn.Module:
    """`at_start` in float64; energies are minimised until five digits of the dB are exact."""
    network = at_start(name, sigma).double()
    for solved in _find_minimisers(network):
        solved.tol, solved.max_iter = 1e-8, 5000
    return network


def _find_minimisers(network: nn.Module) -> list[ConvexRidge]:
    return [part for part in network.modules() if isinstance(part, ConvexRidge)]


def takes_levels(network: nn.Module | type[nn.Module]) -> bool:
    """Whether a network takes the noise level of images: ``network(noisy, sigma)``."""
    return "sigma" in inspect.signature(network.forward).parameters


def shipped_path(name: str, sigma: float) -> Path:
    """Path of the shipped weights for a noise level; the file need not exist."""
    if takes_levels(getattr(denoisers, name)):
        return _SHIPPED / f"{name}.safetensors"
    return _SHIPPED / f"{name}-{round(255 * sigma, 6):g}.safetensors"


def shipped_levels(name: str) -> list[float] | None:
    """Noise levels, in grey levels of 255, for which the package has weights; None for all."""
    if takes_levels(getattr(denoisers, name)):
        return None
    paths = _SHIPPED.glob(f"{name}-*.safetensors")
    return sorted(float(path.stem.rpartition("-")[2]) for path in paths)


def _has_weights(name: str) -> bool:
    levels = shipped_levels(name)
    return shipped_path(name, 0.0).exists() if levels is None else bool(levels)


def shipped_classes() -> dict[str, str]:
    """Classes of the networks that come with weights, by short names such as filter-diffusion."""
    stems = {name: name.removesuffix("Denoiser").replace("NonLocal", "Nonlocal") for name in
             network_names() if _has_weights(name)}  # fmt: skip
    return {re.sub(r"\B([A-Z])", r"-\1", stem).lower(): name for name, stem in stems.items()}


def load_denoiser(name: str, *, sigma: float = 25.0) -> nn.Module:
    """Load a trained denoising network that comes with the package.

    Parameters
    ----------
    name : str
        "convex-ridge", "filter-diffusion", "group-coding", "mixture-of-experts",
        "noise-level-diffusion", "nonlocal-filter-diffusion", "nonlocal-means" or "patch-coding".
    sigma : float, default=25
        Noise level that it was trained for, in grey levels of 255. All have weights for 25, and
        "filter-diffusion" for 50. "noise-level-diffusion" is for all, and takes the level of each
        call, ``network(noisy, sigma)``, in grey levels of [0, 1]: see
        `twinsolve.unrolled.models.NoiseLevelDiffusionDenoiser`.

    Returns
    -------
    nn.Module
        A network of `twinsolve.unrolled.models.denoisers` in evaluation mode, float32, on the CPU.
        It takes noisy images of shape (n_images, 1, height, width), levels in [0, 1], and returns
        their denoised form.

    Raises
    ------
    ValueError
        If no network has this name, or it has no weights for this noise; the message lists names
        and levels.

    See Also
    --------
    twinsolve.bench.denoise_image : Denoise a picture at any noise level.

    Examples
    --------
    >>> import torch
    >>> from twinsolve.bench import load_denoiser
    >>> network = load_denoiser("filter-diffusion")
    >>> with torch.no_grad():
    ...     network(torch.rand(1, 1, 24, 32)).shape
    torch.Size([1, 1, 24, 32])
    """
    known = shipped_classes()
    if name not in known:
        listed = ", ".join(f"{short} ({_list_levels(known[short])})" for short in known)
        raise ValueError(
            f"name: must be among {listed}, with noise levels in brackets; got {name!r}"
        )
    levels = shipped_levels(known[name])
    if levels is not None and sigma not in levels:
        raise ValueError(
            f"sigma: {name} has weights for a noise of {_list_levels(known[name])}; got {sigma:g}"
        )
    return load_shipped(shipped_path(known[name], sigma / 255))


def _list_levels(name: str) -> str:
    levels = shipped_levels(name)
    return "all" if levels is None else ", ".join(f"{level:g}" for level in levels)


def ship(folder: str | Path, path: Path | None = None) -> Path:
    """Write the averaged weights of a training run to a file for the package.

    Weights are rounded to float16; the header has the class, its arguments and the run's settings.
    """
    known, model = read_settings(folder), load_model(folder)
    said = known["settings"]
    name = said["model"]["class"].partition(":")[2]
    path = path or shipped_path(name, said["task"].get("sigma"))
    notes = {
        "class": said["model"]["class"],
        "arguments": json.dumps(said["model"]["arguments"]),
        "training": json.dumps({**said, "n_steps": known["n_steps"]}),
    }
    rounded = {key: tensor.half() for key, tensor in model.state_dict().items()}
    save_tensors(path, rounded, **notes)
    return path


@kept_generators()
def load_shipped(path: Path) -> nn.Module:
    """Load a network in float32 from a file that `ship` wrote."""
    notes = read_notes(path)
    model = find_class(notes["class"])(**json.loads(notes["arguments"]))
    model.load_state_dict({key: tensor.float() for key, tensor in load_tensors(path).items()})
    return model.eval()


def apply(network: nn.Module, noisy: Array, sigma: float | None = None) -> Array:
    """Apply a network to an image in the precision of its weights; large images in tiles.

    Networks of one channel get the three channels of a colour image (height, width, 3) as a batch.
    `sigma` in grey levels is for networks that take it; None is that of the network.
    """
    margin, level = getattr(network, "margin", None), sigma if takes_levels(network) else None
    if max(noisy.shape) > LARGE and margin is not None:
        return in_tiles(partial(apply_whole, network, level), noisy, margin=margin, side=LARGE)
    return apply_whole(network, level, noisy)


@torch.no_grad()
def apply_whole(network: nn.Module, level: float | None, noisy: Array) -> Array:
    """Apply a network to an image without tiles; `level` is None for networks that take none."""
    weight = next(network.parameters())
    planes = torch.from_numpy(_to_planes(network, noisy)).to(weight)
    found = network(planes) if level is None else network(planes, level)
    return _to_image(found.double().cpu().numpy(), noisy)


def _to_planes(network: nn.Module, image: Array) -> Array:
    """Image as (batch, channels, height, width), with as many channels as the network takes."""
    planes = image[None] if image.ndim == 2 else np.moveaxis(image, -1, 0)
    whole = n_channels(network) == len(planes)
    return np.ascontiguousarray(planes[None] if whole else planes[:, None])


def _to_image(planes: Array, like: Array) -> Array:
    """Inverse of `_to_planes`, for an image of the shape of `like`."""
    planes = planes.reshape(-1, *planes.shape[-2:])
    return planes[0] if like.ndim == 2 else np.moveaxis(planes, 0, -1)


def n_channels(network: nn.Module) -> int:
    """Number of channels that a network takes: its attribute `channels`, or one."""
    return int(getattr(network, "channels", 1))


def solve(network: nn.Module, noisy: Array) -> Array:
    """Result of the network's solver at the network's parameters, in float64."""
    exact = copy.deepcopy(network).double()
    return _to_image(
        np.asarray(twins_of(network)[0].solve(exact, _to_planes(network, noisy))), noisy
    )


def distance(network: nn.Module, noisy: Array, denoised: Array) -> float | None:
    """Certified root mean square distance from the minimiser; None without a certificate."""
    certificate: Any = getattr(network, "certificate", None)
    if certificate is None:
        return None
    given, found = (torch.from_numpy(_to_planes(network, x)) for x in (noisy, denoised))
    return float(certificate(given, found).square().mean().sqrt())


def has_twin(network: nn.Module) -> bool:
    """Whether the network unrolls a registered solver."""
    try:
        return bool(twins_of(network))
    except LookupError:
        return False


def n_parameters(network: nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


@lru_cache(maxsize=8)
def flops_per_pixel(network: nn.Module) -> float | None:
    """Operations of matrix products and convolutions per pixel; None if there are none."""
    weight = next(network.parameters())
    counter = FlopCounterMode(display=False)
    with torch.no_grad(), counter:
        network(weight.new_zeros(1, n_channels(network), _COUNTED, _COUNTED))
    return counter.get_total_flops() / _COUNTED**2 or None


def layers_of(network: nn.Module) -> nn.ModuleList | None:
    """The layers of a network, in order; None if they are not a single list."""
    lists = [child for child in network.children() if isinstance(child, nn.ModuleList)]
    return lists[0] if len(lists) == 1 else None


@kept_generators()
def started(network: nn.Module) -> nn.Module:
    """The network before training, with the same arguments and precision."""
    names = inspect.signature(type(network)).parameters
    kept = {name: getattr(network, name) for name in names if name not in ("device", "dtype")}
    return type(network)(**kept).to(next(network.parameters())).eval()


def first_layers(network: nn.Module, n_layers: int) -> nn.Module:
    """Copy of the network with only its first `n_layers` layers."""
    shorter = copy.deepcopy(network)
    layers = layers_of(shorter)
    assert layers is not None
    del layers[n_layers:]
    return shorter


def deviations(network: nn.Module, images: Sequence[Array]) -> list[dict[str, Any]]:
    """Deviation of the first layers from their solver at the same parameters, in float64.

    A row for each number of layers has max abs(network - solver) / max abs(solver) over the images,
    and the tolerance of the network's twin. Energies are minimised as exactly as by the solver.
    """
    exact, layers = copy.deepcopy(network).double(), layers_of(network)
    for solved in _find_minimisers(exact):
        solved.tol, solved.max_iter = 1e-13, 20_000
    tolerance = twins_of(exact)[0].relation.tolerance
    rows = []
    for k in range(1, len(layers) + 1) if layers is not None else [0]:
        part = first_layers(exact, k) if k else exact
        worst = 0.0
        for image in images:
            known = solve(part, image)
            worst = max(
                worst, float(np.abs(apply(part, image) - known).max() / np.abs(known).max())
            )
        rows.append({"layers": k or 1, "deviation": worst, "tolerance": tolerance})
    return rows


def readable(network: nn.Module) -> list[dict[str, float]]:
    """Medians of steps, thresholds and weights of each layer by name, without filters.

    Parameters that are learned as logarithms are exponentiated, and lose the word log. A noise has
    no sign, as layers square it.
    """
    layers = layers_of(network)
    rows = []
    for layer in layers if layers is not None else network.children():
        row = {}
        for name, tensor in layer.named_parameters():
            if tensor.ndim < 2:
                value = tensor.detach().double().median()
                words = [word for word in re.split("[._]", name) if word != "log"]
                value = value.exp() if "log" in name else value
                row[" ".join(words)] = float(value.abs() if words[-1] == "noise" else value)
        rows.append(row)
    return rows
