"""Outputs of earlier tokens, kept in the caches of Hugging Face transformers."""

from typing import Any

import torch
from torch import Tensor

from ..attention import Operator


class KeptOutputs:
    """What an operator keeps of the tokens in one layer of a cache, as a further layer of it.

    The cache reorders, crops, repeats and resets that layer with its own.

    Attributes
    ----------
    before : list of Tensor
        As `Operator.forward` takes and changes it.
    """

    def __init__(self, cache: Any, layer: Any, before: list[Tensor]) -> None:
        self.cache, self.layer, self.before = cache, layer, before

    def add(self, n_tokens: int) -> None:
        """Put what `before` has gained, the outputs of the last tokens, into the cache."""
        if not self.before:
            return
        from transformers.cache_utils import DynamicLayer

        if not hasattr(self.layer, "twinsolve_outputs"):
            self.layer.twinsolve_outputs = DynamicLayer()
            self.cache.layers.append(self.layer.twinsolve_outputs)
        rows = torch.cat([x[..., x.shape[-2] - n_tokens :, :] for x in self.before], dim=-1)
        self.layer.twinsolve_outputs.update(rows, rows[..., :0])


def note_cache(module: Any, inputs: Any, arguments: dict[str, Any]) -> None:
    """Note the cache that an attention module is called with: a forward pre-hook."""
    module.twinsolve_passes.threads.cache = next(
        (x for x in (*inputs, *arguments.values()) if hasattr(x, "reorder_cache")), None
    )


def find_kept(module: Any, operator: Operator, n_queries: int, n_keys: int) -> KeptOutputs | None:
    """Return what the cache of this call holds of earlier tokens, if the operator goes by turns.

    None says that all rows are computed at once. A ValueError says if the cache does not fit.
    """
    if not operator.square_only or operator.outputs_kept is None:
        return None
    if operator.outputs_kept == 0:
        return KeptOutputs(None, None, [])
    passes = getattr(module, "twinsolve_passes", None)
    cache = None if passes is None else vars(passes.threads).pop("cache", None)
    if cache is None:
        return None
    cache = getattr(cache, "self_attention_cache", cache)
    _check_cache(cache, operator)
    layer = cache.layers[module.layer_idx]
    outputs = getattr(layer, "twinsolve_outputs", None)
    seen = int(layer.get_seq_length()) - n_queries
    if (0 if outputs is None else outputs.get_seq_length()) != seen:
        raise ValueError(
            f"cache: {type(operator).__name__} needs its outputs of all {seen} tokens in it; start "
            "with an empty cache, or decode with use_cache=False"
        )
    before = []
    if outputs is not None and seen:
        earlier = outputs.keys[..., seen - (n_keys - n_queries) :, :]  # a window keeps fewer keys
        before = [*earlier.chunk(operator.outputs_kept, dim=-1)]
    return KeptOutputs(cache, layer, before)


def _check_cache(cache: Any, operator: Operator) -> None:
    """Raise a ValueError if a cache has no room for further layers."""
    kind = f"{type(operator).__name__} keeps outputs of tokens in it, "
    if getattr(cache, "layer_class_to_replicate", None) is not None:
        raise ValueError(
            f"cache: {kind}after the layers of the model, whose number it does not know; make it "
            f"as {type(cache).__name__}(config=model.config), or decode with use_cache=False"
        )
    if getattr(cache, "offloading", False):
        raise ValueError(
            f"cache: {kind}which one that is offloaded does not allow; decode with use_cache=False"
        )
