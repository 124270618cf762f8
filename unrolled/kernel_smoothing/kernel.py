"""Kernel smoothing with any positive kernel."""

from collections.abc import Callable

import torch
from torch import Tensor

from ..attention import Call, Positive, SoftmaxSmoother, map_query_blocks
from .pair_distances import distances, squared_distances
from .query_blocks import block_softmax

LogKernel = Callable[[Tensor, Tensor], Tensor]


_LOG_KERNELS: dict[str, LogKernel] = {
    "exponential": lambda q, k: q @ k.mT,
    "gaussian": lambda q, k: -squared_distances(q, k) / 2,
    "laplace": lambda q, k: -distances(q, k),
}


class Kernel(SoftmaxSmoother):
    """Nadaraya-Watson regression of the values with any positive kernel.

    ``A_ij = K(q_i / s, k_j / s) / sum_l K(q_i / s, k_l / s)`` with the bandwidth s and

    ===========  =====================
    exponential  ``exp(q . k)``
    gaussian     ``exp(-|q - k|^2 / 2)``
    laplace      ``exp(-|q - k|)``
    ===========  =====================

    The matrix is built explicitly, in blocks of queries that are recomputed in the backward pass:
    quadratic time, linear memory. `Gaussian` and `Softmax` are fused forms of two of these kernels,
    and `FeatureKernel` serves kernels that are products of features in linear time.

    Parameters
    ----------
    kernel : {"exponential", "gaussian", "laplace"} or callable
        A callable takes queries (..., n_queries, d) and keys (..., n_keys, d), already divided by
        the bandwidth and in float32 at least, and gives the logarithms of the weights, of shape
        (..., n_queries, n_keys). It is called on blocks of queries, so rows must be separate.
    bandwidth : float
        s > 0. At ``head_dim ** 0.25`` the exponential kernel is scaled dot-product attention.
    num_heads : int, optional
        One bandwidth a head instead of one for all.
    learnable : bool, default=False
        Train the bandwidth (its logarithm).

    Raises
    ------
    ValueError
        If there is no kernel of that name, a callable gives another shape, or `bandwidth` is not
        positive.

    References
    ----------
    EQUATIONS SE-5, QK-kernel. "exp(-dist^2)" covers the Laplace kernel only with
    ``dist^2 = |q - k|`` (erratum E3-n).

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled import Kernel
    >>> q, k = torch.tensor([[0.0]]), torch.tensor([[0.0], [1.0]])
    >>> student = Kernel(lambda q, k: -torch.log1p(torch.cdist(q, k) ** 2), 1.0)
    >>> student.matrix(q, k)
    tensor([[0.6667, 0.3333]])
    """

    def __init__(
        self,
        kernel: str | LogKernel,
        bandwidth: float,
        *,
        num_heads: int | None = None,
        learnable: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if not callable(kernel) and kernel not in _LOG_KERNELS:
            known = ", ".join(_LOG_KERNELS)
            raise ValueError(f"kernel: must be a callable or one of {known}, got {kernel!r}")
        self.kernel = kernel
        self.bandwidth = Positive(
            bandwidth,
            name="bandwidth",
            num_heads=num_heads,
            learnable=learnable,
            device=device,
            dtype=dtype,
        )

    def logits(self, call: Call) -> Tensor:
        return self._logits(*self._scaled(call.q, call.k))

    def _scaled(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        wide = torch.promote_types(q.dtype, torch.float32)
        bandwidth = self.bandwidth().to(wide)
        return q.to(wide) / bandwidth, k.to(wide) / bandwidth

    def _logits(self, q: Tensor, k: Tensor) -> Tensor:
        log_kernel = self.kernel if callable(self.kernel) else _LOG_KERNELS[self.kernel]
        logits = log_kernel(q, k)
        if logits.shape[-2:] != (q.shape[-2], k.shape[-2]):
            raise ValueError(
                f"kernel: must give logarithms of shape (..., {q.shape[-2]}, {k.shape[-2]}), got "
                f"{tuple(logits.shape)}"
            )
        return logits

    def attend(self, call: Call) -> Tensor:
        (q, k), v = self._scaled(call.q, call.k), call.v

        def block(rows: Tensor, start: int) -> Tensor:
            visible = call.pairs_of(rows, start)
            return block_softmax(self._logits(rows, k), visible).to(v.dtype) @ v

        return map_query_blocks(block, q)

    def extra_repr(self) -> str:
        return f"kernel={self.kernel!r}"
