"""What is measured of a classifier: accuracy, depth, size, operations and speed."""

from copy import deepcopy
from time import process_time
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from ....unrolled.diagnostics import condition_number, token_similarity
from ....unrolled.kernel_smoothing import store_positions
from ....unrolled.models import ConvMixer, VisionTransformer
from .data import Images
from .networks import Classifier

_BATCH = 256
_N_DEPTH = 64  # images of which tokens are measured
_REPEATS = 5


@torch.no_grad()
def scores(model: nn.Module, levels: Tensor) -> Tensor:
    """Class scores of all images."""
    return torch.cat([model(part) for part in levels.split(_BATCH)])


def accuracies(model: nn.Module, images: Images) -> dict[str, float]:
    """Top-1 and top-5 accuracy, in percent."""
    found = scores(model, images.levels)
    best = found.topk(min(5, found.shape[1]), dim=1).indices
    hit = (best == images.target[:, None]).cpu()
    return {"top1": _percent(hit[:, 0]), "top5": _percent(hit.any(dim=1))}


def _percent(hits: Tensor) -> float:
    return 100 * float(hits.double().mean())


@torch.no_grad()
def depth_measures(model: Classifier, images: Images) -> dict[str, float]:
    """Of the last layer's tokens, in float64: mean cosine, and mean log10 condition number.

    A condition number beyond what float64 resolves, which is infinite to `condition_number`, counts
    as that bound, ``1 / (max(n, d) eps)``: it is at least so large.
    """
    network = deepcopy(model).double().network
    levels = model.standardised(images.levels[:_N_DEPTH].double())
    if isinstance(network, VisionTransformer):
        tokens = network.intermediates(levels)[-1]
    elif isinstance(network, ConvMixer):
        tokens = network.forward_features(levels).flatten(2).mT
    else:
        return {}
    bound = 1 / (max(tokens.shape[-2:]) * torch.finfo(torch.float64).eps)
    logs = condition_number(tokens).clamp(max=bound).log10()
    return {
        "token_cosine": float(token_similarity(tokens).mean()),
        "log10_condition": float(logs.mean()),
    }


def size_measures(model: Classifier, images: Images) -> dict[str, float]:
    """Trained parameters, and operations of one image: two for each product of multiplication.

    Parameters that a row holds fixed do not count. Operations are those that torch counts: of
    matrix products and convolutions, fixed ones too. Bilateral attention stores its positions.
    """
    counter = FlopCounterMode(display=False)
    # The counter cannot track expanded parameters.
    frozen = store_positions(model, images.levels[:1]).requires_grad_(False)
    with sdpa_kernel(SDPBackend.MATH), counter:
        frozen(images.levels[:1])
    n_parameters = sum(p.numel() for p in model.parameters() if p.requires_grad)
    return {"parameters": n_parameters, "flops": counter.get_total_flops()}


def speed_ratios(model: Classifier, plain: Classifier, images: Images) -> dict[str, float]:
    """Images a processor second, over those of the plain network, taken in turns.

    ``inference`` is without gradients, with stored positions in bilateral attention; ``training``
    is forward and backward.
    """
    levels = images.levels[:_N_DEPTH]
    served = {"inference": store_positions(model, levels[:1]), "training": model}
    seconds: dict[str, list[float]] = {"inference": [], "training": []}
    for _ in range(1 + _REPEATS):
        for kind, found in seconds.items():
            found.append(_seconds(plain, levels, kind) / _seconds(served[kind], levels, kind))
    return {kind: float(np.median(found[1:])) for kind, found in seconds.items()}


def _seconds(model: nn.Module, levels: Tensor, kind: str) -> float:
    start = process_time()
    with torch.set_grad_enabled(kind == "training"):
        out: Any = model(levels)
        if kind == "training":
            out.square().mean().backward()
    return process_time() - start
