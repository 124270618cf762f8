"""A layer that a user names, held against its solver."""

import re
from typing import Any

import numpy as np
from torch import nn

from ...twins import check, judging_twin
from ...twins.report import Report
from ...unrolled.generators import seeded
from ...unrolled.users_code import reporting
from ..names import split_settings
from ..run_folder import find_object

_NAME = re.compile(r"([\w.]+:[\w.]+)(?::(.*))?")  # package.module:name:SETTING=VALUE,...
_N_TOKENS, _WIDTH, _SIDE = 48, 16, 24
_ADVICE = (
    "register it in the module of the layer, or in one that --load names, as the page Extend shows"
)


def check_layer(name: str, *, seed: int = 0) -> Report:
    """Check the layer that a name stands for, as `twinsolve.check` does.

    Parameters
    ----------
    name : str
        ``package.module:name`` of a layer, or of a class or function, which is called with the
        settings that follow a colon: ``package.module:name:SETTING=VALUE,...``. A function may
        return a pair of a layer and its tokens, or of a model and its batch.
    seed : int, default=0
        Seed of the parameters of the layer, and of the tokens or the image if none are given.

    Raises
    ------
    ValueError
        If there is no such layer, or it cannot be made or called.
    LookupError
        If no twin is registered for it.
    """
    named = _NAME.fullmatch(name)
    if named is None:
        raise ValueError(f"layer: must be package.module:name:SETTING=VALUE,..., got {name!r}")
    given, settings = find_object(named[1], "layer: there is no"), named[2] or ""
    with seeded(seed):
        if settings or not isinstance(given, nn.Module):
            options = split_settings(f":{settings}", "layer")[1]
            with reporting(f"layer: cannot make {name!r}"):
                given = given(**options)
        layer, *tokens = given if isinstance(given, tuple) else (given,)
        if not isinstance(layer, nn.Module):
            raise ValueError(
                f"layer: {name!r} must make a torch.nn.Module, got a {type(layer).__name__}"
            )
        X = tokens[0] if tokens else _draw(layer, np.random.default_rng(seed))
        try:
            return check(layer, X)
        except LookupError as error:
            if type(error) is not LookupError:  # an IndexError or KeyError of the layer
                raise
            raise LookupError(f"{error}; {_ADVICE}") from error
        except RuntimeError as error:
            drawn = "" if tokens else ", a function that returns the layer and its tokens may help"
            raise ValueError(f"layer: {name!r} cannot be called{drawn}: {error}") from error


def _draw(layer: nn.Module, rng: np.random.Generator) -> Any:
    """Draw an image or tokens, as wide as the layer's first weights."""
    try:
        image = judging_twin(layer, same_points=True).inputs.kind == "image"
    except LookupError:
        image = False
    if image:
        return rng.random((_SIDE, _SIDE))
    widths = (x.shape[-1] for x in layer.parameters() if x.ndim in (1, 2))
    return rng.standard_normal((_N_TOKENS, next(widths, _WIDTH)))
