"""The scores of `generate` against full passes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..inputs import count_positions, hide
from .law import Pair, network_law
from .tokens import in_pieces

if TYPE_CHECKING:
    from ..model import Model


def generate(model: Model, ids: Tensor, n: int, **given: Any) -> Any:
    """Append n tokens by the network's own greedy `generate`, without rules that force tokens."""
    of_decoder = "" if model.source is None else "decoder_"
    given[f"{of_decoder}input_ids"] = ids
    given[f"{of_decoder}attention_mask"] = given.pop("mask", torch.ones_like(ids))
    if model.source is not None:
        given["decoder_start_token_id"] = ids[:, 0].tolist()  # else `generate` puts one before
    model.network.generation_config = type(model.network.generation_config)()
    return model.network.generate(
        max_new_tokens=n, do_sample=False, eos_token_id=None, pad_token_id=0, suppress_tokens=[0],
        output_logits=True, return_dict_in_generate=True, **given, **model.source_of(ids),
    )  # fmt: skip


def scores_of(model: Model, generated: Any, lengths: Sequence[int]) -> Pair:
    """Return the scores that `generate` gave its tokens, and those of full passes."""
    found, ids = torch.stack(generated.logits, 1), generated.sequences
    n = found.shape[1]
    rows = [ids[i : i + 1, -n - length : -1] for i, length in enumerate(lengths)]
    return found, torch.cat([model(row)[0][:, -n:] for row in rows])


@network_law("generate", "causal")
def generation(model: Model, inputs: Tensor) -> Pair:
    """`generate` scores its tokens as full passes score them."""
    return scores_of(model, generate(model, inputs, 8), [inputs.shape[1]] * len(inputs))


@network_law("generate", "causal", "mask")
def generation_of_left_padded(model: Model, inputs: Tensor) -> Pair:
    """`generate` scores the tokens of a row of a padded batch as the row alone is scored."""
    n = inputs.shape[1]
    padded, mask, _ = hide(inputs, 0, 4)
    lengths = [n, *[n - 4] * (len(inputs) - 1)]
    return scores_of(model, generate(model, padded, 8, mask=mask), lengths)


@network_law("generate", "cache", cases=(0, 3))
def generation_from_cache(model: Model, inputs: Tensor, n_new: int) -> Pair:
    """`generate` goes on from the cache of an earlier `generate`, with and without new tokens."""
    first = generate(model, inputs, 4)
    cache = getattr(first, model.cache_name, None)
    if cache is None:
        raise NotImplementedError("generate returns no cache")
    text = torch.cat([first.sequences, inputs[:, :n_new]], 1)
    second = generate(model, text, 8, **{model.cache_name: cache})
    return scores_of(model, second, [text.shape[1]] * len(text))


@network_law("cache", "cache object", "generate")
def static_cache(model: Model, inputs: Tensor) -> Pair:
    """In a `StaticCache` of transformers, outputs are those of the full pass."""
    from transformers import StaticCache

    n, config = inputs.shape[1], model.network.config
    if model.source is not None:  # its cache has two parts, which `generate` makes
        static = {"cache_implementation": "static", "disable_compile": True}
        return scores_of(model, generate(model, inputs, 8, **static), [n] * len(inputs))
    cache = StaticCache(config=config.get_text_config(decoder=True), max_cache_len=n + 3)
    ends, positions = range(n // 2, n + 1), count_positions(inputs)
    return in_pieces(model, inputs, ends, positions=positions, cache=cache), model(inputs)[0]
