"""Learnable attention layers, each the unrolled form of a solver in `twinsolve.solvers`.

Operators work on (q, k, v) and go into the shell `Attention`; corrections wrap operators. The
bridge to the solvers is `twinsolve.twins`, imported by name.
"""

import importlib
from typing import Any

from .associative_memory import Hopfield
from .attention import Attention, Call, Context, Operator
from .boosting import GeneralizedResidual, Residual, Twicing
from .coding_rate import TokenStatistics
from .conditioning import TokenGraying
from .diagnostics import record
from .fixed_point import FixedPoint
from .image_filters import NonLocalMeansAttention
from .integrations import attach_huggingface, replace_attention
from .kernel_smoothing import (
    ALiBi,
    Biased,
    Bilateral,
    CrissCross,
    Elliptical,
    Gaussian,
    Kernel,
    Linear,
    Linformer,
    Local,
    Logistic,
    Nystrom,
    Sinkhorn,
    Softmax,
    Sparsemax,
    SpatialGaussian,
    Symmetric,
    TopK,
    Tupe,
)
from .locally_linear import LocallyLinear
from .models import (
    ClassAttentionTransformer,
    ConvMixer,
    LanguageModel,
    VisionTransformer,
    WindowedTransformer,
)
from .named_operators import make_operator, operator_names, register_operator
from .nonlocal_energy import ConvexRidge, FilterDiffusion, Neutreno
from .self_expression import (
    DeepSelfExpression,
    LowRank,
    Ridge,
    SelfExpressiveNetwork,
    UnrolledADMM,
    UnrolledSelfExpression,
)
from .solved import solved_lasso
from .solved_operator import Solved
from .sparse_coding import LISTA, SparseCoding, SparseMixtureOfExperts
from .spectral_filtering import AttnScale, FeatScale, ReAttention

_BY_NAME = ("clustering",)  # loaded only when asked for, as is all that it imports

__all__ = [
    "LISTA",
    "ALiBi",
    "Attention",
    "AttnScale",
    "Biased",
    "Bilateral",
    "Call",
    "ClassAttentionTransformer",
    "Context",
    "ConvMixer",
    "ConvexRidge",
    "CrissCross",
    "DeepSelfExpression",
    "Elliptical",
    "FeatScale",
    "FilterDiffusion",
    "FixedPoint",
    "Gaussian",
    "GeneralizedResidual",
    "Hopfield",
    "Kernel",
    "LanguageModel",
    "Linear",
    "Linformer",
    "Local",
    "LocallyLinear",
    "Logistic",
    "LowRank",
    "Neutreno",
    "NonLocalMeansAttention",
    "Nystrom",
    "Operator",
    "ReAttention",
    "Residual",
    "Ridge",
    "SelfExpressiveNetwork",
    "Sinkhorn",
    "Softmax",
    "Solved",
    "SparseCoding",
    "SparseMixtureOfExperts",
    "Sparsemax",
    "SpatialGaussian",
    "Symmetric",
    "TokenGraying",
    "TokenStatistics",
    "TopK",
    "Tupe",
    "Twicing",
    "UnrolledADMM",
    "UnrolledSelfExpression",
    "VisionTransformer",
    "WindowedTransformer",
    "attach_huggingface",
    "make_operator",
    "operator_names",
    "record",
    "register_operator",
    "replace_attention",
    "solved_lasso",
]


def __getattr__(name: str) -> Any:
    if name in _BY_NAME:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
