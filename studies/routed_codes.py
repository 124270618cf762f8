"""Codes that a mixture of experts routes, beside those of orthogonal matching pursuit.

``python studies/routed_codes.py`` denoises the packaged photographs by both, and compares codes.
"""

import copy
from pathlib import Path
from typing import Annotated, cast

import numpy as np
import pandas as pd
import torch
import typer
from shared.script import run_script

from twinsolve.bench.options import DataHome, Jobs, Output
from twinsolve.bench.tables import Results, number
from twinsolve.bench.vision.denoising.methods import find_entry
from twinsolve.bench.vision.denoising.networks import started
from twinsolve.bench.vision.denoising.report import denoising_study, verify, with_checks
from twinsolve.bench.vision.denoising.study import NoisyImages, denoise, middle
from twinsolve.solvers.inputs import Array
from twinsolve.solvers.sparse_coding.matching_pursuit import pursue_rows
from twinsolve.unrolled.models.denoisers import MixtureOfExpertsDenoiser
from twinsolve.unrolled.sparse_coding.coding_step import PursuitStep
from twinsolve.unrolled.sparse_coding.patches import patch_rows, split_means

ROUTED = (
    "router", "pursuit in", "atoms", "overlap", "by chance", "left: routed", "left: refitted",
    "left: pursued", "off: routed", "off: refitted", "off: pursued",
)  # fmt: skip
_SIDE = 128  # of the crops that are coded


def beside_pursuit(
    network: MixtureOfExpertsDenoiser,
    noisy: Array,
    clean: Array,
    *,
    dictionary: MixtureOfExpertsDenoiser,
) -> dict[str, float]:
    """Compare the codes of an image's patches with those of orthogonal matching pursuit.

    Each patch is pursued with as many atoms as the router's code has. Atoms are those of the
    synthesis of all layers of `dictionary`, equal ones once and of norm 1; the router's choice of
    expert j in layer k counts as what this is there, so that at its start's dictionary a trained
    network is asked whether it still chooses the atoms that pursuit does.

    Parameters
    ----------
    network, dictionary : MixtureOfExpertsDenoiser
        With as many layers and experts.
    noisy, clean : ndarray of shape (height, width)

    Returns
    -------
    dict
        Means over the patches with a code: ``atoms``, their number s; ``jaccard``, of the two
        supports, ``|A n B| / |A u B|``; ``chance``, the same with the pursued support of another
        patch of the same s. For codes that are ``routed``, ``refitted`` by least squares on the
        router's support, and ``pursued``: ``left_...`` is the share of the squares of the noisy
        patches without means that is not coded, and ``off_...`` the squared distance from the clean
        patches without means, over their squares. NaN where no patch has a code, or all are flat.

    References
    ----------
    Revisiting Transformers with Insights from Image Filtering; EQUATIONS IF-32, IF-KSVD.
    """
    exact = copy.deepcopy(network).double()
    D, columns = distinct_atoms(dictionary)
    given = torch.from_numpy(np.ascontiguousarray(noisy, dtype=np.float64))[None, None]
    with torch.no_grad():
        atoms, codes = (x.numpy() for x in exact.codes(given))
    Y, X = (_signals(image, network.patch_size) for image in (noisy, clean))
    taken = np.zeros_like(Y)
    for k, rows in enumerate(_synthesis(exact)):
        taken += codes[:, k, None] * rows[atoms[:, k]]
    routed = _support(columns[np.arange(codes.shape[1]), atoms], codes != 0, len(D))
    counts = routed.sum(axis=1)
    coded = np.flatnonzero(counts)
    Y, X, taken, routed, counts = (x[coded] for x in (Y, X, taken, routed, counts))
    pursued, chosen = np.zeros_like(Y), np.zeros((len(Y), len(D)), dtype=bool)
    refitted, other = np.zeros_like(Y), np.arange(len(Y))
    rng = np.random.default_rng(0)
    for s in np.unique(counts):
        rows = np.flatnonzero(counts == s)
        found = pursue_rows(Y[rows], D, int(s), 0.0)
        pursued[rows], chosen[rows] = found @ D, found.toarray() != 0
        refitted[rows] = _projected(Y[rows], D[np.nonzero(routed[rows])[1].reshape(-1, s)])
        other[rows] = np.roll(shuffled := rng.permutation(rows), 1)[np.argsort(shuffled)]
    fits = {"routed": taken, "refitted": refitted, "pursued": pursued}
    return {
        "atoms": _mean(counts),
        "jaccard": _overlap(routed, chosen),
        "chance": _overlap(routed, chosen[other]),
        **{f"left_{name}": _share(fit - Y, Y) for name, fit in fits.items()},
        **{f"off_{name}": _share(fit - X, X) for name, fit in fits.items()},
    }


def distinct_atoms(network: MixtureOfExpertsDenoiser) -> tuple[Array, Array]:
    """Unit atoms of the synthesis of all layers, equal ones once, and where those of a layer are.

    Returns
    -------
    atoms : ndarray of shape (n_distinct, d)
    columns : ndarray of shape (n_layers, n_experts)
        The place of each layer's atoms among them.
    """
    rows = _synthesis(network)
    units = rows / np.linalg.norm(rows, axis=2, keepdims=True)
    atoms, places = np.unique(units.reshape(-1, rows.shape[2]), axis=0, return_inverse=True)
    return np.ascontiguousarray(atoms), places.reshape(rows.shape[:2])


def _synthesis(network: MixtureOfExpertsDenoiser) -> Array:
    layers = cast(list[PursuitStep], list(network.layers))
    return np.stack([layer.synthesis.detach().double().numpy() for layer in layers])


def _signals(image: Array, side: int) -> Array:
    rows = patch_rows(torch.from_numpy(np.ascontiguousarray(image))[None, None], side)
    return split_means(rows, 1)[0].numpy()


def _support(columns: Array, stored: Array, n_atoms: int) -> Array:
    """Which atoms are used in each row."""
    used = np.zeros((len(columns), n_atoms), dtype=bool)
    rows, layers = np.nonzero(stored)
    used[rows, columns[rows, layers]] = True
    return used


def _projected(Y: Array, atoms: Array) -> Array:
    """Each row on the span of its own atoms, of shape (n_rows, n_atoms, d)."""
    Q = np.linalg.qr(atoms.swapaxes(1, 2))[0]
    return np.einsum("ijs,iks,ik->ij", Q, Q, Y, optimize=True)


def _overlap(one: Array, other: Array) -> float:
    """Mean share of the atoms that either has which both have."""
    return _mean((one & other).sum(axis=1) / (one | other).sum(axis=1))


def _mean(values: Array) -> float:
    return float(values.mean()) if values.size else np.nan


def _share(difference: Array, whole: Array) -> float:
    size = np.square(whole).sum()
    return float(np.square(difference).sum() / size) if size else np.nan


def routed_lines(table: pd.DataFrame, given: NoisyImages) -> list[tuple[str, ...]]:
    """Cells of the table `ROUTED`: means over the middles of the images, trained and at the start.

    At the start and trained in the dictionary at which it started, and trained in its own atoms.
    """
    lines = []
    for (method, sigma), group in table[table.kind == "trained"].groupby(
        ["method", "sigma"], sort=False
    ):
        level = float(sigma) / 255
        network = find_entry(str(method)).network_at(level)
        done = [given.names.index(name) for name in group.dropna(subset="psnr").image]
        if not isinstance(network, MixtureOfExpertsDenoiser) or given.colour or not done:
            continue
        pairs = [
            (middle(given.noisy(place, level), _SIDE), middle(given.clean[place], _SIDE))
            for place in done
        ]
        start = cast(MixtureOfExpertsDenoiser, started(network))
        for router, pursuit, coded, dictionary in (
            ("start", "K-SVD atoms", start, start),
            ("trained", "K-SVD atoms", network, start),
            ("trained", "own atoms", network, network),
        ):
            rows = [beside_pursuit(coded, *pair, dictionary=dictionary) for pair in pairs]
            mean = pd.DataFrame(rows).mean()
            cells = (number(mean.pop("atoms"), ".2f"), *(number(value, ".3f") for value in mean))
            lines.append((router, pursuit, *cells))
    return lines


METHODS = ("OMP, K-SVD", "MixtureOfExpertsDenoiser, start", "MixtureOfExpertsDenoiser, trained")


def main(
    images: Annotated[
        str, typer.Argument(metavar="IMAGES", help="As in twinsolve denoise.")
    ] = "photographs",
    n_jobs: Jobs = 1,
    data_home: DataHome = None,
    output: Output = Path("results/routed-codes"),
) -> None:
    """Denoise images by the router and by pursuit, and compare their codes."""
    table = denoise(
        images, methods=METHODS, n_jobs=n_jobs, data_home=data_home, directory=output / "runs"
    )
    given = NoisyImages(images, 0, data_home, False)
    settings = {"images": images, "methods": list(METHODS)}
    results = Results("python studies/routed_codes.py", settings, output)
    with_checks(denoising_study(given, [25.0]), verify(table, given)).write(table, results)
    results.add_table(
        "Codes of the router beside those of pursuit", (ROUTED, routed_lines(table, given))
    )
    results.write()


if __name__ == "__main__":
    run_script(__file__)
