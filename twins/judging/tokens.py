"""The tokens of a layer that is judged, as it takes them."""

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from ...solvers.inputs import as_numbers
from ...unrolled.attention import Attention
from ...unrolled.integrations.replacements import FusedProjectionAttention
from ..heads import Tensors

Shell = Attention | FusedProjectionAttention


def as_dense(X: ArrayLike | Tensor, name: str) -> Tensor:
    """Return numbers as a dense Tensor on the CPU; those of NumPy become float32 or float64."""
    if isinstance(X, Tensor):
        data = X.detach().cpu()
        return data if data.layout == torch.strided else data.to_dense()
    array = as_numbers(X, name)
    wide = np.complex128 if array.dtype.kind == "c" else np.float64
    # The order of bytes is that of this machine then, too.
    return torch.from_numpy(array.astype(np.float32 if array.dtype.str[1:] == "f4" else wide))


def as_tensor(layer: nn.Module, X: ArrayLike | Tensor) -> Tensor:
    """Return X as a Tensor in the dtype of the layer, which becomes float64 if it is narrow."""
    data = as_dense(X, "X")
    if data.is_complex():
        raise ValueError(f"X: must hold real numbers, got {data.dtype}")
    if not data.is_floating_point() or data.dtype not in (torch.float32, torch.float64):
        data = data.double()
    if not len(data):
        raise ValueError("X: must have at least one token")
    if not bool(data.isfinite().all()):
        raise ValueError("X: must not hold NaN or infinity")
    dtypes = [x.dtype for x in (*layer.parameters(), *layer.buffers()) if x.is_floating_point()]
    if dtypes and dtypes[0] not in (torch.float32, torch.float64):
        layer.double()
        return data.double()
    return data.to(dtypes[0]) if dtypes else data


def check_tokens(data: Tensor, layer: nn.Module) -> None:
    """Raise a ValueError unless X is one sequence of tokens, of the layer's width."""
    if data.ndim != 2:
        hint = "; pass one sequence of a batch, such as X[0]" if data.ndim > 2 else ""
        raise ValueError(f"X: must have shape (n_tokens, dim), got shape {tuple(data.shape)}{hint}")
    if not isinstance(layer, Shell):
        return
    width = layer.embed_dim if isinstance(layer, Attention) else layer.qkv.in_features
    if data.shape[1] != width:
        raise ValueError(f"X: must have {width} columns, got {data.shape[1]}")


def count_heads(layer: nn.Module) -> int:
    return max((getattr(m, "num_heads", None) or 1 for m in layer.modules()), default=1)


def project_tokens(shell: Shell, data: Tensor) -> Tensors:
    """Return the queries, keys and values that the operator of a shell gets, for each head."""
    check_tokens(data, shell)
    fused = isinstance(shell, FusedProjectionAttention)
    with torch.no_grad():
        q, k, v = shell.project(*(data[None],) * (1 if fused else 3))
    return q[0], k[0], v[0]
