"""Hugging Face models with attached operators, from a folder that `saving` wrote."""

import importlib.metadata
import json
import os
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from ..attention import Operator
from .attached import operator_of
from .descriptions import import_class, make_described
from .huggingface import attach_huggingface, say_what_is_needed
from .saving import FORMAT, OPERATORS, PLACED, RECORD

__doctest_requires__ = {"load_huggingface": ["transformers"]}


def load_huggingface(folder: str | os.PathLike[str]) -> Any:
    """Load a Hugging Face model with the operators that `save_huggingface` saved with it.

    Logits are those of the saved model, as far as the library's own part of it restores itself. The
    model is in evaluation mode and on the CPU, as from ``from_pretrained``. An operator of your own
    is imported from the module that defined it: load only folders that you trust.

    Parameters
    ----------
    folder : str or path
        A local folder.

    Returns
    -------
    transformers.PreTrainedModel
        Of the class that was saved.

    Raises
    ------
    ImportError
        If transformers is not installed.
    ValueError
        If the folder was not written by `save_huggingface` or not to its end, an operator cannot
        be imported or does not take what was stored, or parameters are missing or of wrong shape.

    Warns
    -----
    UserWarning
        As `attach_huggingface`.

    Examples
    --------
    >>> import tempfile
    >>> from transformers import BertConfig, BertModel
    >>> from twinsolve.unrolled import attach_huggingface
    >>> from twinsolve.unrolled.integrations import load_huggingface, save_huggingface
    >>> config = BertConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=2)
    >>> model = BertModel(config).eval()
    >>> model = attach_huggingface(model, "sparse_coding")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_huggingface(model, folder)
    ...     found = load_huggingface(folder)
    >>> type(found.encoder.layer[0].attention.self.operator).__name__
    'SparseCoding'
    """
    folder = Path(folder)
    record = _read_record(folder)
    try:
        return _restore(folder, record)
    except (ValueError, KeyError) as error:
        now = importlib.metadata.version("twinsolve")
        raise ValueError(
            f"folder: {folder} was written by twinsolve {record.get('version')} and cannot be "
            f"loaded by {now}: {error}"
        ) from error


def _read_record(folder: Path) -> dict[str, Any]:
    """Return what `save_huggingface` wrote into config.json."""
    path = folder / "config.json"
    if not path.is_file():
        raise ValueError(f"folder: must be a local folder with config.json, got {str(folder)!r}")
    record = json.loads(path.read_text()).get(RECORD)
    if not isinstance(record, dict):
        raise ValueError(
            f"folder: {folder} holds no operators; it was saved by another function than "
            "save_huggingface, or not to the end"
        )
    return record


def _restore(folder: Path, record: dict[str, Any]) -> Any:
    """Return the model of a record, with its operators and their parameters."""
    try:
        from safetensors import SafetensorError
        from safetensors.torch import load_file
        from transformers import PreTrainedModel
    except ImportError as error:
        raise ImportError(say_what_is_needed()) from error
    if record["format"] != FORMAT:
        raise ValueError(f"its format is {record['format']!r}, and only {FORMAT} is known")
    if not (folder / OPERATORS).is_file():
        raise ValueError(f"{OPERATORS} is missing")
    try:
        tensors = load_file(folder / OPERATORS)
    except SafetensorError as error:
        raise ValueError(f"{OPERATORS} is damaged ({error})") from error
    kind = import_class(record["model"], PreTrainedModel)
    restored = {
        layer: make_described(described, tensors)
        for group in record["attached"]
        for layer, described in group["layers"].items()
    }
    model = _load_library_part(kind, folder)
    for group in record["attached"]:
        _attach_group(model, group, restored, tensors)
    for layer in restored:
        _load_state(operator_of(model.get_submodule(layer)), layer, tensors)
    return model


def _attach_group(
    model: nn.Module, group: dict[str, Any], made: dict[str, Operator], tensors: dict[str, Tensor]
) -> None:
    """Attach the operators of the layers that share a context."""
    if absent := group["layers"].keys() - dict(model.named_modules()).keys():
        raise ValueError(f"{type(model).__name__} has no layer {', '.join(sorted(absent))}")
    positions: Any = group["positions"]
    if positions == PLACED:
        positions = nn.Parameter(tensors[PLACED]) if group["learned"] else tensors[PLACED]
    attach_huggingface(
        model, lambda name: made[name] if name in group["layers"] else None, positions=positions
    )


def _load_library_part(kind: Any, folder: Path) -> Any:
    """Load the model with the library's own attention.

    The weights in its file include those of operators; these are ignored.
    """
    config = kind.config_class.from_pretrained(folder)
    config._attn_implementation = None
    del config.transformers_weights
    delattr(config, RECORD)
    before = kind._keys_to_ignore_on_load_unexpected
    kind._keys_to_ignore_on_load_unexpected = {*(before or ()), r"\.operator\.", f"^{PLACED}$"}
    try:
        model, loading_info = kind.from_pretrained(folder, config=config, output_loading_info=True)
    finally:
        kind._keys_to_ignore_on_load_unexpected = before
    if wrong := sorted({*loading_info["missing_keys"], *loading_info["unexpected_keys"]}):
        raise ValueError(f"weights missing or unexpected: {', '.join(wrong)}")
    return model


def _load_state(operator: nn.Module, layer: str, tensors: dict[str, Tensor]) -> None:
    """Load the parameters and buffers of a layer's operator, in the dtypes that were saved."""
    prefix = f"{layer}.operator."
    state = {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
    try:
        operator.load_state_dict(state, assign=True)  # in the dtypes that were saved
    except RuntimeError as error:
        raise ValueError(f"{layer}: {' '.join(str(error).split())}") from error
