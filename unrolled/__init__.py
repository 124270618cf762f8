"""Learnable attention layers, each the unrolled form of a solver in `twinsolve.solvers`.

Operators work on (q, k, v) and go into the shell `Attention`; corrections wrap operators. The
bridge to the solvers is `twinsolve.unrolled.twins`, imported by name.
"""

import importlib
from typing import Any

from .attention import (
    Attention,
    Context,
    Correction,
    Operator,
    Positive,
    SoftmaxSmoother,
)
from .boosting import (
    GeneralizedResidual,
    Residual,
    Twicing,
)
from .conditioning import (
    TokenGraying,
)
from .diagnostics import (
    attention_spectrum,
    condition_number,
    gradient_cosine,
    high_frequency_share,
    jacobian_spectrum,
    lipschitz_constant,
    logit_parts,
    map_similarity,
    method_noise_share,
    record,
    regularized_energy,
    smoothness,
    token_similarity,
)
from .fixed_point import (
    ConvergenceWarning,
    FixedPoint,
)
from .image_filters import (
    NonLocalMeansAttention,
)
from .integrations import (
    attach_huggingface,
    register_huggingface,
    replace_attention,
)
from .kernel_smoothing import (
    ALiBi,
    Biased,
    Bilateral,
    CrissCross,
    Elliptical,
    FeatureKernel,
    Gaussian,
    Kernel,
    Linear,
    Local,
    Logistic,
    Sinkhorn,
    Softmax,
    Sparsemax,
    SpatialGaussian,
    Symmetric,
    TopK,
    Tupe,
)
from .locally_linear import (
    LocallyLinear,
)
from .models import (
    Block,
    ClassAttentionTransformer,
    ConvMixer,
    LanguageModel,
    VisionTransformer,
    WindowedTransformer,
    load_huggingface_state_dict,
    load_timm_state_dict,
    sinusoidal_positions,
)
from .named_operators import (
    make_operator,
    operator_names,
    register_operator,
)
from .nonlocal_energy import (
    Neutreno,
)
from .self_expression import (
    DeepSelfExpression,
    LowRank,
    Ridge,
    SelfExpressiveNetwork,
    UnrolledADMM,
    UnrolledSelfExpression,
)
from .solved_operator import (
    Solved,
)
from .sparse_coding import (
    LISTA,
    SparseCoding,
    SparseMixtureOfExperts,
)
from .spectral_filtering import (
    AttnScale,
    FeatScale,
    LayerScale,
    ReAttention,
)

_BY_NAME = ("clustering", "twins")  # and loaded when asked for, with what they need

__all__ = [
    "LISTA",
    "ALiBi",
    "Attention",
    "AttnScale",
    "Biased",
    "Bilateral",
    "Block",
    "ClassAttentionTransformer",
    "Context",
    "ConvMixer",
    "ConvergenceWarning",
    "Correction",
    "CrissCross",
    "DeepSelfExpression",
    "Elliptical",
    "FeatScale",
    "FeatureKernel",
    "FixedPoint",
    "Gaussian",
    "GeneralizedResidual",
    "Kernel",
    "LanguageModel",
    "LayerScale",
    "Linear",
    "Local",
    "LocallyLinear",
    "Logistic",
    "LowRank",
    "Neutreno",
    "NonLocalMeansAttention",
    "Operator",
    "Positive",
    "ReAttention",
    "Residual",
    "Ridge",
    "SelfExpressiveNetwork",
    "Sinkhorn",
    "Softmax",
    "SoftmaxSmoother",
    "Solved",
    "SparseCoding",
    "SparseMixtureOfExperts",
    "Sparsemax",
    "SpatialGaussian",
    "Symmetric",
    "TokenGraying",
    "TopK",
    "Tupe",
    "Twicing",
    "UnrolledADMM",
    "UnrolledSelfExpression",
    "VisionTransformer",
    "WindowedTransformer",
    "attach_huggingface",
    "attention_spectrum",
    "condition_number",
    "gradient_cosine",
    "high_frequency_share",
    "jacobian_spectrum",
    "lipschitz_constant",
    "load_huggingface_state_dict",
    "load_timm_state_dict",
    "logit_parts",
    "make_operator",
    "map_similarity",
    "method_noise_share",
    "operator_names",
    "record",
    "register_huggingface",
    "register_operator",
    "regularized_energy",
    "replace_attention",
    "sinusoidal_positions",
    "smoothness",
    "token_similarity",
]


def __getattr__(name: str) -> Any:
    if name in _BY_NAME:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
