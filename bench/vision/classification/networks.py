"""Classifiers by options in words: an architecture, and replacements of its parts."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ....unrolled.models import (
    ClassAttentionTransformer,
    ConvMixer,
    SelfExpressionTransformer,
    VisionTransformer,
    WindowedTransformer,
)
from ....unrolled.users_code import reporting
from ...parts import look_up, resolve_options
from ...run_folder import find_class

ARCHITECTURES: dict[str, Callable[..., nn.Module]] = {
    "ViT": VisionTransformer,
    "Swin": WindowedTransformer,
    "CaiT": ClassAttentionTransformer,
    "ConvMixer": ConvMixer,
    "SelfExpression": SelfExpressionTransformer,
}
WITHOUT_BLOCKS = ("ConvMixer", "SelfExpression")


class Classifier(nn.Module):
    """A network that standardises images with levels in [0, 1] and classifies them.

    Parameters
    ----------
    options : dict
        ``architecture`` ("ViT", "Swin", "CaiT", "ConvMixer", "SelfExpression", or a class of your
        own, "package.module:Class", which takes further options alone), ``operator`` (a
        name of `operator_names`, or a class of `twinsolve.unrolled`: "Local:radius=1"),
        ``correction`` (attn_scale, neutreno, re_attention, solved, twicing), ``residual`` (plain or
        boosting, around attention), ``feed_forward_residual`` (the same around the feed-forward
        part), ``scale`` (FeatScale, LayerScale), ``token_graying`` (dct or svd), ``drop_path``,
        ``identity`` (parts of a ViT that do nothing: embedding, projections, norms), ``positions``
        (False is none), ``experts`` (how many replace each feed-forward part; a token goes to two,
        which together are as wide as that part), and further arguments of the architecture. Each
        name may have settings: "neutreno:lam=0.4", "dct:eps=0.9".
    mean, std : list of float
        Mean and standard deviation of each channel.

    Raises
    ------
    ValueError
        If an option is unknown.
    """

    def __init__(
        self, options: Mapping[str, Any], mean: Sequence[float], std: Sequence[float]
    ) -> None:
        super().__init__()
        self.options, self.mean, self.std = dict(options), list(mean), list(std)
        self.network = _build_network(**self.options)

    def standardised(self, levels: Tensor) -> Tensor:
        shape = (1, -1, 1, 1)
        mean, std = (levels.new_tensor(x).view(shape) for x in (self.mean, self.std))
        return (levels - mean) / std

    def forward(self, levels: Tensor) -> Tensor:
        """Class scores of images (batch, channels, height, width)."""
        return self.network(self.standardised(levels))


def _build_network(
    architecture: str = "ViT", *, identity: Sequence[str] = (), **options: Any
) -> nn.Module:
    own = ":" in architecture
    make = find_class(architecture) if own else look_up(ARCHITECTURES, architecture, "architecture")
    plain = own or architecture in WITHOUT_BLOCKS
    try:
        given = options if plain else resolve_options(**options)
    except TypeError as error:
        raise ValueError(f"row: {architecture} cannot be made: {error}") from error
    with reporting(f"row: {architecture} cannot be made"):
        network = make(**given)
    if identity and not isinstance(network, VisionTransformer):
        raise ValueError(f"row: identity is a setting of transformers only, got {architecture}")
    for part in identity:
        look_up(_IDENTITIES, part, "identity")(network)
    return network


def _plain_embedding(network: VisionTransformer) -> None:
    """Make tokens the pixels of patches, padded by zeros to the width of the network."""
    _fix(network.patch_embedding.projection.weight, network.patch_embedding.projection.bias)


def _plain_projections(network: VisionTransformer) -> None:
    """Make queries, keys and values the tokens, and the output that of the heads."""
    for block in network.blocks:
        attention: Any = block.attention
        _fix(attention.in_proj_weight, attention.in_proj_bias, len(attention.projected))
        _fix(attention.out_proj.weight, attention.out_proj.bias)


def _plain_norms(network: VisionTransformer) -> None:
    """Remove the layer norms before attention and before the head."""
    network.norm = nn.Identity()  # type: ignore[assignment]
    for block in network.blocks:
        block.attention_norm = nn.Identity()


_IDENTITIES: dict[str, Callable[[Any], None]] = {
    "embedding": _plain_embedding,
    "projections": _plain_projections,
    "norms": _plain_norms,
}


@torch.no_grad()
def _fix(weight: Tensor, bias: Tensor, n_maps: int = 1) -> None:
    """Make `n_maps` stacked maps the identity, and exclude them from training."""
    nn.init.zeros_(bias)
    for part in weight.chunk(n_maps):
        nn.init.eye_(part)
    weight.requires_grad_(False)
    bias.requires_grad_(False)
