"""Learnable attention layers, each the unrolled form of a solver in `twinsolve.solvers`.

Operators work on (q, k, v) and go into the shell `Attention`; corrections wrap operators. The
bridge to the solvers is `twinsolve.unrolled.twins`, imported by name.
"""

from .attention import (
    Attention,
    Context,
    Correction,
    Operator,
    Positive,
    SoftmaxSmoother,
)
from .boosting import (
    Twicing,
)
from .image_filters import (
    NonLocalMeansAttention,
)
from .kernel_smoothing import (
    Gaussian,
    Softmax,
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
from .sparse_coding import (
    SparseCoding,
)

__all__ = [
    "Attention",
    "Block",
    "ClassAttentionTransformer",
    "Context",
    "ConvMixer",
    "Correction",
    "Gaussian",
    "LanguageModel",
    "LocallyLinear",
    "NonLocalMeansAttention",
    "Operator",
    "Positive",
    "Softmax",
    "SoftmaxSmoother",
    "SparseCoding",
    "Twicing",
    "VisionTransformer",
    "WindowedTransformer",
    "load_huggingface_state_dict",
    "load_timm_state_dict",
    "make_operator",
    "operator_names",
    "register_operator",
    "sinusoidal_positions",
]
