"""Trained networks beside the classical methods that they started from, layer by layer."""

import copy
from typing import Any, cast

import numpy as np
import pandas as pd
import torch
from torch import nn

from ....solvers.nonlocal_energy import filter_energy
from ....solvers.solution import Array
from ....unrolled.models.denoisers import FilterDiffusionDenoiser
from ....unrolled.nonlocal_energy import FilterDiffusion
from ....unrolled.sparse_coding.coding_step import CodingStep
from ....unrolled.twins.families.nonlocal_energy.filter_diffusion import energy_of
from ...tables import number
from .entries import find_entry
from .images import NoisyImages, middle
from .networks import deviations, has_twin, started

CHECKED = (
    "network", "layers", "deviation", "tolerance", "passed", "certified distance", "lam",
    "at start", "no gradient of its Lasso", "own energy falls",
)  # fmt: skip
_SIDE = 48  # of the crops that solvers are run on


def verify(table: pd.DataFrame, given: NoisyImages) -> list[dict[str, Any]]:
    """A row for each trained network that has a twin, and number of its first layers.

    ``deviation`` is the largest relative deviation, in float64, from the solver at the trained
    parameters, on the middles of the noisy images, and ``passed`` whether it is within the twin's
    tolerance; ``distance`` the largest certified distance in the table. Of steps of sparse coding,
    ``lam`` is the penalty that they stand for, and ``asymmetry`` the share of their pull that is no
    gradient of a Lasso; of steps of diffusion, ``lam`` is the fidelity, and ``descends`` says
    whether their own energy falls.
    """
    rows = []
    for (method, sigma), group in table[table.kind == "trained"].groupby(
        ["method", "sigma"], sort=False
    ):
        level = float(sigma) / 255
        network = find_entry(str(method)).network_at(level)
        done = [given.names.index(name) for name in group.dropna(subset="psnr").image]
        if not has_twin(network) or not done:
            continue
        crops = [middle(given.noisy(place, level), _SIDE) for place in done[:2]]
        head = {"network": method, "sigma": sigma, "distance": group.distance.max()}
        origins = _origins(network, crops[0] if crops[0].ndim == 2 else crops[0][..., 0])
        for row in deviations(network, crops):
            passed = row["deviation"] <= row["tolerance"]
            rows.append(head | row | {"passed": passed} | origins.get(row["layers"], {}))
    return rows


def checked_lines(rows: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    """Cells of the table that is printed."""
    return [
        (
            row["network"].removesuffix(", trained"), str(row["layers"]), f"{row['deviation']:.1e}",
            f"{row['tolerance']:.0e}",
            "yes" if row["passed"] else "NO",
            number(row["distance"], ".1e"),
            number(row.get("lam"), ".3f"), number(row.get("lam_start"), ".3f"),
            number(row.get("asymmetry"), ".0%"),
            {True: "yes", False: "no", None: "-"}[row.get("descends")],
        )
        for row in rows
    ]  # fmt: skip


def _origins(network: nn.Module, noisy: np.ndarray) -> dict[int, dict[str, Any]]:
    """By layer, the classical problem that it stands for."""
    start = started(network)
    first = {row["layer"]: row["lam"] for row in classical_problems(start)}
    found = {row["layer"]: row for row in classical_problems(network)}
    if not found:
        found = {row["layer"]: row for row in energies(network, start, noisy)}
        first = {row["layer"]: row["lam"] for row in energies(start, start, noisy)}
    return {
        layer: {key: row.get(key) for key in ("lam", "asymmetry", "descends")}
        | {"lam_start": first[layer]}
        for layer, row in found.items()
    }


def classical_problems(network: nn.Module) -> list[dict[str, Any]]:
    """The classical problem that each step of sparse coding is closest to.

    A step ``S_t(C + s (Y - C D) A^T)`` is one of ISTA on ``|Y - C D|_F^2 + lam |C|_1`` if A is D
    and ``t = s lam / 2``. Rows have ``lam``, the median over the atoms of ``2 t / s`` with the step
    that fits ``s A`` to D best, and ``asymmetry = |s A - s' D|_F / |s A|_F``, how much of the pull
    is no gradient of such a problem; NaN in the first layer, which has no D.
    """
    rows = []
    steps = [layer for layer in network.modules() if isinstance(layer, CodingStep)]
    for place, layer in enumerate(steps, start=1):
        pull = (layer.step() * layer.analysis).detach().double()
        thresholds = layer.threshold().detach().double()
        own = layer.analysis if layer.synthesis is None else layer.synthesis
        D = own.detach().double()
        fitted = float((pull * D).sum() / (D * D).sum())
        rest = float((pull - fitted * D).norm() / pull.norm())
        rows.append(
            {
                "layer": place,
                "step": fitted,
                "lam": float((2 * thresholds / fitted).median()),
                "asymmetry": rest if layer.synthesis is not None else float("nan"),
            }
        )
    return rows


@torch.no_grad()
def energies(network: nn.Module, start: nn.Module, noisy: Array) -> list[dict[str, Any]]:
    """Energies along the steps of a diffusion by filters, a pixel.

    Each `FilterDiffusion` is a gradient step on an energy of its own, EQUATIONS FE-1, in the metric
    of the numbers of windows; nothing but the choice of its parameters makes it one of descent.

    Returns
    -------
    list of dict
        A row for each step: ``before`` and ``after``, its own energy of the images that it takes
        and makes; ``classical``, the energy of the first step of `start`, of what it makes;
        ``descends``, whether its own energy falls; ``lam``. Empty if there are no such steps.
    """
    exact = copy.deepcopy(network).double()
    if not isinstance(exact, FilterDiffusionDenoiser):
        return []
    classical = next(step for step in start.modules() if isinstance(step, FilterDiffusion))
    f = torch.from_numpy(np.ascontiguousarray(noisy, dtype=np.float64))[None, None]
    u, rows, others = f, [], exact.others(f)
    for place, module in enumerate(exact.steps, start=1):
        step = cast(FilterDiffusion, module)
        stepped = step(u, f, *others)
        before, after = (_energy(step, x, f, others) for x in (u, stepped))
        rows.append(
            {
                "layer": place,
                "lam": float(step.lam),
                "before": before,
                "after": after,
                "descends": after < before,
                "classical": _energy(classical, stepped, f, others),
            }
        )
        u = stepped
    return rows


def _energy(step: FilterDiffusion, u: torch.Tensor, f: torch.Tensor, others: Any) -> float:
    similar = others[0].indices.numpy() if others else None
    image, noisy = (x[0, 0].numpy() for x in (u, f))
    return filter_energy(image, noisy, **energy_of(step, similar)) / noisy.size
