"""Putting operators into models that have attention of their own."""

import warnings
from collections.abc import Container
from typing import Any

from torch import Tensor, nn

from ..attention import Attention, Operator
from ..kernel_smoothing import Softmax
from .choice import Chooser, check_needs, choose, place_positions, takes_name
from .forward_passes import ForwardPasses
from .huggingface import calls_interface
from .replacements import FusedProjectionAttention, MultiheadReplacement, heads_of, parameter_of
from .verification import Mismatch, check_arguments, compare_fused, compare_multihead

_OURS = (Attention, FusedProjectionAttention, MultiheadReplacement)
_FUSED_PARTS = {"qkv", "q_norm", "k_norm", "norm", "proj", "proj_drop"}
_HOOKS = [name for name in vars(nn.Module()) if "forward" in name or "backward" in name]
_MULTIHEAD_PARTS = {"in_proj_weight", "in_proj_bias", "out_proj"} | {
    f"{name}_proj_weight" for name in "qkv"
}


def replace_attention(
    model: nn.Module, operator: Chooser, *, positions: str | Tensor | None = None
) -> nn.Module:
    """Put an operator into every self attention of a model, with the model's own projections.

    It replaces modules with linear ``qkv`` and ``proj`` and a ``num_heads``, as in vision
    transformers (it keeps ``scale``, ``q_norm``, ``k_norm``, ``norm`` and ``proj_drop``),
    ``nn.MultiheadAttention`` in all its layouts, and our `Attention`. With ``Softmax()`` the model
    computes what it did before. To make sure, a copy of each module with random weights runs on
    random tokens first, in evaluation and in training mode and with the masks that it takes. If one
    differs by more than rounding, nothing is replaced. Parameters are the same objects under the
    same names, and hooks stay: optimizers stay valid, and earlier checkpoints load, for which
    learnable operators keep their values. Another call puts in another operator. Projections that
    an operator does not read, such as that of the queries of ``Symmetric()``, stay in the model and
    get zero gradients.

    Weights that were trained with softmax attention do not fit another operator: expect the model
    to lose accuracy, much of it with sparse coding or ridge regression, until it is tuned.

    The cross attention of ``nn.TransformerDecoderLayer`` is left alone unless `operator` is a
    function of names and returns something for it. Dropout of attention weights is not applied; a
    warning says so. Layers of an operator that shares state between them (first or previous values)
    share it within one call of `model`, and of one ``nn.TransformerEncoder`` or ``Decoder`` in it.
    Such layers may be checkpointed with ``use_reentrant=False`` where each backward pass comes
    before the next forward pass with gradients; else they raise in the backward pass. PyTorch's
    encoder then computes padding tokens instead of setting them to zero, as it cannot take its
    nested fast path.

    Our own backbones add no positions to tokens if an operator takes them as separate features
    (`Operator.positions_apart`: bilateral, TUPE, ALiBi). Other models still add theirs to the
    tokens, so that such operators count them twice. To avoid that, set the model's to zero and pass
    a copy, as in the last example.

    Parameters
    ----------
    model : nn.Module
        Changed in place.
    operator : str, Operator or callable
        A name of `operator_names`; an operator, copied for each layer; a factory
        ``(num_heads, head_dim) -> Operator``; or a function of the layer's dotted name that
        returns one of these, or None to leave the layer alone.
    positions : str or Tensor, optional
        Position features (..., tokens, dim) for operators that need them: the dotted name of a
        parameter or buffer of the model, or a tensor, which becomes a buffer outside the state
        dict; an ``nn.Parameter`` becomes a parameter. There must be as many as tokens: of more, it
        is not known which are meant, as tokens may be those of a window.

    Returns
    -------
    nn.Module
        `model`; or the replacement, if `model` itself is an attention module.

    Raises
    ------
    ValueError
        If there is no attention, or one that cannot be replaced: the message names it, its class,
        and what differs. Attention that ``torch.compile`` wraps is one of these. Nothing
        is changed then; a function of names can leave such a layer alone.

    Warns
    -----
    UserWarning
        If the model has dropout of attention weights, or adds positions to its tokens and an
        operator takes them as features too.

    References
    ----------
    EQUATIONS SE-1 to SE-4.

    Examples
    --------
    >>> import torch
    >>> from torch import nn
    >>> from twinsolve.unrolled import replace_attention
    >>> layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True)
    >>> model = replace_attention(nn.TransformerEncoder(layer, 2), "twicing")
    >>> model.layers[0].self_attn.operator
    Twicing(
      (base): Softmax(scale=head_dim ** -0.5)
    )
    >>> model(torch.randn(2, 10, 16)).shape
    torch.Size([2, 10, 16])

    >>> model.pos_embed = nn.Parameter(torch.randn(10, 16))  # stands for one that is added
    >>> positions = nn.Parameter(model.pos_embed.detach().clone())
    >>> _ = model.pos_embed.requires_grad_(False).zero_()
    >>> model = replace_attention(model, "bilateral", positions=positions)
    """
    chosen = _choose_all(model, operator, positions)
    if not chosen:
        raise ValueError(
            f"model: no self attention to replace in {type(model).__name__} (linear qkv and proj "
            "with num_heads, or nn.MultiheadAttention); for Hugging Face models there is "
            "attach_huggingface"
        )
    if dropouts := [name for name, (module, _) in chosen.items() if _get_dropout(module) > 0]:
        warnings.warn(
            f"replace_attention: dropout of attention weights is not applied ({len(dropouts)} "
            f"layers, such as {dropouts[0] or 'the model'}): rows would no longer sum to one",
            stacklevel=2,
        )
    foreign = [x for module, x in chosen.values() if type(module) is not Attention]
    passes = ForwardPasses(place_positions(model, positions, foreign))
    cross, original = _find_cross_attention(model), model
    replacements: dict[int, nn.Module] = {}
    for name, (module, layer_operator) in chosen.items():
        if id(module) not in replacements:
            replacements[id(module)] = _make_replacement(
                module, layer_operator, ForwardPasses() if id(module) in cross else passes
            )
        model = _put_module(model, name, replacements[id(module)])
    if model is not original and passes.positions == "twinsolve_positions":
        place_positions(model, positions, [])
    _refuse_nested_tensors(model)
    if any(layer_operator.needs for _, layer_operator in chosen.values()):
        passes.watch(model)
    return model


def _choose_all(
    model: nn.Module, operator: Chooser, positions: str | Tensor | None
) -> dict[str, tuple[nn.Module, Operator]]:
    """Return, by name, each attention to be replaced with its operator, after all checks."""
    cross = _find_cross_attention(model)
    picked: dict[str, tuple[nn.Module, Any]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        if not _is_attention(module) or (id(module) in cross and not takes_name(operator)):
            continue
        choice: Any = operator
        if takes_name(operator):
            choice = choice(name)
        if choice is not None:
            _refuse_compiled(name)
            picked[name] = module, choice
    _refuse_hugging_face(model, picked, operator)
    for name, module in {id(m): (n, m) for n, (m, _) in reversed(picked.items())}.values():
        _check_served(module, name)
    chosen: dict[str, tuple[nn.Module, Operator]] = {}
    for name, (module, choice) in picked.items():
        candidate = choose(choice, name, *heads_of(module))
        assert candidate is not None
        check_needs(candidate, name, positions is not None or type(module) is Attention)
        _check_projected(module, candidate, name)
        if id(module) in cross and (
            candidate.square_only or candidate.needs or candidate.positional
        ):
            raise ValueError(
                f"operator: {type(candidate).__name__} cannot serve the cross attention {name}; "
                "return None for it"
            )
        chosen[name] = module, candidate
    return chosen


def _refuse_compiled(name: str) -> None:
    """Raise a ValueError for attention inside torch.compile, which would go on running."""
    before, _, last = name.rpartition(".")
    if last == "_orig_mod":
        raise ValueError(
            f"model: the attention at {before!r} is compiled, and its compiled form would still "
            "run; replace it first and compile then"
        )


def _check_projected(module: Any, made: Operator, name: str) -> None:
    """Raise a ValueError if an operator reads a projection that a shell of ours lacks."""
    missing = [part for part in made.reads if part not in getattr(module, "projected", "qkv")]
    if missing:
        raise ValueError(
            f"operator: {type(made).__name__} reads {' and '.join(missing)}, which the attention "
            f"at {name!r} does not project"
        )


def _is_attention(module: nn.Module) -> bool:
    known = isinstance(module, nn.MultiheadAttention | Attention)
    return known or "qkv" in dict(module.named_children())


def _find_cross_attention(model: nn.Module) -> set[int]:
    layers = (m for m in model.modules() if isinstance(m, nn.TransformerDecoderLayer))
    return {id(layer.multihead_attn) for layer in layers}


def _refuse_hugging_face(model: nn.Module, picked: Container[str], operator: Chooser) -> None:
    """Raise a ValueError if Hugging Face transformers run an attention that was not picked."""
    for name, module in model.named_modules():
        if calls_interface(module) and name not in picked and not takes_name(operator):
            raise ValueError(
                f"model: the attention at {name!r} ({type(module).__name__}) is one of Hugging "
                "Face transformers: use attach_huggingface"
            )


def _check_served(module: Any, name: str) -> None:
    """Raise a ValueError unless attention computes softmax(q k^T) v between its projections."""
    try:
        if isinstance(module, nn.MultiheadAttention):
            _check_multihead(module)
        elif type(module) not in _OURS:
            _check_fused(module)
    except Mismatch as error:
        hint = "; for Hugging Face models there is attach_huggingface"
        raise ValueError(
            f"model: the attention at {name!r} ({type(module).__name__}) {error}: not served"
            f"{hint if calls_interface(module) else ''}"
        ) from error


def _check_multihead(module: nn.MultiheadAttention) -> None:
    """Raise a Mismatch unless this is nn.MultiheadAttention in a form that can be replaced."""
    if type(module).forward is not nn.MultiheadAttention.forward:
        raise Mismatch("has a forward of its own")
    if module.bias_k is not None:
        raise Mismatch("has add_bias_kv=True")
    if module.add_zero_attn:
        raise Mismatch("has add_zero_attn=True")
    _refuse_tensors(module, _MULTIHEAD_PARTS)
    compare_multihead(module, lambda twin: MultiheadReplacement(twin, Softmax(), ForwardPasses()))


def _check_fused(module: Any) -> None:
    """Raise a Mismatch unless the module is attention with linear qkv and proj."""
    if isinstance(module, _OURS):
        raise Mismatch("is of a class of its own")
    for name in ("qkv", "proj"):
        if not isinstance(part := getattr(module, name, None), nn.Linear):
            raise Mismatch(f"has {type(part).__name__} as {name} instead of Linear")
    if not isinstance(heads := getattr(module, "num_heads", None), int):
        raise Mismatch(f"has num_heads {heads!r} instead of a whole number")
    _refuse_tensors(module, _FUSED_PARTS)
    heads, width = heads_of(module)
    if (module.qkv.out_features, module.proj.in_features) != (3 * heads * width, heads * width):
        raise Mismatch("has heads of unequal number or width in qkv and proj")
    check_arguments(module, FusedProjectionAttention)
    compare_fused(module, lambda twin: FusedProjectionAttention(twin, Softmax(), ForwardPasses()))


def _refuse_tensors(module: nn.Module, parts: set[str]) -> None:
    """Raise a Mismatch if the module has tensors outside of its known parts."""
    tensors = (*module.named_parameters(), *module.named_buffers())
    if extra := [name for name, _ in tensors if name.split(".")[0] not in parts]:
        raise Mismatch(f"has {', '.join(extra)}")


def _get_dropout(module: nn.Module) -> float:
    """Return the dropout rate of an attention module's weights."""
    if isinstance(module, nn.MultiheadAttention):
        return module.dropout
    dropout = getattr(module, "attn_drop", 0.0)
    return float(dropout.p if isinstance(dropout, nn.Dropout) else dropout)


def _make_replacement(module: Any, operator: Operator, passes: ForwardPasses) -> nn.Module:
    """Return the module that replaces attention, with its parameters and hooks."""
    like = parameter_of(module)
    operator = operator.to(device=like.device, dtype=like.dtype)
    multihead = isinstance(module, nn.MultiheadAttention | Attention)
    kind = MultiheadReplacement if multihead else FusedProjectionAttention
    new = kind(module, operator, passes)
    for name in _HOOKS:  # the same dictionaries, from which the handles of the hooks remove them
        vars(new)[name] = vars(module)[name]
    return new.train(module.training)


def _refuse_nested_tensors(model: nn.Module) -> None:
    """Keep encoders with replaced attention from passing it nested tensors."""
    for part in model.modules():
        if isinstance(part, nn.TransformerEncoder) and any(
            isinstance(inner, MultiheadReplacement) for inner in part.modules()
        ):
            part.use_nested_tensor = False


def _put_module(model: nn.Module, name: str, new: nn.Module) -> nn.Module:
    """Put a module at a dotted name; return the model, or `new` if the name is empty."""
    if not name:
        return new
    model.set_submodule(name, new)
    return model
