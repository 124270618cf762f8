"""Decoding through a cache, and what a caller may do with the cache."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..inputs import count_positions, withhold_cache
from .law import Pair, network_law
from .tokens import in_pieces

if TYPE_CHECKING:
    from ..model import Model


@network_law("cache")
def decoding(model: Model, inputs: Tensor) -> Pair:
    """Token by token through the cache, the output is that of the full pass."""
    expected = model(inputs)[0]  # first, so that a state kept in modules is not new
    ends = range(1, inputs.shape[1] + 1)
    return in_pieces(model, inputs, ends), expected


@network_law("cache", "positions")
def decoding_with_positions(model: Model, inputs: Tensor) -> Pair:
    """Token by token with positions, the output is that of the full pass."""
    expected = model(inputs)[0]  # first, so that a state kept in modules is not new
    ends = range(1, inputs.shape[1] + 1)
    return in_pieces(model, inputs, ends, positions=count_positions(inputs)), expected


@network_law("cache")
def decoding_after_prefill(model: Model, inputs: Tensor) -> Pair:
    """Half of the tokens at once and the others one by one, the output is that of the full pass."""
    n = inputs.shape[1]
    ends = range(n // 2, n + 1)
    return in_pieces(model, inputs, ends, positions=count_positions(inputs)), model(inputs)[0]


@network_law("cache", "positions")
def decoding_after_prefill_without_positions(model: Model, inputs: Tensor) -> Pair:
    """As decoding after prefill, where the network counts positions itself."""
    n = inputs.shape[1]
    return in_pieces(model, inputs, range(n // 2, n + 1)), model(inputs)[0]


@network_law("cache")
def prefill_in_pieces(model: Model, inputs: Tensor) -> Pair:
    """In three pieces through the cache, the output is that of the full pass."""
    n = inputs.shape[1]
    ends = [n // 3, n // 3 + n // 2, n]
    return in_pieces(model, inputs, ends, positions=count_positions(inputs)), model(inputs)[0]


@network_law("cache", "use_cache")
def without_cache(model: Model, inputs: Tensor) -> Pair:
    """A call that makes no cache gives the output of a call that makes one."""
    return withhold_cache(model)(inputs)[0], model(inputs)[0]


def step_after(model: Model, inputs: Tensor, cache: Any, n: int) -> Tensor:
    """Return the output of token n after a cache of the n tokens before it."""
    positions = torch.full((len(inputs), 1), n)
    return model(inputs[:, n : n + 1], cache=cache, positions=positions)[0]


def step_anew(model: Model, inputs: Tensor, n: int) -> Tensor:
    """Return the output of token n after a new cache."""
    return step_after(model, inputs, model(inputs[:, :n])[1], n)


@network_law("cache")
def copied_cache(model: Model, inputs: Tensor) -> Pair:
    """A copy of the cache stays as it was while the cache goes on."""
    half = inputs.shape[1] // 2
    cache = model(inputs[:, :half])[1]
    copied = copy.deepcopy(cache)
    step_after(model, inputs.flip(0), cache, half)
    return step_after(model, inputs, copied, half), step_anew(model, inputs, half)


@network_law("cache", "state of tensors")
def state_of_the_caller(model: Model, inputs: Tensor) -> Pair:
    """A state that is given again gives the output of a new one."""
    half = inputs.shape[1] // 2
    state = model(inputs[:, :half])[1]
    step_after(model, inputs.flip(0), state, half)
    return step_after(model, inputs, state, half), step_anew(model, inputs, half)


@network_law("cache", "cache object")
def reordered_cache(model: Model, inputs: Tensor) -> Pair:
    """A cache whose rows are reordered, as for beams, serves the reordered inputs."""
    half = inputs.shape[1] // 2
    cache = model(inputs[:, :half])[1]
    cache.reorder_cache(torch.tensor([1, 0]))
    return step_after(model, inputs.flip(0), cache, half), step_anew(model, inputs.flip(0), half)


@network_law("cache", "cache object")
def cropped_cache(model: Model, inputs: Tensor) -> Pair:
    """A cache without its last three tokens serves what comes after those before."""
    half = inputs.shape[1] // 2
    cache = model(inputs[:, :half])[1]
    cache.crop(-3)
    return step_after(model, inputs, cache, half - 3), step_anew(model, inputs, half - 3)
