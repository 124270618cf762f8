"""A case: inputs, the float64 reference, and a form of it in torch that has gradients."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

Array = np.ndarray
Arrays = dict[str, Array]
Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class KernelCase:
    """Inputs of a subject, and how its outputs are computed twice.

    Attributes
    ----------
    name, catches : str
        What is special about the inputs, and which fault of a kernel it shows.
    inputs : dict of str to ndarray
        In float64. ``weights`` has the shape of ``out``.
    reference : callable
        ``reference(inputs)`` returns the expected arrays, of which ``out`` is one.
    form : callable
        ``form(tensors)`` returns the same in the dtype of the tensors.
    by : tuple of str
        The inputs with gradients of ``sum(out * weights)``.
    """

    name: str
    catches: str
    inputs: Arrays
    reference: Callable[[Arrays], Arrays]
    form: Callable[[Tensors], Tensors]
    by: tuple[str, ...] = ()


@dataclass(frozen=True)
class Subject:
    """A recurrence or an operator, and its cases.

    Attributes
    ----------
    name, equation, words : str
        Name of the files, equation id, and what is computed.
    cases : list of KernelCase
    settings : dict of str to Any
        Numbers that are the same in all cases.
    tolerance : float
        Of float64, relative to the largest number of an array.
    """

    name: str
    equation: str
    words: str
    cases: list[KernelCase]
    settings: dict[str, Any] = field(default_factory=dict)
    tolerance: float = 1e-10


def round_to_bfloat16(x: Array) -> Array:
    """Return the nearest numbers of bfloat16: inputs are the same in every dtype."""
    return torch.from_numpy(np.array(x)).bfloat16().double().numpy()
