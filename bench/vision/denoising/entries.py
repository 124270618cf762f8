"""The methods of a table by name: registered ones, networks, and what is the user's own."""

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from ....solvers.solution import Array
from ...jobs import file_hash, source_of
from ...names import check_names, close_names
from ..run_folder import (
    SETTINGS,
    WEIGHTS,
    find_class,
    find_object,
    load_model,
    read_settings,
)
from .methods import BUILT_IN, METHODS, Denoise, settings_of
from .networks import (
    apply,
    exact_start,
    flops_per_pixel,
    load_shipped,
    n_parameters,
    network_names,
    shipped_levels,
    shipped_path,
    solve,
)

KINDS = ("solved", "peer", "start", "trained", "own")
SOLVER = ", solver"  # of a network at the start


@dataclass(frozen=True)
class Entry:
    """A line of a table.

    Parameters
    ----------
    method : str
        As it is named.
    kind : str
        Among `KINDS`.
    network : str, default=""
        Class of `twinsolve.unrolled.models.denoisers`, of what unrolls a solver.
    folder : str, default=""
        That of a training run.
    """

    method: str
    kind: str
    network: str = ""
    folder: str = ""

    @property
    def is_solver(self) -> bool:
        """Whether it is the solver of a network."""
        return bool(self.network) and self.kind == "solved"

    def serves(self, sigma: float) -> bool:
        """Whether it is for this noise, in grey levels of 255: weights are for their own alone."""
        levels = self._levels()
        return levels is None or round(sigma, 6) in levels

    def _levels(self) -> list[float] | None:
        if self.folder:
            sigma = read_settings(self.folder)["settings"]["task"].get("sigma")
            return None if sigma is None else [round(255 * sigma, 6)]
        return shipped_levels(self.network) if self.kind == "trained" else None

    def network_at(self, sigma: float) -> nn.Module:
        """The network for a noise level, in grey levels of [0, 1]; where there is a solver, its."""
        if self.kind != "trained":
            return exact_start(self.network, sigma)
        path = Path(self.folder, WEIGHTS) if self.folder else shipped_path(self.network, sigma)
        return _trained(self.folder, str(path), file_hash(path) or "")

    def denoiser(self, sigma: float) -> tuple[Denoise, dict[str, Any]]:
        """The function, and what is known of it: family, parameters, operations."""
        if self.method in METHODS:
            method = METHODS[self.method]
            return method if method.colour else by_channel(method), {"family": method.family}
        if self.kind == "own":
            return find_function(self.method), {"family": "own"}
        network = self.network_at(sigma)
        if self.is_solver:
            return lambda noisy, sigma: solve(network, noisy), {"family": self.network}
        about = {"family": type(network).__name__, "parameters": n_parameters(network)}
        return partial(_applied, network), about | {"flops_per_pixel": flops_per_pixel(network)}

    def content(self, sigma: float) -> str:
        """What tells it from another of that name: settings, weights, or the user's code."""
        known: list[Any] = []
        if self.method in METHODS:
            known = [settings_of(self.method), METHODS[self.method].kind]
            if self.method not in BUILT_IN:
                known.append(source_of(METHODS[self.method].denoise))
        elif self.kind == "own":
            known = [source_of(find_function(self.method))]
        elif self.folder:
            paths = Path(self.folder, WEIGHTS), Path(self.folder, SETTINGS)
            known = [*map(file_hash, paths), source_of(type(self.network_at(sigma)))]
        elif self.kind == "trained":
            known = [file_hash(shipped_path(self.network, sigma))]
        return hashlib.sha256(json.dumps(known).encode()).hexdigest()[:16]


def by_channel(denoise: Denoise) -> Denoise:
    """What denoises grey images, on each channel of one in colour."""

    def each(noisy: Array, sigma: float) -> Array:
        if noisy.ndim == 2:
            return denoise(noisy, sigma)
        channels = np.moveaxis(noisy, -1, 0)
        return np.stack([denoise(np.ascontiguousarray(c), sigma) for c in channels], axis=-1)

    return each


@lru_cache(maxsize=8)
def _trained(folder: str, path: str, content: str) -> nn.Module:
    return load_model(folder) if folder else load_shipped(Path(path))


def _applied(network: nn.Module, noisy: Array, sigma: float) -> Array:
    return apply(network, noisy)


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
        If there is none, or it is not installed.
    """
    kinds = {known: kind for kind, names in method_names().items() for known in names}
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
    raise ValueError(f"methods: none is named {name!r}{close_names(name, kinds)}")


def list_entries(methods: Iterable[str] | None, sigmas: Sequence[float]) -> list[Entry]:
    """Those of the names, or all that are installed and have weights but for networks' solvers.

    Raises
    ------
    ValueError
        If one is unknown, not installed, or not for one of the noise levels.
    """
    if methods is None:
        known = (name for names in method_names().values() for name in names)
        usable = (name for name in known if name not in METHODS or METHODS[name].installed)
        found = [find_entry(name) for name in usable]
        return [entry for entry in found if not entry.is_solver and any(map(entry.serves, sigmas))]
    entries = [find_entry(name) for name in dict.fromkeys(check_names(methods, "methods") or [])]
    for entry in entries:
        if missing := [sigma for sigma in sigmas if not entry.serves(sigma)]:
            levels = ", ".join(f"{level:g}" for level in entry._levels() or []) or "none"
            raise ValueError(
                f"methods: no weights of {entry.method} for a noise of {missing[0]:g}; there are "
                f"for {levels}"
            )
    return entries


def find_function(name: str) -> Denoise:
    """A user's function by ``package.module:function``.

    Raises
    ------
    ValueError
        If there is none of that name.
    """
    found: Denoise = find_object(name, "methods: no function")
    if not callable(found):
        raise ValueError(f"methods: {name!r} is no function")
    return found
