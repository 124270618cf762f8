"""Networks as laws call them: one signature, whatever the names of their arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ...unrolled.generators import seeded
from . import promises
from .functions import Adapter
from .inputs import cast, convert, difference
from .masks import masks_read_rightly
from .weights import GATES

CACHES = ("past_key_values", "cache", "cache_params", "state", "states", "hidden", "hx")
MASKS = ("attention_mask", "mask")
HIDING = ("key_padding_mask", "src_key_padding_mask")  # masks whose true entries are hidden
POSITIONS = ("position_ids", "positions")
CHUNKS = ("chunk_size", "mamba_chunk_size", "block_size")
# Model types whose first position is that after the padding id.
AFTER_PADDING = (
    "altclip_text_model", "camembert", "data2vec-text", "ibert", "kosmos_2_5_text_model",
    "longformer", "luke", "mpnet", "roberta", "roberta-prelayernorm", "xlm-roberta",
    "xlm-roberta-xl", "xmod",
)  # fmt: skip
CAUSAL = ("openai-gpt", "reformer")  # model types that are so without a cache
MASK_OF_CALL = ("falcon_mamba", "mamba", "mamba2")  # model types whose `generate` does so
_OUTPUTS = ("logits", "last_hidden_state")
_LEAST, _MOST, _FACTOR = 1e-5, 1e-3, 30
SEED = 0
_DRAWS = 10  # an error of so many times what draws change is no matter of chance


@dataclass(frozen=True)
class Convention:
    """How a network is called: the names of its arguments; None for what it does not take.

    Attributes
    ----------
    cache, mask, positions : str, optional
        The argument of the state of earlier tokens, of the mask of the tokens, and of the position
        ids.
    mask_hides, mask_shows : bool
        Whether true entries of the mask are booleans that hide tokens, as in `torch.nn`, or that
        show them. By default it has ones and zeros, and ones show.
    first_position : int
        The position of the first token.
    mask_of_call : bool
        Whether the mask covers the tokens of the call alone, not those of the cache too.
    returns_cache : bool
        Whether the output has the cache. If not, the caller makes one and passes it to every call.
    asks : tuple of str
        Arguments that must be true, such as ``use_cache``.
    inputs, source, source_mask : str, optional
        Of an encoder-decoder: the arguments of the decoder's inputs, which laws change, and of what
        the encoder reads and its mask. The cache, mask and positions are then the decoder's.
    """

    cache: str | None = None
    mask: str | None = None
    positions: str | None = None
    mask_hides: bool = False
    mask_shows: bool = False
    first_position: int = 0
    mask_of_call: bool = False
    returns_cache: bool = True
    asks: tuple[str, ...] = ()
    inputs: str | None = None
    source: str | None = None
    source_mask: str | None = None


def find_convention(network: Callable[..., Any]) -> Convention:
    """Find the names of the arguments in the signature of the network."""
    call = network.forward if isinstance(network, nn.Module) else network
    names = set(inspect.signature(call).parameters)
    if isinstance(network, Adapter):
        names -= {"mask"} - {*network.arguments.values()}
        names -= set() if network.states else {"state"}

    def first(known: tuple[str, ...]) -> str | None:
        return next((name for name in known if name in names), None)

    cache = first(CACHES)
    config = getattr(network, "config", None)
    paired = "decoder_input_ids" in names
    prefix = "decoder_" if paired else ""
    return Convention(
        cache,
        first((*HIDING, *(prefix + name for name in MASKS))),
        first(tuple(prefix + name for name in POSITIONS)),
        mask_hides=first(HIDING) is not None,
        first_position=_find_first_position(network, config),
        mask_of_call=getattr(config, "model_type", None) in MASK_OF_CALL,
        asks=("use_cache",) if cache and "use_cache" in names else (),
        inputs="decoder_input_ids" if paired else None,
        source=getattr(network, "main_input_name", "input_ids") if paired else None,
        source_mask=first(MASKS) if paired else None,
    )


def _find_first_position(network: Any, config: Any) -> int:
    """Return the position that the network gives to its first token."""
    text = config.get_text_config(decoder=True) if hasattr(config, "model_type") else None
    if getattr(text, "model_type", None) in AFTER_PADDING:
        tables = (
            x
            for name, x in network.named_modules()
            if hasattr(x, "position_embeddings") or name.endswith("embed_positions")
        )
        return next(int(x.padding_idx) for x in tables if hasattr(x, "padding_idx")) + 1
    buffers = network.named_buffers() if isinstance(network, nn.Module) else ()
    starts = [int(x.flatten()[0]) for name, x in buffers if name.endswith("position_ids")]
    return starts[0] if starts else 0


@dataclass(frozen=True)
class Model:
    """A network and inputs, as laws take them.

    Attributes
    ----------
    network : callable
        A module in eval mode, or a function.
    inputs : Tensor
        Token ids of shape (batch, tokens), features of shape (batch, tokens, width), or images.
    convention : Convention
    causal : bool
        Whether the network promises that later tokens change nothing.
    layer : int, optional
        Return the hidden states after this layer in place of the output.
    module : str, optional
        Return what this module of the network takes in place of the output.
    source, source_mask : Tensor, optional
        What the encoder of an encoder-decoder reads, and its mask: see `source_of`.
    seed : int, optional
        Of the random numbers of each call; None draws new ones.
    grad : bool
        Whether calls record what gradients need.
    calls : set
        Shapes and dtypes of the calls since it was cleared.
    """

    network: Any
    inputs: Tensor
    convention: Convention
    causal: bool
    layer: int | None = None
    module: str | None = None
    source: Any = None
    source_mask: Tensor | None = None
    seed: int | None = SEED
    grad: bool = False
    calls: set[tuple[Any, ...]] = field(default_factory=set)

    def __call__(
        self,
        inputs: Tensor,
        *,
        cache: Any = None,
        mask: Tensor | None = None,
        positions: Tensor | None = None,
    ) -> tuple[Tensor, Any]:
        """Run the network; return its output and its cache."""
        names = self.convention
        arguments: dict[str, Any] = dict.fromkeys(names.asks, True)
        if not names.returns_cache and cache is None:
            cache = self._make_cache()
        if mask is not None and (names.mask_hides or names.mask_shows):
            mask = (mask == 0) == names.mask_hides
        if positions is not None:
            positions = positions + names.first_position
        for name, value in ((names.cache, cache), (names.mask, mask), (names.positions, positions)):
            if name is not None and value is not None:
                arguments[name] = value
        if self.layer is not None:
            arguments["output_hidden_states"] = True
        arguments |= self.source_of(inputs)
        self.calls.add((inputs.shape, *{p.dtype for _, p in _parameters(self.network)}))
        with (
            torch.set_grad_enabled(self.grad),
            masks_read_rightly(self.network),
            _taken(self.network, self.module) as taken,
            nullcontext() if self.seed is None else seeded(self.seed),
        ):
            if names.inputs:
                output = self.network(**{names.inputs: inputs}, **arguments)
            else:
                output = self.network(inputs, **arguments)
        if isinstance(output, Tensor):
            return output, None
        if isinstance(output, tuple) and not hasattr(output, "_fields"):
            return output[0], output[1] if len(output) > 1 else None
        state = getattr(output, names.cache, None) if names.cache else None
        states = "decoder_hidden_states" if names.source else "hidden_states"
        if self.layer is not None:
            return getattr(output, states)[self.layer], state if names.returns_cache else cache
        result = next((getattr(output, name) for name in _OUTPUTS if hasattr(output, name)), None)
        result = taken[-1] if self.module else result
        if not isinstance(result, Tensor):
            raise TypeError(
                f"the output, {type(output).__name__}, is no tensor or tuple, and has none of "
                f"{', '.join(_OUTPUTS)}"
            )
        return result, state if names.returns_cache else cache

    def _make_cache(self) -> Any:
        """Make an empty cache of transformers."""
        from transformers import DynamicCache

        return DynamicCache(config=self.network.config)

    def source_of(self, inputs: Tensor) -> dict[str, Tensor]:
        """Return the arguments for the encoder that belong to these inputs; none if it has none.

        The first token of a row that is no padding tells which row of the source is its own: its id
        modulo the number of rows.
        """
        if self.source is None or self.convention.source is None:
            return {}
        first = (inputs != 0).int().argmax(1, keepdim=True)
        rows = inputs.gather(1, first)[:, 0] % len(self.source)
        arguments = {self.convention.source: self.source[rows]}
        if self.source_mask is not None and self.convention.source_mask:
            arguments[self.convention.source_mask] = self.source_mask[rows]
        return arguments

    def reading(self, source: Tensor, mask: Tensor | None) -> Model:
        """Return the model with another source."""
        return replace(self, source=source, source_mask=mask)

    @cached_property
    def config(self) -> Any:
        """The configuration of a network of transformers, or of its decoder; else None."""
        config: Any = getattr(self.network, "config", None)
        return config.get_text_config(decoder=True) if hasattr(config, "model_type") else None

    @cached_property
    def offers(self) -> frozenset[str]:
        """What laws may need of a network and this one has; see `NetworkLaw.needs`."""
        names, network, cache = self.convention, self.network, None
        if names.cache:
            cache = self(self.inputs.clone())[1]
        drops = [x.p for x in _modules(network) if isinstance(x, nn.Dropout)]
        settings = vars(self.config) if self.config is not None else {}
        drops += [x for name, x in settings.items() if "drop" in name and isinstance(x, float)]
        normed = any(isinstance(x, _BatchNorm) for x in _modules(network))
        adapter = network if isinstance(network, Adapter) else None
        experts = any("expert" in name for name, _ in _parameters(network))
        offered = {
            "causal": self.causal,
            "cache": cache is not None,
            "state of tensors": isinstance(cache, Tensor | tuple),
            "cache object": hasattr(cache, "reorder_cache"),
            "use_cache": "use_cache" in names.asks and names.returns_cache,
            "mask": names.mask is not None and self.inputs.ndim < 4,
            "positions": names.positions is not None,
            "gaps": cache is not None
            and bool(names.mask and names.positions)
            and promises.grows(self, self.inputs.shape[1] // 2)
            and promises.ignores_gaps(self),
            "positions that part texts": self.causal
            and names.positions is not None
            and promises.parts_texts(self),
            "source": self.source is not None,
            "source mask": names.source_mask is not None
            and self.source is not None
            and not self.source.is_floating_point(),
            "module": isinstance(network, nn.Module),
            "generate": bool(getattr(network, "can_generate", bool)())
            and type(network).generate.__module__ == "transformers.generation.utils",
            "same in training": not any(drops) and not normed,
            "config": self.config is not None,
            "chunks": bool(self.chunks),
            "implementations": self.config is not None
            and getattr(network, "_supports_sdpa", False),
            "flex": self.config is not None and getattr(network, "_supports_flex_attn", False),
            "smooth": not experts,
            "grouped": self._has_grouped_heads(),
            "hidden states": self.config is not None,
            "recurrence": adapter is not None and adapter.recurrence is not None,
            "forget gate": adapter is not None and "forget" in adapter.parts,
            "gates": bool(self.gates) and self.inputs.ndim < 4,
            "system": adapter is not None and {*adapter.states.values()} == {"H", "G"},
        }
        return frozenset(name for name, has in offered.items() if has)

    def _has_grouped_heads(self) -> bool:
        """Whether several heads share their keys and values."""
        heads = getattr(self.config, "num_attention_heads", None) or 0
        shared = getattr(self.config, "num_key_value_heads", None) or heads
        names = {name.split(".")[-2] for name, _ in _parameters(self.network) if "." in name}
        return bool(shared < heads and {"k_proj", "v_proj"} <= names)

    @property
    def chunks(self) -> tuple[str, ...]:
        """Names of chunk sizes in the configuration."""
        return tuple(x for x in CHUNKS if isinstance(getattr(self.config, x, None), int))

    @cached_property
    def gates(self) -> tuple[str, ...]:
        """Names of weights that may close gates.

        They are those known by name and, of networks of others than transformers, all that are not
        called weights, such as biases.
        """
        names = [name for name, x in _parameters(self.network) if x.requires_grad]
        known = tuple(name for name in names if name.rpartition(".")[2] in GATES)
        if known or self.config is not None:
            return known
        return tuple(name for name in names if "weight" not in name.rpartition(".")[2])

    @property
    def longest(self) -> int:
        """The largest number of tokens that the network takes."""
        return int(getattr(self.config, "max_position_embeddings", None) or 10**6)

    @property
    def cache_name(self) -> str:
        """The name of the argument for the cache."""
        return self.convention.cache or ""

    @property
    def asks(self) -> tuple[str, ...]:
        """See `Convention`."""
        return self.convention.asks

    @property
    def mask_of_call(self) -> bool:
        """See `Convention`."""
        return self.convention.mask_of_call

    def of(self, network: Callable[..., Any]) -> Model:
        """Return the model with another network, under the same convention."""
        return replace(self, network=network)

    @cached_property
    def randomness(self) -> float:
        """How much other random numbers change the output: the largest relative difference."""
        first, again = (self(self.inputs.clone())[0] for _ in range(2))
        other = replace(self, seed=SEED + 1)(self.inputs.clone())[0]
        return max(difference(again, first), difference(other, first))

    def is_explained_by_draws(self, error: float) -> bool:
        """Whether random draws may have made an error in the calls since `calls` was emptied."""
        if len(self.calls) == 1 and difference(*(self(self.inputs)[0] for _ in range(2))) == 0:
            return False  # all calls drew the same
        return bool(self.randomness) and error <= _DRAWS * self.randomness

    @cached_property
    def tolerance(self) -> tuple[float, str]:
        """The largest change that rounding may cause, and where the number comes from."""
        try:
            inputs = cast(self.inputs, torch.float64)
            exact = convert(self, torch.float64)(inputs)[0]
            rounding = difference(self(self.inputs.clone())[0], exact)
        except Exception:  # whatever the network raises
            return 1e-4, "does not run in float64"
        if _FACTOR * rounding > _MOST:
            return _MOST, f"the most that is allowed; float32 is {rounding:.1e} from float64"
        return max(_FACTOR * rounding, _LEAST), f"{_FACTOR} x rounding, {rounding:.1e}"


@contextmanager
def _taken(network: Any, module: str | None) -> Iterator[list[Tensor]]:
    """Yield a list that collects what a module of the network takes in each call."""
    inputs: list[Tensor] = []
    if module is None:
        yield inputs
        return
    hook = network.get_submodule(module).register_forward_pre_hook(
        lambda _, given: inputs.append(given[0])
    )
    try:
        yield inputs
    finally:
        hook.remove()


def _modules(network: Any) -> list[nn.Module]:
    return list(network.modules()) if isinstance(network, nn.Module) else []


def _parameters(network: Any) -> list[tuple[str, Tensor]]:
    return list(network.named_parameters()) if isinstance(network, nn.Module) else []
