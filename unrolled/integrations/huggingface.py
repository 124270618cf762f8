"""Operators as attention implementations of Hugging Face transformers, which stays optional."""

import inspect
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..attention import Operator, read_mask
from ..kernel_smoothing.logits import add_bias
from ..named_operators import make_operator, operator_names
from .attached import (
    ATTACHED,
    check_runs,
    is_attached,
    keep_operator,
    operator_of,
    plain,
    reads_places,
)
from .caches import find_kept, note_cache
from .choice import Chooser, check_needs, choose, place_positions, takes_name
from .forward_passes import ForwardPasses
from .replacements import parameter_of, rescale
from .saving import guard_saving

OLDEST = "5.24.0"  # of transformers, in the extra `integrations`
_NEEDED = (
    f"transformers {OLDEST} or newer is needed here: pip install 'transformers>={OLDEST}', or the "
    "extra `integrations`"
)

_PREFIX = "twinsolve_"
_NOT_SERVED = ("softcap", "s_aux", "sinks", "cache", "indices", "block_indices")
_PROJECTIONS = (("q_proj", "k_proj"), ("query", "key"))
Function = Callable[..., tuple[Tensor, Tensor | None]]


def register_huggingface(names: Iterable[str] | None = None) -> list[str]:
    """Make operators known to transformers as ``attn_implementation="twinsolve_NAME"``.

    Operators have their initial parameters, and layers of equal size share one. Those that learn
    parameters refuse to train like this, and those that share state between layers always refuse:
    `attach_huggingface` instead gives each layer an operator that is part of the model. Masks,
    causal models, grouped keys, the model's scaling and position biases are honoured. Operators
    whose rows depend on one query and the keys decode with a cache as they do without, and so does
    "symmetric". Others (``square_only``) need ``use_cache=False``, or `attach_huggingface` if they
    are twicing or NeuTRENO. Operators that read distances between tokens count
    them along the keys, padding included; those that read places on a grid refuse sliding windows,
    whose caches drop keys. Dropout of attention weights is not applied; a warning says so. Logit
    caps, attention sinks and paged caches are refused.

    "twinsolve_softmax" computes what the library's "sdpa" computes. Models that do not support
    "sdpa" are refused when they ask for masks or attention. A model that asks for neither keeps its
    own attention, which cannot be noticed here; `attach_huggingface` refuses it.

    Parameters
    ----------
    names : iterable of str, optional
        Names among `operator_names`; None is all that are registered now.

    Returns
    -------
    list of str
        The names to give as ``attn_implementation``.

    Raises
    ------
    ImportError
        If transformers is not installed, or too old.
    ValueError
        If there is no operator of a name.

    Examples
    --------
    >>> from twinsolve.unrolled.integrations import register_huggingface
    >>> register_huggingface(["softmax", "twicing"])  # doctest: +SKIP
    ['twinsolve_softmax', 'twinsolve_twicing']
    """
    known = operator_names()
    chosen = known if names is None else list(names)
    for name in chosen:
        if name not in known:
            raise ValueError(f"names: must be among {', '.join(known)}, got {name!r}")
        places = reads_places(make_operator(name, num_heads=1, head_dim=1))
        _register(_PREFIX + name, _share_operator(name), places)
    return [_PREFIX + name for name in chosen]


def attach_huggingface(
    model: Any, operator: Chooser, *, positions: str | Tensor | None = None
) -> Any:
    """Give each attention layer of a Hugging Face model an operator that is part of the model.

    The operator becomes the submodule ``operator`` of each attention module: its parameters are
    trained and moved with the model's; a checkpoint from before the call loads into it.
    ``model.save_pretrained`` becomes `save_huggingface`, and `load_huggingface` restores the model.
    Layers share state within one call of `model`, which in `generate` is one step. For gradient
    checkpointing see `replace_attention`; `register_huggingface` says what is honoured and what is
    refused. A trained model loses accuracy until it is tuned with the operator.

    ``generate`` may use a cache. Twicing, and NeuTRENO of several iterations, keep outputs of
    earlier tokens in it, as further layers. They refuse a cache that was filled without them, one
    that is offloaded, and one that was made without the model's configuration.

    A layer runs its operator or raises a ValueError, never the library's attention instead. You may
    put another operator, or ``torch.compile`` of one, at ``operator``. Anything else there is an
    error, and so is an attention implementation that is set afterwards.

    Give the whole model, with a function of names that returns None outside the part that is meant.
    If the part alone is given, layers beside it that share its configuration raise (BART's decoder
    beside its encoder), and ``save_pretrained`` of the whole model does not know of its operators.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        Itself, not a wrapper around it. Changed in place; its ``attn_implementation`` is set.
    operator : str, Operator or callable
        As in `replace_attention`; layers for which a function of names returns None keep the
        library's attention, and so does cross attention unless such a function is given.
    positions : str or Tensor, optional
        As in `replace_attention`, with the same care where the model adds its own. If they are more
        than the tokens, the first are taken: right for a shorter sequence, wrong for a window of a
        larger grid.

    Returns
    -------
    transformers.PreTrainedModel
        `model`.

    Raises
    ------
    ImportError
        If transformers is not installed, or too old.
    ValueError
        If the model is none, or takes no attention functions, or an operator needs what it cannot
        get; nothing is changed then.

    Warns
    -----
    UserWarning
        If the model adds positions to its tokens, and the operator takes positions as features too.

    Examples
    --------
    >>> from twinsolve.unrolled import attach_huggingface
    >>> model = attach_huggingface(model, "sparse_coding")  # doctest: +SKIP
    """
    for places, implementation in ATTACHED.items():
        _register(implementation, _get_attached_operator, places)
    if not hasattr(type(model), "set_attn_implementation"):
        raise ValueError(
            f"model: must be a PreTrainedModel, got {type(model).__name__}; give it the model "
            "inside, and wrap or compile it then"
        )
    offered = {name: module for name, module in model.named_modules() if calls_interface(module)}
    chosen = list(_choose_layers(offered, operator, positions is not None))
    if not chosen:
        raise ValueError(
            f"operator: returned None for all attention layers of {type(model).__name__}: "
            f"{', '.join(map(repr, offered))}"
            if offered
            else f"model: {type(model).__name__} has no attention that calls transformers' "
            "AttentionInterface"
        )
    changed = {id(module) for module, _ in chosen}
    kept = [operator_of(m) for m in model.modules() if is_attached(m) and id(m) not in changed]
    chosen_operators = [layer_operator for _, layer_operator in chosen]
    operators = [*kept, *chosen_operators]
    implementation = ATTACHED[any(map(reads_places, operators))]
    before = [(config, config._attn_implementation) for config in _list_configs(model)]
    try:
        model.set_attn_implementation(implementation)
        for module, _ in chosen:
            if module.config._attn_implementation != implementation:
                kind = type(module).__name__
                raise ValueError(f"model: the attention implementation of {kind} cannot be set")
        passes = ForwardPasses(place_positions(model, positions, chosen_operators))
    except Exception:
        for config, implementation_before in before:
            config._attn_implementation = implementation_before
        raise
    for module, layer_operator in chosen:
        like = parameter_of(module)
        layer_operator.to(device=like.device, dtype=like.dtype).train(module.training)
        module.operator = layer_operator
        if not is_attached(module):
            module.register_load_state_dict_pre_hook(keep_operator)
            module.register_forward_pre_hook(check_runs)
            module.register_forward_pre_hook(note_cache, with_kwargs=True)
        module.twinsolve_passes = passes
    for module in offered.values():
        if not is_attached(module):
            module.twinsolve_passes = None
    if any(layer_operator.needs for layer_operator in chosen_operators):
        passes.watch(model)
    guard_saving(model, [module for module, _ in chosen])
    return model


def _choose_layers(
    offered: dict[str, nn.Module], operator: Chooser, has_positions: bool
) -> Iterator[tuple[Any, Operator]]:
    """Yield the attention modules that get an operator, each with its own, after all checks."""
    for name, module in offered.items():
        _check_library(module.config)
        if _is_cross_attention(name, module) and not takes_name(operator):
            continue
        chosen = choose(operator, name, *_count_heads(module))
        if chosen is None:
            continue
        check_needs(chosen, name, has_positions)
        if "first_tokens" in chosen.needs:
            raise ValueError(
                f"operator: {type(chosen).__name__} needs first_tokens, which no layer gets here"
            )
        if "projected_positions" in chosen.needs:
            _find_position_weights(module)
        yield module, chosen


def _list_configs(model: nn.Module) -> Iterator[Any]:
    """Yield the configurations of the model and its parts, outer ones first."""

    def within(config: Any) -> Iterator[Any]:
        yield config
        for name in getattr(config, "sub_configs", ()):
            if (inner := getattr(config, name, None)) is not None:
                yield from within(inner)

    for part in model.modules():
        if hasattr(part, "set_attn_implementation"):
            yield from within(part.config)


def _check_library(config: Any) -> None:
    """Raise a ValueError for models whose classes declare no support of "sdpa".

    Their attention has sinks, caps or bands, and masks of another form.
    """
    if not torch.compiler.is_compiling():
        _check_classes(type(config).__module__, type(config).__name__)


@lru_cache
def _check_classes(module: str, config: str) -> None:
    """Raise a ValueError if a class with this configuration does not support sdpa."""
    modeling_module = sys.modules.get(module.replace(".configuration_", ".modeling_"))
    for kind in vars(modeling_module).values() if modeling_module else ():
        has_config = getattr(getattr(kind, "config_class", None), "__name__", None) == config
        if has_config and not getattr(kind, "_supports_sdpa", True):
            raise ValueError(
                f"model: transformers itself does not support sdpa as the attention of "
                f"{kind.__name__}, nor can an operator be"
            )


def say_what_is_needed() -> str:
    """Sentence on the oldest version of transformers that serves, and on the one that is there."""
    with suppress(PackageNotFoundError):
        return f"{_NEEDED}; {version('transformers')} is installed"
    return _NEEDED


def _register(
    name: str, operator_for: Callable[[nn.Module, Tensor], Operator | None], places: bool
) -> None:
    """Register an attention function and its masks, without which padding would leak.

    A static cache has room for keys to come. A mask for operators that read places ends at the last
    query, which shows the place of the query.
    """
    try:
        from transformers import AttentionInterface, AttentionMaskInterface
        from transformers.masking_utils import bidirectional_mask_function, sdpa_mask
    except ImportError as error:
        raise ImportError(say_what_is_needed()) from error

    def mask(*args: Any, **kwargs: Any) -> Tensor | None:
        _check_library(kwargs.get("config"))
        visible = sdpa_mask(*args, **kwargs)
        if visible is None:
            return None
        if kwargs.get("mask_function") is not bidirectional_mask_function:
            last = int(kwargs["q_offset"]) + visible.shape[-2] - kwargs["kv_offset"]
            return visible[..., :last] if places else visible
        # Shows `_attend` that all queries have one mask.
        return visible[..., :1, :].expand_as(visible)

    def attention(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        _check_library(getattr(module, "config", None))
        operator = operator_for(module, query)
        if attention_mask is not None and attention_mask.shape[-1] < key.shape[2]:
            key, value = (x[:, :, : attention_mask.shape[-1]] for x in (key, value))
        if operator is None:
            library = AttentionInterface()["sdpa"]
            return library(module, query, key, value, attention_mask, **kwargs)
        return _attend(operator, module, query, key, value, attention_mask, **kwargs)

    AttentionInterface.register(name, attention)
    AttentionMaskInterface.register(name, mask)


def _share_operator(name: str) -> Callable[[nn.Module, Tensor], Operator]:
    """Return a function that makes one operator for each size, device and dtype, and reuses it."""

    @lru_cache
    def make(heads: int, width: int, device: torch.device, dtype: torch.dtype) -> Operator:
        operator = make_operator(name, num_heads=heads, head_dim=width).to(device, dtype)
        return operator.requires_grad_(False)

    def operator_for(module: nn.Module, query: Tensor) -> Operator:
        operator = make(query.shape[1], query.shape[-1], query.device, query.dtype)
        learns = module.training and next(operator.parameters(), None) is not None
        if learns or operator.needs:
            why = "learns parameters" if learns else f"needs {', '.join(operator.needs)}"
            raise ValueError(
                f"{_PREFIX}{name}: {type(operator).__name__} {why}; "
                f'call attach_huggingface(model, "{name}")'
            )
        return operator

    return operator_for


def _get_attached_operator(module: nn.Module, query: Tensor) -> Operator | None:
    """Return the operator of a module, or None if it was left alone when others got theirs."""
    if getattr(module, "twinsolve_passes", None) is not None:
        return operator_of(module)
    if hasattr(module, "twinsolve_passes"):
        return None
    raise ValueError(
        f"operator: {type(module).__name__} has none, as it was not in the model that was given "
        "to attach_huggingface; give it the whole model, and None for layers to leave alone"
    )


def _attend(
    operator: Operator,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    *,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    sliding_window: int | None = None,
    position_bias: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """Attend as transformers call it: heads are axis 1 of the inputs and axis 2 of the output."""
    kind, n_queries = type(plain(operator)).__name__, query.shape[2]
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    is_causal = bool(causal and mask is None and n_queries > 1)
    if is_causal and key.shape[2] > n_queries:  # an empty static cache behind the prompt
        key, value = key[:, :, :n_queries], value[:, :, :n_queries]
    kept = find_kept(module, plain(operator), n_queries, key.shape[2]) if causal else None
    _check_call(plain(operator), n_queries, key.shape[2], causal, kept is not None, kwargs)
    if sliding_window is not None and operator.positional == "absolute":
        raise ValueError(
            f"sliding_window: {kind} reads places of tokens, which caches of a window do not keep"
        )
    if mask is None and sliding_window is not None and key.shape[2] > sliding_window:
        raise ValueError(f"sliding_window: {kind} needs a mask that holds it, got None")
    if position_bias is not None:
        mask = None if mask is None else read_mask(mask, query)
        mask = add_bias(mask, position_bias[..., : key.shape[2]])
    if dropout > 0:
        warnings.warn(
            f"{kind}: dropout of attention weights ({dropout}) is not applied: rows would no "
            "longer sum to one",
            stacklevel=2,
        )
    groups = query.shape[1] // key.shape[1]
    key, value = (x.repeat_interleave(groups, dim=1) if groups > 1 else x for x in (key, value))
    query, key = rescale(query, key, scaling)
    if mask is not None and mask.stride(-2) == 0:
        mask = mask[..., :1, :]
    passes = getattr(module, "twinsolve_passes", None) or ForwardPasses()
    output, context = passes.attend(
        operator, query, key, value,
        mask=mask, is_causal=is_causal, project=lambda p: _project_positions(module, p),
        first_positions=causal or key.shape[2] == n_queries,
        kept=None if kept is None else kept.before,
    )  # fmt: skip
    if kept is not None:
        kept.add(n_queries)
    weights = None
    if kwargs.get("output_attentions"):
        weights = operator.matrix(query, key, mask=mask, is_causal=is_causal, context=context)
    return output.transpose(1, 2).contiguous(), weights


def _check_call(
    operator: Operator,
    n_queries: int,
    n_keys: int,
    causal: bool,
    by_turns: bool,
    kwargs: dict[str, Any],
) -> None:
    """Raise a ValueError if the operator cannot do what the model asks for in this call."""
    kind = type(operator).__name__
    unserved = [name for name in _NOT_SERVED if kwargs.get(name) is not None]
    if unserved:
        raise ValueError(
            f"{', '.join(unserved)}: {kind} does not serve what the model asks for here"
        )
    if causal and not operator.causal:
        raise ValueError(f"{kind}: does not support causal models")
    if not operator.square_only or n_queries == n_keys:
        return
    if not by_turns:
        kept = ", or with attach_huggingface" if operator.outputs_kept and causal else ""
        raise ValueError(
            f"{kind}: needs as many queries as keys, got {n_queries} and {n_keys}; decode with "
            f"use_cache=False{kept}, and leave cross attention alone"
        )
    if kwargs.get("output_attentions"):
        raise ValueError(
            f"output_attentions: {kind} has no matrix of the last {n_queries} tokens alone; decode "
            "with use_cache=False"
        )


def calls_interface(module: nn.Module) -> bool:
    """Whether a module calls an attention function of transformers."""
    config = vars(module).get("config")  # its own, not that of a module which it wraps
    if hasattr(module, "set_attn_implementation") or not hasattr(config, "_attn_implementation"):
        return False
    return hasattr(module, "is_causal") or _asks_interface(type(module))


def _asks_interface(kind: type[nn.Module]) -> bool:
    try:
        return "ALL_ATTENTION_FUNCTIONS" in inspect.getsource(kind.forward)
    except (OSError, TypeError):
        return False


def _is_cross_attention(name: str, module: nn.Module) -> bool:
    """Whether keys come from elsewhere: the module says so, or its name does, as of BART and T5."""
    if getattr(module, "is_cross_attention", False) or "Cross" in type(module).__name__:
        return True
    own = ".".join(name.split(".")[-2:]).lower()
    return any(word in own for word in ("cross", "encoder_attn", "encdecattention"))


def _count_heads(module: Any) -> tuple[int, int]:
    """Return the number and the width of the heads of an attention module of transformers."""
    config = module.config
    heads = getattr(module, "num_heads", None) or config.num_attention_heads
    width = getattr(module, "head_dim", None) or getattr(module, "attention_head_size", None)
    return heads, width or config.hidden_size // heads


def _find_position_weights(module: Any) -> tuple[Tensor, Tensor]:
    """Return the weights of the module's query and key projections, which positions pass too."""
    for names in _PROJECTIONS:
        linear: list[Any] = [getattr(module, name, None) for name in names]
        q, k = linear
        if (
            isinstance(q, nn.Linear)
            and isinstance(k, nn.Linear)
            and q.weight.shape == k.weight.shape
        ):
            return q.weight, k.weight
    raise ValueError(
        f"operator: needs projected_positions, but {type(module).__name__} has no linear query "
        "and key projections of equal width"
    )


def _project_positions(module: nn.Module, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Project positions to (..., heads, tokens, width) by the query and the key projection."""
    heads, width = _count_heads(module)
    q, k = (
        F.linear(positions, weight).unflatten(-1, (heads, width)).transpose(-3, -2)
        for weight in _find_position_weights(module)
    )
    return q, k
