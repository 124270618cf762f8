"""Operators as what JSON and safetensors hold: class, constructor arguments, tensors."""

import inspect
import pkgutil
import sys
from itertools import zip_longest
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..attention import Operator

_PUBLIC = ("twinsolve.unrolled", "transformers")  # files inside may move, these names stay
_FACTORY = ("device", "dtype")  # both follow the model
_PLAIN = (bool, int, float, str, type(None))


def name_class(kind: type) -> str:
    """Return the import path ``module:Name`` of a class.

    A ValueError says if it does not lead back to the class, as for one of a script or of a
    function.
    """
    places = [
        place for place in _PUBLIC if getattr(sys.modules.get(place), kind.__name__, 0) is kind
    ]
    path = f"{places[0]}:{kind.__name__}" if places else f"{kind.__module__}:{kind.__qualname__}"
    findable = kind.__module__ != "__main__" and "<locals>" not in path
    if findable and import_class(path, kind) is kind:
        return path
    raise ValueError(
        f"{path} cannot be imported when the model is loaded; define the class at the top of a "
        "module of its own"
    )


def import_class(path: str, base: type) -> Any:
    """Import the class with the path ``module:Name``, which must be a subclass of `base`."""
    try:
        kind = pkgutil.resolve_name(path)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"{path} cannot be imported ({error})") from error
    if not isinstance(kind, type) or not issubclass(kind, base):
        raise ValueError(f"{path} is no {base.__name__}")
    return kind


def describe_operator(operator: Operator, name: str, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """Return the class and constructor arguments of an operator; arrays go to `tensors` by name.

    Raises
    ------
    ValueError
        If the class cannot be imported, or an argument is neither a number, a string, None, an
        array, an operator nor a sequence of these.
    """
    kind = type(operator)
    args, kwargs = operator.made_with
    signature = inspect.signature(kind)
    arguments = signature.bind(*args, **kwargs).arguments
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            arguments.update(arguments.pop(parameter.name, {}))
        elif parameter.kind is parameter.VAR_POSITIONAL and arguments.pop(parameter.name, ()):
            raise ValueError(f"{kind.__name__}: arguments without a name cannot be stored")
    return {
        "class": name_class(kind),
        "arguments": {
            key: _encode(value, f"{name}.{key}", tensors)
            for key, value in arguments.items()
            if key not in _FACTORY
        },
    }


def _encode(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """Return a constructor argument as JSON holds it; an array goes to `tensors` under `name`."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, Operator):
        return describe_operator(value, name, tensors)
    if isinstance(value, Tensor | np.ndarray):
        tensors[name] = torch.as_tensor(value).detach().cpu().clone().contiguous()
        return {"tensor": name}
    if isinstance(value, list | tuple):
        items = [_encode(item, f"{name}.{i}", tensors) for i, item in enumerate(value)]
        return items if isinstance(value, list) else {"tuple": items}
    raise ValueError(
        f"{name}: must be a number, a string, None, an array, an operator or a sequence of these "
        f"to be stored, got {value!r}"
    )


def make_described(description: Any, tensors: dict[str, Tensor]) -> Operator:
    """Make the operator of a description, at its initial parameters.

    A ValueError says if its class cannot be imported, is no operator or does not take the
    arguments.
    """
    try:
        kind = import_class(description["class"], Operator)
        arguments = {k: _decode(v, tensors) for k, v in description["arguments"].items()}
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{description!r} describes no operator, {error!r}") from error
    try:
        return kind(**arguments)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{description['class']} does not take its arguments: {error}") from error


def _decode(value: Any, tensors: dict[str, Tensor]) -> Any:
    """Return the constructor argument that `_encode` wrote."""
    if isinstance(value, list):
        return [_decode(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    if "tensor" in value:
        return tensors[value["tensor"]]
    if "tuple" in value:
        return tuple(_decode(item, tensors) for item in value["tuple"])
    return make_described(value, tensors)


def check_same(live: Operator, made: Operator) -> None:
    """Raise a ValueError if `live` was changed after construction and so differs from `made`."""
    for (name, a), (other, b) in zip_longest(
        live.named_modules(), made.named_modules(), fillvalue=("", nn.Module())
    ):
        if name != other or type(a) is not type(b):
            raise ValueError(f"{name or other} is not what it was made with")
        changed = [key for key in _list_settings(a) if not _equal(vars(a)[key], vars(b).get(key))]
        buffers = dict(b.named_buffers(recurse=False))
        changed += [k for k, x in a.named_buffers(recurse=False) if not _equal(x, buffers.get(k))]
        changed += _list_replaced(a)
        if changed:
            raise ValueError(
                f"{', '.join(changed)} of {type(a).__name__} changed after it was made: only what "
                "the constructor was given can be stored"
            )


def _list_replaced(module: nn.Module) -> list[str]:
    """Return the names of methods that this module alone replaces by other functions.

    Hooks of accelerate, which move tensors between devices and call the method itself, do not
    count.
    """
    hooked = hasattr(module, "_hf_hook")
    functions = (x for x in vars(module) if inspect.isfunction(getattr(type(module), x, None)))
    return [x for x in functions if not (hooked and x == "forward")]


def _list_settings(module: Any) -> list[str]:
    """Return the names of the attributes that hold constructor arguments."""
    names = inspect.signature(type(module)).parameters
    return [x for x in names if x in vars(module) and x not in _FACTORY]


def _equal(a: Any, b: Any) -> bool:
    """Whether two settings are equal; settings of other kinds than `_PLAIN` count as equal."""
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return torch.equal(a.detach().cpu(), b.detach().cpu().to(a.dtype))
    return not isinstance(a, (*_PLAIN, list, tuple)) or (type(a) is type(b) and bool(a == b))
