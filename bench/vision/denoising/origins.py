"""How far a trained network is from the classical method that it started from, layer by layer."""

import copy
from typing import Any, cast

import numpy as np
import torch
from torch import nn

from ....solvers.nonlocal_energy import filter_energy
from ....solvers.solution import Array
from ....unrolled.models.denoisers import FilterDiffusionDenoiser
from ....unrolled.nonlocal_energy import FilterDiffusion
from ....unrolled.sparse_coding.coding_step import CodingStep
from ....unrolled.twins.families.nonlocal_energy.filter_diffusion import energy_of


def departures(network: nn.Module, start: nn.Module) -> list[dict[str, Any]]:
    """A row for each parameter: its mean and its distance from the start.

    Parameters
    ----------
    network, start : nn.Module
        The same class with the same arguments, trained and as it is made.

    Returns
    -------
    list of dict
        ``parameter``; ``start`` and ``trained``, its means; ``departure = |theta - theta_0| /
        |theta_0|``, without the division where theta_0 is zero.

    Raises
    ------
    ValueError
        If the two have other parameters.
    """
    first, rows = dict(start.named_parameters()), []
    if first.keys() != dict(network.named_parameters()).keys():
        raise ValueError("start: must have the parameters of the network")
    for name, parameter in network.named_parameters():
        now, then = (x.detach().double() for x in (parameter, first[name]))
        size = float(then.norm())
        rows.append(
            {
                "parameter": name,
                "start": float(then.mean()),
                "trained": float(now.mean()),
                "departure": float((now - then).norm()) / (size or 1.0),
            }
        )
    return rows


def classical_problems(network: nn.Module) -> list[dict[str, Any]]:
    """The classical problem that each step of sparse coding is closest to.

    A step ``S_t(C + s (Y - C D) A^T)`` is one of ISTA on ``|Y - C D|_F^2 + lam |C|_1`` if A is D
    and ``t = s lam / 2``. Rows have ``lam``, the median over the atoms of ``2 t / s`` with the step
    that fits ``s A`` to D best, and ``asymmetry = |s A - s' D|_F / |s A|_F``, how much of the pull
    is no gradient of such a problem; NaN in the first layer, which has no D.
    """
    rows = []
    steps = [layer for layer in network.modules() if isinstance(layer, CodingStep)]
    for number, layer in enumerate(steps, start=1):
        pull = (layer.step() * layer.analysis).detach().double()
        thresholds = layer.threshold().detach().double()
        own = layer.analysis if layer.synthesis is None else layer.synthesis
        D = own.detach().double()
        fitted = float((pull * D).sum() / (D * D).sum())
        rest = float((pull - fitted * D).norm() / pull.norm())
        rows.append(
            {
                "layer": number,
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
    for number, module in enumerate(exact.steps, start=1):
        step = cast(FilterDiffusion, module)
        stepped = step(u, f, *others)
        before, after = (_energy(step, x, f, others) for x in (u, stepped))
        rows.append(
            {
                "layer": number,
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
