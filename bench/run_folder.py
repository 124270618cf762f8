"""A training run as a folder: settings, metrics, checkpoint and weights; nothing is pickled.

Each file is written whole or not at all, so that a run may be killed at any moment.
"""

import inspect
import json
import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save
from torch import Tensor, nn

from ..datasets.files import write_whole
from ..unrolled.generators import kept_generators
from ..unrolled.users_code import import_object
from .provenance import provenance
from .recipe import Recipe
from .terminal import present_folder

SETTINGS, METRICS, CHECKPOINT = "settings.json", "metrics.jsonl", "checkpoint.safetensors"
START, WEIGHTS = "start.safetensors", "weights.safetensors"


def save_tensors(path: Path, tensors: Mapping[str, Tensor], **notes: str) -> None:
    """Save tensors, also those that share memory, with notes in the file's header."""
    own = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    write_whole(path, save(own, metadata=notes))


def load_tensors(path: Path) -> dict[str, Tensor]:
    """Tensors by name.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If the file is damaged; the message names it.
    """
    with _name_damaged_file(path):
        return load_file(path)


def read_notes(path: Path) -> dict[str, str]:
    """The notes in the header of a file of tensors; raises as `load_tensors`."""
    with _name_damaged_file(path), safe_open(path, framework="pt") as file:
        return file.metadata() or {}


@contextmanager
def _name_damaged_file(path: Path) -> Iterator[None]:
    try:
        yield
    except SafetensorError as error:
        raise ValueError(f"{path}: is damaged, it holds no tensors ({error})") from error


def run_settings(
    model: nn.Module, recipe: Recipe, task: Mapping[str, Any], n_processes: int = 1
) -> dict[str, Any]:
    """Settings of a run: recipe, model, task and number of processes.

    The arguments device and dtype of the constructor are left out: weights are moved and cast.

    Raises
    ------
    ValueError
        If the model could not be rebuilt: it does not keep an argument of its constructor as an
        attribute, an argument cannot be written as JSON, or the class is defined in a script or a
        function.
    """
    kind = type(model)
    if kind.__module__ == "__main__" or "<locals>" in kind.__qualname__:
        raise ValueError(
            f"{kind.__name__}: must be a class of a module, to be found again by its name; got one "
            f"of {'a script' if kind.__module__ == '__main__' else 'a function'}"
        )
    kept = {}
    for name, parameter in inspect.signature(kind).parameters.items():
        if name in ("device", "dtype"):
            continue
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise ValueError(f"{kind.__name__}: *{name} cannot be recorded; name each argument")
        if not (hasattr(model, name) and _is_plain(getattr(model, name))):
            raise ValueError(
                f"{kind.__name__}: must keep its argument {name!r} as an attribute of that name, "
                "a number, a string, None or a list or dict of these"
            )
        kept[name] = getattr(model, name)
    settings = {
        "recipe": asdict(recipe),
        "model": {"class": f"{kind.__module__}:{kind.__qualname__}", "arguments": kept},
        "task": dict(task),
        "processes": n_processes,
    }
    return json.loads(json.dumps(settings))


def _is_plain(value: Any) -> bool:
    """Whether a value survives JSON; tuples may become lists."""
    try:
        return json.loads(json.dumps(value)) == (list(value) if type(value) is tuple else value)
    except (TypeError, ValueError):
        return False


def begin_run(folder: Path, settings: Mapping[str, Any], n_steps: int, model: nn.Module) -> None:
    """Start a folder; settings are written last, as their presence marks a complete start."""
    save_tensors(folder / START, model.state_dict())
    threads = {"torch_threads": torch.get_num_threads()}
    content = {**provenance(dict(settings)), **threads, "n_steps": n_steps}
    write_whole(folder / SETTINGS, json.dumps(content, indent=2))


def read_settings(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """Settings of a run, from its folder.

    Raises
    ------
    FileNotFoundError
        If the folder holds no run.
    ValueError
        If the settings are damaged, or belong to another command.
    """
    path = Path(folder) / SETTINGS
    if not path.is_file():
        raise FileNotFoundError(
            f"{folder}: is not the folder of a training run: it has no {SETTINGS}"
        )
    try:
        known = json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path}: is damaged ({error})") from error
    if not ("n_steps" in known and {"recipe", "model", "task"} <= known["settings"].keys()):
        raise ValueError(f"{folder}: is not the folder of a training run, but of another command")
    return known


def steps_begun(folder: Path, settings: Mapping[str, Any]) -> int | None:
    """Number of steps of the run in the folder; None if there is no run.

    Raises
    ------
    ValueError
        If the run has other settings.
    """
    if not (folder / SETTINGS).is_file():
        return None
    known = read_settings(folder)
    held = {"processes": 1} | known["settings"]
    for part, asked in settings.items():
        if held[part] != asked:
            raise ValueError(
                f"{folder}: the {part} of its run is {held[part]}, not {asked}; "
                "name another folder, or remove this one"
            )
    if (threads := known["torch_threads"]) != torch.get_num_threads():
        warnings.warn(
            f"{folder}: was begun with {threads} threads and continues with "
            f"{torch.get_num_threads()}, so that rounding may differ",
            stacklevel=3,
        )
    return known["n_steps"]


def trim_metrics(folder: Path, n_done: int) -> None:
    """Remove rows after the last checkpoint, and rows that are incomplete."""
    path = folder / METRICS
    lines = path.read_text().splitlines() if path.is_file() and n_done else []
    kept = [line for line in lines if line.endswith("}") and json.loads(line)["step"] <= n_done]
    write_whole(path, "".join(f"{line}\n" for line in kept))


def add_metrics(folder: Path, row: Mapping[str, Any]) -> None:
    path = folder / METRICS
    write_whole(path, path.read_text() + json.dumps(row) + "\n")


def read_metrics(folder: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Rows of step, loss, rate, seconds and validation of a run; empty without a file."""
    path = Path(folder) / METRICS
    return [json.loads(x) for x in path.read_text().splitlines()] if path.is_file() else []


def find_object(name: str, lacking: str) -> Any:
    """Import ``package.module:name``, also from the current folder.

    Raises
    ------
    ValueError
        If there is no such object; the message is `lacking`, the name, and why.
    """
    with present_folder():
        return import_object(name, lacking)


def find_class(name: str) -> type[nn.Module]:
    """Import the class of a network, ``package.module:Class``, also from the current folder.

    Raises
    ------
    ValueError
        If there is no such class.
    """
    found = find_object(name, "model: no class")
    if not (isinstance(found, type) and issubclass(found, nn.Module)):
        raise ValueError(f"model: {name!r} is not a torch.nn.Module")
    return found


def load_model(folder: str | os.PathLike[str], weights: str = WEIGHTS) -> nn.Module:
    """Build the model of a run from its folder.

    Parameters
    ----------
    folder : path
        Folder that `twinsolve.bench.training.train` wrote.
    weights : str, default="weights.safetensors"
        File of the averaged weights; ``start.safetensors`` has those at the start.

    Returns
    -------
    nn.Module
        The model in evaluation mode, on the CPU.

    Raises
    ------
    FileNotFoundError
        If the folder holds no run.
    ValueError
        If the class of the model is not found or does not fit the weights.
    """
    said = read_settings(folder)["settings"]["model"]
    with kept_generators():
        model = find_class(said["class"])(**said["arguments"])
    tensors = load_tensors(Path(folder) / weights)
    floating = [tensor.dtype for tensor in tensors.values() if tensor.is_floating_point()]
    try:
        model.to(floating[0]).load_state_dict(tensors)
    except RuntimeError as error:
        raise ValueError(f"{folder}: {weights} does not fit {said['class']} ({error})") from error
    return model.eval()
