"""Routers of trained networks beside clusterings of the same tokens: one table."""

from collections.abc import Iterable, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from ....solvers.clustering import unit_rows
from ....unrolled import SparseMixtureOfExperts
from ....unrolled.models import VisionTransformer
from ...jobs import Options, run_jobs
from ...timing import Progress
from ..classification.data import Images
from ..classification.experts import tokens_of_experts
from ..classification.networks import Classifier
from ..classification.study import build, placed, row_options, settings_of, trained_network
from .partitions import Partitions, agreements, clusterings, partition_numbers

_N_TOKENS = 1536


def compare_routers(
    classified: pd.DataFrame,
    *,
    recipe: Mapping[str, Any] | None = None,
    n_jobs: int = 1,
    data_home: str | None = None,
    directory: Path,
    progress: Progress | None = None,
) -> pd.DataFrame:
    """Compare the first choices of routers with clusterings of the tokens that they are given.

    In every layer with experts of every network: tokens of the first test images, 1,536 in all and
    scaled to unit norm, which changes no choice of a router, are clustered into as many clusters as
    there are experts.

    Parameters
    ----------
    classified : DataFrame
        As `classify` returned it.
    recipe, n_jobs, data_home, directory, progress
        As they were given to it.

    Returns
    -------
    DataFrame
        Rows of ``kind`` "agreement" have two partitions, with NMI, ARI and accuracy by the best
        match; those of ``kind`` "partition" have what one leaves and how even it is
        (`partition_numbers`). Partitions are "router"; "router at start", the same tokens by the
        weights that the router had before training; "router, shuffled", its labels in random order;
        the clusterings; and the controls "class" of the image and "position" of the patch.

    Raises
    ------
    ValueError
        If no row is a vision transformer with experts.
    """
    rows = rows_with_experts(classified.row.unique())
    settings = settings_of(classified.data[0], recipe)
    names = list(settings["candidates"][0])
    jobs = [
        {
            "data": run["data"], "data_home": data_home, "directory": str(directory),
            "settings": settings, "row": run["row"], "options": row_options(run["row"]),
            "candidate": {name: run[name] for name in names}, "seed": run["seed"],
        }
        for run in classified[classified.row.isin(rows)].to_dict(orient="records")
    ]  # fmt: skip
    return run_jobs(_run, jobs, Options(0, 1, n_jobs, data_home, directory, progress))


def rows_with_experts(rows: Iterable[str]) -> list[str]:
    """Those rows that are vision transformers with experts; a ValueError if there is none."""
    found = [
        row for row in rows
        if (options := row_options(row)).get("experts")
        and options.get("architecture", "ViT") == "ViT"
    ]  # fmt: skip
    if not found:
        raise ValueError('routers: add a row that is a ViT with experts, as "mixture of experts"')
    return found


def _run(
    data: str, data_home: str | None, directory: str, settings: dict[str, Any], row: str,
    options: dict[str, Any], candidate: dict[str, Any], seed: int,
) -> list[dict[str, Any]]:  # fmt: skip
    model, splits = trained_network(data, data_home, directory, settings, options, candidate, seed)
    start = build(splits, settings, placed(options, candidate), seed)
    of_network = {"row": row, "data": data, "seed": seed}
    return [
        {**of_network, "layer": number + 1, **numbers}
        for number, found in enumerate(routed(model, start, splits.test, seed))
        for numbers in found
    ]


def routed(
    model: Classifier, start: Classifier, images: Images, seed: int
) -> list[list[dict[str, Any]]]:
    """Rows of each layer with experts; `start` is the network before training."""
    assert isinstance(model.network, VisionTransformer)
    n_images = max(2, _N_TOKENS // int(np.prod(model.network.grid)))
    model = deepcopy(model).double().eval()
    with torch.no_grad(), tokens_of_experts(model) as seen:
        model(images.levels[:n_images].double())
    first = [part for part in start.double().modules() if isinstance(part, SparseMixtureOfExperts)]
    classes = images.target[:n_images].numpy()
    return [
        _rows(layer, before, tokens, classes, seed)
        for (layer, tokens), before in zip(seen, first, strict=True)
    ]


def _rows(
    layer: SparseMixtureOfExperts, before: SparseMixtureOfExperts, tokens: torch.Tensor,
    classes: np.ndarray, seed: int,
) -> list[dict[str, Any]]:  # fmt: skip
    n_images, n_tokens, dim = tokens.shape
    X = unit_rows(tokens.reshape(-1, dim).numpy())
    own = _choices(layer, tokens)
    partitions: Partitions = {
        "router": own,
        "router at start": _choices(before, tokens),
        "router, shuffled": np.random.default_rng(seed).permutation(own),
        **clusterings(X, layer.n_experts, seed),
    }
    controls = {
        "class": np.repeat(classes, n_tokens),
        "position": np.tile(np.arange(n_tokens), n_images),
    }
    of_image = np.repeat(np.arange(n_images), n_tokens)
    return agreements(partitions | controls) + [
        {"kind": "partition", "first": name, **partition_numbers(X, labels, of_image)}
        for name, labels in partitions.items()
    ]


@torch.no_grad()
def _choices(layer: SparseMixtureOfExperts, tokens: torch.Tensor) -> np.ndarray:
    """The expert of the largest gate, of all tokens."""
    return layer.route(tokens)[1][..., 0].flatten().numpy()
