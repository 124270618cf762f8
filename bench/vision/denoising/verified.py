"""Trained networks against their solvers at the trained parameters, and certified distances."""

from typing import Any

import numpy as np
import pandas as pd
from torch import nn

from ...tables import number
from .entries import find_entry
from .images import NoisyImages, middle
from .networks import deviations, has_twin, started
from .origins import classical_problems, energies

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
