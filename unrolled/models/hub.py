"""Models in folders and on the Hugging Face Hub, whose library is imported when it is asked for."""

import copy
import inspect
import json
from functools import lru_cache
from pathlib import Path
from types import new_class
from typing import Any, Self

import torch
from torch import nn

from ..generators import kept_generators

_FOLLOWS = ("device", "dtype")  # the parameters tell them


class OnHub(nn.Module):
    """Base of the models with the methods of ``huggingface_hub.PyTorchModelHubMixin``.

    Attributes
    ----------
    made_with : dict
        Arguments of the constructor, as JSON holds them.
    unstored : dict of str to str
        What the others are.
    """

    made_with: dict[str, Any]
    unstored: dict[str, str]

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        model = super().__new__(cls)
        made_with, unstored = {}, {}
        names = [*inspect.signature(cls.__init__).parameters][1:]
        for name, value in (dict(zip(names, args, strict=False)) | kwargs).items():
            if name in _FOLLOWS:
                continue
            try:
                made_with[name] = json.loads(json.dumps(value))
            except (TypeError, ValueError):
                unstored[name] = repr(value)
        vars(model).update(made_with=made_with, unstored=unstored)
        return model

    def save_pretrained(self, save_directory: str | Path, **options: Any) -> str | None:
        """Save the weights and the constructor's arguments in a folder.

        Parameters
        ----------
        save_directory : str or Path
        **options
            Of ``PyTorchModelHubMixin.save_pretrained``.

        Raises
        ------
        ImportError
            If huggingface_hub is not installed.
        ValueError
            If the model cannot be made again from numbers and names, as with an operator that was
            given as a module, or with parts that were replaced.

        Examples
        --------
        >>> from twinsolve.unrolled import VisionTransformer
        >>> model = VisionTransformer(8, 2, 1, 10, 16, 2, 2, operator="twicing")
        >>> model.save_pretrained("folder")  # doctest: +SKIP
        >>> same = VisionTransformer.from_pretrained("folder")  # doctest: +SKIP
        """
        saved: str | None = self._as_hub_model().save_pretrained(save_directory, **options)
        return saved

    def push_to_hub(self, repo_id: str, **options: Any) -> str:
        """Save as `save_pretrained` does, and upload; options as ``PyTorchModelHubMixin`` takes.

        Parameters
        ----------
        repo_id : str
            Such as "name/of-the-model".
        **options
            Such as `private` or `token`.

        Returns
        -------
        str
            Address of the commit.
        """
        address: str = self._as_hub_model().push_to_hub(repo_id, **options)
        return address

    @classmethod
    def from_pretrained(cls, name: str | Path, *, strict: bool = True, **options: Any) -> Self:
        """Load a model from a folder or from the Hub, in evaluation mode.

        Parameters
        ----------
        name : str or Path
            A folder, or "name/of-the-model".
        strict : bool, default=True
            Whether the weights must be exactly those of the model.
        **options
            Of ``PyTorchModelHubMixin.from_pretrained``, such as `revision` or `map_location`, or
            arguments of the constructor in place of the stored ones.

        Returns
        -------
        nn.Module

        Raises
        ------
        ImportError
            If huggingface_hub is not installed.
        RuntimeError
            If the weights are not those of the model.
        """
        own: Any = cls
        model = _hub_class(own).from_pretrained(name, strict=strict, **options)
        model.__class__ = cls
        vars(model).pop("_hub_mixin_config", None)
        return model

    @kept_generators()
    def _as_hub_model(self) -> Any:
        """Return the model with its parameters as one of a class with the mixin."""
        own: Any = type(self)
        kind = _hub_class(own)
        if self.unstored:
            name, value = next(iter(self.unstored.items()))
            raise ValueError(
                f"{name}: {value} cannot be stored, as only numbers, names and lists of these can; "
                "give an operator by its name, if need be after register_operator"
            )
        dtypes = {x.dtype for x in self.parameters()}
        if len(dtypes) != 1:
            raise ValueError(f"model: must have parameters of one dtype to be stored, got {dtypes}")
        if _parts(self) != _parts(own(**self.made_with, device="meta")):
            raise ValueError(
                "model: has other parts than its constructor's arguments make, and cannot be "
                "stored by these; save its state_dict"
            )
        model: Any = copy.copy(self)
        model.__class__ = kind
        model._hub_mixin_config = self.made_with | {"dtype": _dtype_name(dtypes.pop())}
        return model


def _parts(model: nn.Module) -> tuple[Any, ...]:
    shapes = {name: x.shape for name, x in model.state_dict().items()}
    return [(name, type(part)) for name, part in model.named_modules()][1:], shapes


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


@lru_cache
def _hub_class(kind: Any) -> Any:
    """Return a class of the same name that also has the mixin."""
    try:
        from huggingface_hub import PyTorchModelHubMixin
    except ImportError as error:
        raise ImportError(
            "huggingface_hub is needed here: pip install huggingface_hub safetensors, or the "
            "extra `integrations`"
        ) from error

    coders = {torch.dtype: (_dtype_name, lambda name: getattr(torch, name))}
    settings = {"library_name": "twinsolve", "coders": coders}

    def fill(namespace: dict[str, Any]) -> None:
        namespace["__new__"] = kind.__new__  # that of the mixin would not see the arguments

    return new_class(kind.__name__, (PyTorchModelHubMixin, kind), settings, fill)
