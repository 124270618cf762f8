"""Parts of networks by name, the same for images, text and sequences."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from .. import unrolled
from ..unrolled import Solved, SparseMixtureOfExperts
from ..unrolled.attention import Context, Operator
from ..unrolled.attention.names import Factory, operator_factory
from ..unrolled.boosting import GeneralizedResidual, Residual, Twicing
from ..unrolled.conditioning import TokenGraying
from ..unrolled.generators import seeded
from ..unrolled.nonlocal_energy import Neutreno
from ..unrolled.spectral_filtering import AttnScale, FeatScale, LayerScale, ReAttention
from .names import split_part

BALANCE = 0.01  # weight of the balance loss, as in Fedus et al. (2022)
_TOP_K = 2

Network = TypeVar("Network", bound=nn.Module)
Seen = list[tuple[SparseMixtureOfExperts, Tensor]]


def mixture_maker(n_experts: int, mlp_ratio: float) -> Callable[[int], nn.Module]:
    """Make mixtures whose chosen experts together are as wide as the plain feed-forward part."""

    def make(dim: int) -> nn.Module:
        return SparseMixtureOfExperts(dim, n_experts, round(mlp_ratio * dim / _TOP_K), _TOP_K)

    return make


@contextmanager
def tokens_of_experts(model: nn.Module) -> Iterator[Seen]:
    """Collect the mixtures that run inside the context, each with its input tokens."""
    seen: Seen = []

    def keep(layer: SparseMixtureOfExperts, inputs: tuple[Tensor]) -> None:
        seen.append((layer, inputs[0]))

    with ExitStack() as stack:
        for part in model.modules():
            if isinstance(part, SparseMixtureOfExperts):
                stack.callback(part.register_forward_pre_hook(keep).remove)
        yield seen


def balance_loss(seen: Seen) -> Any:
    """The weighted balance loss of the mixtures that ran; 0 if none ran."""
    return BALANCE * sum(layer.balance_loss(tokens) for layer, tokens in seen)


_CORRECTIONS: dict[str, Callable[..., Operator]] = {
    "attn_scale": lambda base, heads, **settings: AttnScale(base, num_heads=heads, **settings),
    "neutreno": lambda base, heads, **settings: Neutreno(base, **settings),
    "re_attention": lambda base, heads, **settings: ReAttention(base, heads, **settings),
    "solved": lambda base, heads, **settings: Solved(base, **settings),
    "twicing": lambda base, heads, **settings: Twicing(base, **settings),
}
_SCALES = {"FeatScale": FeatScale, "LayerScale": LayerScale}
_RESIDUALS = {"plain": Residual, "boosting": GeneralizedResidual}
_GRAYINGS = {"dct": partial(TokenGraying, "dct"), "svd": partial(TokenGraying, "svd")}


class DropPath(nn.Module):
    """A residual connection that drops its branch for some samples in training."""

    def __init__(self, residual: nn.Module, rate: float) -> None:
        super().__init__()
        self.residual, self.rate = residual, rate

    @property
    def needs_history(self) -> bool:
        return bool(getattr(self.residual, "needs_history", False))

    def forward(self, x: Tensor, y: Tensor, context: Context | None = None) -> Tensor:
        if self.training and self.rate:
            kept = torch.rand(len(y), *[1] * (y.ndim - 1), device=y.device) >= self.rate
            y = y * kept / (1 - self.rate)
        return self.residual(x, y, context)


class NetworkOfParts(nn.Module):
    """A network of `twinsolve.unrolled.models` whose parts are named in plain words.

    Parameters
    ----------
    options : dict
        ``operator``, ``correction``, ``residual`` and so on, as `resolve_options` takes them, and
        what the class `kind` takes.

    Raises
    ------
    ValueError
        If an option is unknown.
    """

    kind: type[nn.Module]

    def __init__(self, options: Mapping[str, Any]) -> None:
        super().__init__()
        self.options = dict(options)
        try:
            self.network: Any = self.kind(**resolve_options(**self.options))
        except TypeError as error:
            raise ValueError(f"row: {self.kind.__name__} cannot be made: {error}") from error

    def forward(self, inputs: Tensor) -> Tensor:
        """What the network returns."""
        return self.network(inputs)


def paired_network(
    make: Callable[[Mapping[str, Any]], Network],
    options: Mapping[str, Any],
    plain: Mapping[str, Any],
    seed: int,
) -> Network:
    """Build a network that starts with the plain network's weights where both have them.

    Positions of both networks start at the scale that the options name.
    """
    scale = {name: options[name] for name in ("position_scale",) if name in options}
    with seeded(seed):
        model = make(options)
    with seeded(seed):
        return with_weights_of(model, make({**plain, **scale}))


def with_weights_of(model: Network, other: nn.Module) -> Network:
    """Copy the other model's weights to learned parameters of the same name and shape."""
    own, given = model.state_dict(), other.state_dict()
    learned = {n for n, p in model.named_parameters() if p.requires_grad}
    shared = {n: t for n, t in given.items() if n in learned and own[n].shape == t.shape}
    model.load_state_dict(own | shared)
    return model


def resolve_options(
    *,
    operator: str = "softmax",
    correction: str | None = None,
    residual: str = "plain",
    feed_forward_residual: str = "plain",
    scale: str | None = None,
    token_graying: Any = None,
    drop_path: float = 0.0,
    positions: str | bool | None = None,
    experts: int | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Replace names of parts by the parts themselves."""
    connections = {"residual": residual, "feed_forward_residual": feed_forward_residual}
    if positions is not None:
        options["positions"] = positions or None
    options["operator"] = _make_operator(operator, correction)
    for branch, name in connections.items():
        connect = _choose(_RESIDUALS, name, branch)
        options[branch] = partial(_make_residual, connect, drop_path)
    if scale is not None:
        options["scale"] = _choose(_SCALES, scale, "scale")
    if token_graying is not None:
        options["token_graying"] = _choose(_GRAYINGS, token_graying, "token_graying")()
    if experts is not None:
        options["feed_forward"] = mixture_maker(experts, options.get("mlp_ratio", 4.0))
    return options


def _make_residual(connect: Callable[[], nn.Module], drop_path: float) -> nn.Module:
    return DropPath(connect(), drop_path) if drop_path else connect()


def _make_operator(name: str, correction: str | None) -> Factory:
    base = _find_class_factory(name) if name[:1].isupper() else operator_factory(name)
    if correction is None:
        return base
    correct = _choose(_CORRECTIONS, correction, "correction")
    return lambda heads, dim: correct(base(heads, dim), heads)


def _find_class_factory(name: str) -> Factory:
    head, settings = split_part(name, "operator")
    kind = getattr(unrolled, head, None)
    if not (isinstance(kind, type) and issubclass(kind, Operator)):
        raise ValueError(f"operator: twinsolve.unrolled has no operator {head!r}")
    return lambda heads, dim: kind(**settings)


def _choose(table: Mapping[str, Callable[..., Any]], value: str, argument: str) -> Any:
    """The part of a name, with the settings that follow the name."""
    name, settings = split_part(value, argument)
    return partial(look_up(table, name, argument), **settings)


def look_up(table: Mapping[str, Any], name: str, argument: str) -> Any:
    if name not in table:
        raise ValueError(f"{argument}: must be one of {', '.join(table)}, got {name!r}")
    return table[name]
