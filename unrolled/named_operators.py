"""Operators by name, for models, plugging in and benchmarks."""

import copy
from typing import Any

from .associative_memory import Hopfield
from .attention import Operator
from .attention.names import FACTORIES as _FACTORIES
from .attention.names import Factory, operator_factory
from .boosting import Twicing
from .coding_rate import CodingRate, SubspaceSelfAttention, TokenStatistics
from .kernel_smoothing import (
    ALiBi,
    Bilateral,
    CrissCross,
    Elliptical,
    Entmax,
    FeatureKernel,
    Gaussian,
    Kernel,
    Linear,
    Local,
    Logistic,
    Nystrom,
    Sinkhorn,
    Softmax,
    Sparsemax,
    SpatialGaussian,
    Symmetric,
    TalkingHeads,
    TopK,
    Tupe,
)
from .locally_linear import LocallyLinear
from .nonlocal_energy import Neutreno
from .online_regression import (
    DeltaRule,
    GatedLinear,
    HeavyBall,
    LocalLinear,
    Mesa,
    MiniBatch,
    ProximalPoint,
)
from .self_expression import LowRank, Ridge
from .sparse_coding import SparseCoding
from .spectral_filtering import AttnScale, ReAttention

OperatorLike = str | Operator | Factory

# Each takes (num_heads, head_dim); parameters are at their origin, learnable where papers learn.
_FACTORIES |= {
    "alibi": lambda heads, dim: ALiBi(heads),
    "attn_scale": lambda heads, dim: AttnScale(Softmax(), num_heads=heads),
    "bilateral": lambda heads, dim: Bilateral(
        dim**0.25, dim**0.25, num_heads=heads, learnable=True
    ),
    "coding_rate": lambda heads, dim: CodingRate(
        0.1, relative=True, num_heads=heads, learnable=True
    ),
    "criss_cross": lambda heads, dim: CrissCross(),
    "delta_rule": lambda heads, dim: DeltaRule(),
    "elliptical": lambda heads, dim: Elliptical(),
    "entmax": lambda heads, dim: Entmax(num_heads=heads, learnable=True),
    "feature_kernel": lambda heads, dim: FeatureKernel(),
    "gated_delta_rule": lambda heads, dim: DeltaRule("token"),
    "gated_linear": lambda heads, dim: GatedLinear(),
    "gaussian": lambda heads, dim: Gaussian(),
    "heavy_ball": lambda heads, dim: HeavyBall(),
    "hopfield": lambda heads, dim: Hopfield(3),
    "kernel": lambda heads, dim: Kernel("laplace", dim**0.5),
    "linear": lambda heads, dim: Linear(),
    "local": lambda heads, dim: Local(7),
    "local_linear": lambda heads, dim: LocalLinear(),
    "locally_linear": lambda heads, dim: LocallyLinear(16),
    "logistic": lambda heads, dim: Logistic(dim, num_heads=heads),
    "low_rank": lambda heads, dim: LowRank(0.1, relative=True, num_heads=heads, learnable=True),
    "mesa": lambda heads, dim: Mesa(num_heads=heads, learnable=True),
    "mini_batch": lambda heads, dim: MiniBatch(),
    "neutreno": lambda heads, dim: Neutreno(Softmax()),
    "nystrom": lambda heads, dim: Nystrom(32),
    "proximal_point": lambda heads, dim: ProximalPoint(),
    "re_attention": lambda heads, dim: ReAttention(Softmax(), heads),
    "ridge": lambda heads, dim: Ridge(0.1, relative=True, num_heads=heads, learnable=True),
    "sinkhorn": lambda heads, dim: Sinkhorn(Softmax()),
    "softmax": lambda heads, dim: Softmax(),
    "sparse_coding": lambda heads, dim: SparseCoding(
        0.5, relative=True, num_heads=heads, learnable=True
    ),
    "sparsemax": lambda heads, dim: Sparsemax(),
    "spatial_gaussian": lambda heads, dim: SpatialGaussian(2.0, num_heads=heads, learnable=True),
    "subspace_self_attention": lambda heads, dim: SubspaceSelfAttention(),
    "symmetric": lambda heads, dim: Symmetric(),
    "talking_heads": lambda heads, dim: TalkingHeads(heads),
    "token_statistics": lambda heads, dim: TokenStatistics(
        1 / dim, num_heads=heads, learnable=True
    ),
    "top_k": lambda heads, dim: TopK(16),
    "tupe": lambda heads, dim: Tupe(heads * dim, heads),
    "twicing": lambda heads, dim: Twicing(Softmax()),
}


def operator_names() -> list[str]:
    """Names that `make_operator` knows, sorted.

    Examples
    --------
    >>> from twinsolve.unrolled import operator_names
    >>> "twicing" in operator_names()
    True
    """
    return sorted(_FACTORIES)


def make_operator(name: str, *, num_heads: int, head_dim: int) -> Operator:
    """Make the operator of a name for a layer of given size, at its initial parameters.

    Parameters
    ----------
    name : str
        One of `operator_names`. Corrections wrap softmax attention; "criss_cross", "local" and
        "spatial_gaussian" use the grid of the model around them, or else take tokens as a sequence.
        The penalties of "sparse_coding", "ridge" and "low_rank" are relative to the keys: about a
        quarter of the entries are not zero, and about half of the directions are kept, at any width
        and depth.
    num_heads, head_dim : int
        Of the layer, for operators with parameters of these sizes.

    Returns
    -------
    Operator

    Raises
    ------
    ValueError
        If there is no operator of that name; the message lists those that there are.

    Examples
    --------
    >>> from twinsolve.unrolled import make_operator
    >>> make_operator("twicing", num_heads=4, head_dim=16)
    Twicing(
      (base): Softmax(scale=head_dim ** -0.5)
    )
    """
    return operator_factory(name)(num_heads, head_dim)


def made_operator(choice: OperatorLike, num_heads: int, head_dim: int) -> Operator:
    """Return a new operator for a layer of this size: by name, as a copy, or from a factory."""
    operator: Any = choice
    if isinstance(choice, str):
        return make_operator(choice, num_heads=num_heads, head_dim=head_dim)
    if isinstance(choice, Operator):
        return copy.deepcopy(choice)
    if callable(choice) and not isinstance(choice, type):
        operator = choice(num_heads, head_dim)
    if isinstance(operator, Operator):
        return operator
    got = f"the class {operator.__name__}" if isinstance(operator, type) else repr(operator)
    raise ValueError(
        "operator: must be a name, an Operator such as Softmax(), or a factory (num_heads, "
        f"head_dim) -> Operator; got {got}"
    )


def register_operator(name: str, factory: Factory) -> None:
    """Add an operator of one's own under a name.

    Parameters
    ----------
    name : str
        A name that is not taken yet.
    factory : callable
        ``factory(num_heads, head_dim)`` makes the operator.

    Raises
    ------
    ValueError
        If the name is taken.

    Examples
    --------
    >>> from twinsolve.unrolled import Softmax, make_operator, register_operator
    >>> register_operator("sharp", lambda num_heads, head_dim: Softmax(scale=1.0))
    >>> make_operator("sharp", num_heads=2, head_dim=8)
    Softmax(scale=1)
    """
    if name in _FACTORIES:
        raise ValueError(f"name: an operator {name!r} is registered already")
    _FACTORIES[name] = factory
