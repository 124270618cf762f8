"""Hugging Face models with attached operators, in a folder; `loading` reads it."""

import functools
import importlib.metadata
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..attention import Operator
from .attached import list_attached, plain
from .descriptions import check_same, describe_operator, make_described, name_class

__doctest_requires__ = {"save_huggingface": ["transformers"]}

RECORD, OPERATORS, FORMAT = "twinsolve", "operators.safetensors", 1
PLACED = "twinsolve_positions"
HINT = (
    "operators of twinsolve are attached; load with "
    "twinsolve.unrolled.integrations.load_huggingface"
)


def save_huggingface(model: Any, folder: str | os.PathLike[str], **options: Any) -> None:
    """Save a Hugging Face model with its attached operators; `load_huggingface` restores both.

    After `attach_huggingface`, ``model.save_pretrained`` is this function, so that a trainer of
    transformers saves complete folders too. Besides what the library writes, ``config.json`` holds
    under "twinsolve" the class of each layer's operator and the arguments that it was made with,
    and ``operators.safetensors`` its parameters, buffers and arguments that are arrays, and
    positions that were given as a tensor. Nothing is pickled. What ``from_pretrained`` of
    transformers reads fails there with a message that names `load_huggingface`: it would give
    the library's attention.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        With operators by `attach_huggingface`. A compiled operator is stored as it was before.
    folder : str or path
        Made if it does not exist. Until the last file is written, it does not load.
    **options
        Those of ``save_pretrained``, but ``push_to_hub``: save first, then call
        ``model.push_to_hub``.

    Raises
    ------
    ValueError
        If no operator is attached, the class of an operator or of the model cannot be imported
        elsewhere (as one of a script or a function), arguments are functions or other objects that
        JSON does not hold, or an operator was changed after it was made. Also if a layer would not
        run its operator, or the model has parts that its class does not make, such as wrappers,
        adapters and parametrizations. Nothing is written then.

    Examples
    --------
    >>> import tempfile, torch
    >>> from transformers import BertConfig, BertModel
    >>> from twinsolve.unrolled import attach_huggingface
    >>> from twinsolve.unrolled.integrations import load_huggingface, save_huggingface
    >>> config = BertConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=2)
    >>> model = BertModel(config).eval()
    >>> model = attach_huggingface(model, "sparse_coding")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_huggingface(model, folder)
    ...     found = load_huggingface(folder)
    >>> ids = torch.tensor([[3, 4, 5]])
    >>> torch.equal(found(ids).last_hidden_state, model(ids).last_hidden_state)
    True
    """
    _check_model(model)
    layers = list_attached(model)
    if not layers:
        raise ValueError(
            f"model: {type(model).__name__} has no attached operators; model.save_pretrained saves "
            "all of it"
        )
    if options.get("push_to_hub"):
        raise ValueError(
            "push_to_hub: must be False; save to a folder, then call model.push_to_hub"
        )
    if getattr(model, "_hf_peft_config_loaded", False):
        raise ValueError(
            "model: must have no adapters, which are saved without the model and its operators"
        )
    from safetensors.torch import save_file

    _check_restorable(model, layers)
    record, tensors = _describe_model(model, layers, options.get("state_dict"))
    type(model).save_pretrained(model, folder, **options)
    if options.get("is_main_process", True):
        save_file(tensors, Path(folder) / OPERATORS)
        _write_record(Path(folder) / "config.json", record)


def guard_saving(model: Any, modules: Iterable[nn.Module]) -> None:
    """Let ``save_pretrained`` save operators, and ``from_pretrained`` refuse a folder without them.

    ``from_pretrained`` reads the attention implementation in ``config.json``, and none has this
    name.
    """
    for config in {id(part.config): part.config for part in (model, *modules)}.values():
        config.attn_implementation = HINT
    model.save_pretrained = functools.partial(save_huggingface, model)


def _check_model(model: Any) -> None:
    """Raise a ValueError unless the model is a PreTrainedModel."""
    if not hasattr(type(model), "save_pretrained"):
        raise ValueError(
            f"model: must be a PreTrainedModel, got {type(model).__name__}; give the model inside"
        )


def _check_restorable(model: Any, layers: Iterable[str]) -> None:
    """Raise a ValueError if the model has parts that its class does not make."""
    if getattr(model.config, "quantization_config", None) is not None:
        return  # the library gives such models other tensors
    with torch.device("meta"):
        fresh = type(model)(model.config)
    operator_prefixes = tuple(f"{layer}.operator." for layer in layers)
    original_tensors = {
        name for name in _list_tensors(model) - {PLACED} if not name.startswith(operator_prefixes)
    }
    if other := sorted(original_tensors ^ _list_tensors(fresh)):
        raise ValueError(
            f"model: cannot be loaded again, as a new {type(model).__name__} differs in {other[0]} "
            f"({len(other)} tensors); save it without wrappers, adapters and parametrizations"
        )


def _list_tensors(model: nn.Module) -> set[str]:
    """Return the names of all parameters and buffers."""
    named = (model.named_parameters, model.named_buffers)
    return {name for list_named in named for name, _ in list_named(remove_duplicate=False)}


def _describe_model(
    model: Any, layers: dict[str, Any], state: dict[str, Tensor] | None
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return what goes into ``config.json``, and the tensors of the operators."""
    state = model.state_dict() if state is None else state
    groups: dict[int, dict[str, Any]] = {}
    tensors: dict[str, Tensor] = {}
    for layer, module in layers.items():
        passes = module.twinsolve_passes
        if id(passes) not in groups:
            positions = _describe_positions(model, passes.positions, tensors)
            groups[id(passes)] = {**positions, "layers": {}}
        try:
            described = _describe_layer(module.operator, f"{layer}.operator", state, tensors)
        except ValueError as error:
            raise ValueError(
                f"operator: that of {layer} cannot be saved, {error}; the tensors alone are in "
                "model.state_dict()"
            ) from error
        groups[id(passes)]["layers"][layer] = described
    record = {
        "format": FORMAT,
        "version": importlib.metadata.version("twinsolve"),
        "model": name_class(type(model)),
        "attached": list(groups.values()),
    }
    return record, tensors


def _describe_layer(
    operator: Operator, name: str, state: dict[str, Tensor], tensors: dict[str, Tensor]
) -> dict[str, Any]:
    """Describe an operator, after a check that its description makes the same operator again."""
    uncompiled: Operator = plain(operator)
    prefix = name if uncompiled is operator else f"{name}._orig_mod"
    described = describe_operator(uncompiled, f"{name}:", tensors)
    restored = make_described(json.loads(json.dumps(described)), tensors)
    operator_state = {
        key: state[f"{prefix}.{key}"].detach().cpu() for key in uncompiled.state_dict()
    }
    try:
        restored.load_state_dict(operator_state, assign=True)
    except RuntimeError as error:
        raise ValueError(
            f"it is not what it was made with: {' '.join(str(error).split())}"
        ) from error
    check_same(uncompiled, restored)
    tensors.update(
        {f"{name}.{key}": value.clone().contiguous() for key, value in operator_state.items()}
    )
    return described


def _describe_positions(
    model: nn.Module, name: str | None, tensors: dict[str, Tensor]
) -> dict[str, Any]:
    """Return the name of the positions in the model; those given as a tensor are stored."""
    parameters = dict(model.named_parameters())
    if name is not None and name not in {**parameters, **dict(model.named_buffers())}:
        raise ValueError(
            f"positions: {name!r} is no tensor of {type(model).__name__}, but of a part of it; "
            "attach operators to the whole model to save it"
        )
    if name == PLACED:
        tensors[PLACED] = getattr(model, PLACED).detach().cpu().clone().contiguous()
    return {"positions": name, "learned": name in parameters}


def _write_record(path: Path, record: dict[str, Any]) -> None:
    """Put the record into ``config.json``, and a hint that ``from_pretrained`` fails with.

    It stands where the name of the file of weights would, for callers who name an attention.
    """
    config = json.loads(path.read_text())
    config |= {RECORD: record, "transformers_weights": HINT}
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    unfinished.replace(path)
