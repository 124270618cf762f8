"""Attention as kernel regression of the values."""

from .alibi import (
    ALiBi,
    alibi_slopes,
)
from .balancing import (
    Sinkhorn,
)
from .biased import (
    Biased,
)
from .bilateral import (
    Bilateral,
)
from .elliptical import (
    Elliptical,
    elliptical_weights,
)
from .gaussian import (
    Gaussian,
    gaussian_attention,
)
from .softmax import (
    Softmax,
)
from .tupe import (
    Tupe,
)

__all__ = [
    "ALiBi",
    "Biased",
    "Bilateral",
    "Elliptical",
    "Gaussian",
    "Sinkhorn",
    "Softmax",
    "Tupe",
    "alibi_slopes",
    "elliptical_weights",
    "gaussian_attention",
]
