"""Twins: backbones from images, or ids, to scores."""

from functools import partial
from typing import Any

from torch import Tensor, nn

from ...kernel_smoothing import Local
from ...models import (
    ClassAttentionTransformer,
    ConvMixer,
    LanguageModel,
    SelfExpressionTransformer,
    VisionTransformer,
    WindowedTransformer,
)
from ..registry import Array
from . import backbone_pass
from .block_pass import Settings
from .fitted import N_CLASSES, naming_digits
from .pixel_language import saying_pixels
from .small_models import DIM, HEADS, add, drawn, hidden_tokens, joined, over_batch

_CLASSES, _PATCH = 5, 2
_WIDE = {"num_classes": N_CLASSES, "dim": 96}  # where scores are to name digits
_LITTLE = 0.05  # of weights that are moved, in sums of so many
_SETTINGS = Settings(HEADS)


def _images(images: Tensor) -> tuple[Tensor]:
    return (images,)


def _ids(images: Tensor) -> Tensor:
    """A row of pixels of each image in ten grey levels."""
    return (images.flatten(1)[:, 24:32] * 9.99).long().clamp(0, 9)


def _ids_and_padding(images: Tensor) -> tuple[Tensor, Tensor]:
    ids = _ids(images)
    return ids, hidden_tokens(images, ids.shape[1])


def _images_and_padding(images: Tensor) -> tuple[Tensor, Tensor]:
    return images, hidden_tokens(images, images[0, 0].numel() // _PATCH**2)


def _sizes(images: Array) -> dict[str, Any]:
    return {
        "image_size": images.shape[2:],
        "patch_size": _PATCH,
        "in_channels": images.shape[1],
        "num_classes": _CLASSES,
        "dim": DIM,
        "num_heads": HEADS,
    }


def _add(name: str, layer: type[nn.Module], source: str, equation: str, **sides: Any) -> None:
    add(name, layer, source=source, equation=equation, **sides)


def _add_vision_transformer(name: str, equation: str, pool: str, **options: Any) -> None:
    operators = options["operator"]
    apart = "bilateral" in operators
    # Where tokens have no positions, the scores read places by the last layer's weights.
    in_wide = operators[::-1] if apart else operators
    wide = _WIDE | ({"dim": 120} if apart else {})

    def build(images: Array) -> nn.Module:
        depth = len(operators)
        return drawn(VisionTransformer(**_sizes(images), depth=depth, pool=pool, **options))

    def build_wide(images: Array) -> nn.Module:
        given = _sizes(images) | wide | options | {"operator": in_wide}
        return drawn(VisionTransformer(**given, depth=len(in_wide), pool=pool), _LITTLE)

    def run(
        model: Any, image: Array, padding: Array | None = None, operators: Any = operators
    ) -> Array:
        return backbone_pass.vision_transformer(
            model, image, _SETTINGS, patch_size=_PATCH, pool=pool, padding=padding,
            positions_in=tuple(x != "bilateral" for x in operators) if apart else None,
        )  # fmt: skip

    def apply(model: VisionTransformer, images: Tensor) -> Tensor:
        _, hidden = _images_and_padding(images)
        return joined(model(images), model(images, patch_padding_mask=hidden))

    def solve(model: Any, image: Array, hidden: Array) -> tuple[Array, ...]:
        return run(model, image), run(model, image, hidden.astype(bool))

    _add(
        name, VisionTransformer, "Dosovitskiy et al. (2021)", equation,
        build=build, apply=apply, solve=over_batch(solve, _images_and_padding),
        task=naming_digits(build_wide, partial(run, operators=in_wide)),
    )  # fmt: skip


def _run_windowed(model: Any, image: Array, *, patch_size: int = 1, window_size: int = 4) -> Array:
    return backbone_pass.windowed_transformer(
        model, image, _SETTINGS, patch_size=patch_size, window_size=window_size, num_heads=(2, 3)
    )


def _run_class_attention(model: Any, image: Array) -> Array:
    settings = Settings(HEADS, scale="layer")
    return backbone_pass.class_attention_transformer(model, image, settings, patch_size=_PATCH)


def _run_self_expression(model: Any, image: Array) -> Array:
    return backbone_pass.self_expression_transformer(
        model, image, patch_size=_PATCH, num_heads=HEADS, norm_eps=_SETTINGS.norm_eps
    )


def _wide_mixer(images: Array, *, skip: bool) -> nn.Module:
    mixer = ConvMixer(384, 1, 5, 4, N_CLASSES, skip, in_channels=images.shape[1])
    return drawn(mixer, 2 * _LITTLE)


_add_vision_transformer("vision-transformer", "IF-5", "class", operator=["softmax", "neutreno"])
_add_vision_transformer("vision-transformer-mean", "IF-5", "mean", operator=["twicing", "gaussian"])
_add_vision_transformer(
    "vision-transformer-positions-apart", "IF-21", "class", operator=["bilateral", "softmax"]
)
_add_vision_transformer(
    "vision-transformer-on-grid",
    "QK-local",
    "class",
    operator=["spatial_gaussian", lambda heads, head_dim: Local(1), "criss_cross"],
)
_add(
    "windowed-transformer",
    WindowedTransformer,
    "Liu et al. (2021)",
    "IF-5",
    build=lambda images: drawn(
        WindowedTransformer(
            images.shape[2:], 1, images.shape[1], _CLASSES, 6, (2, 1), (2, 3), window_size=4,
            operator=["softmax", "neutreno", "gaussian"], mlp_ratio=2.0,
        )
    ),
    apply=lambda model, images: model(images),
    solve=over_batch(lambda model, image: (_run_windowed(model, image),), _images),
    task=naming_digits(
        lambda images: drawn(
            WindowedTransformer(
                images.shape[2:], 2, images.shape[1], N_CLASSES, 48, (2, 1), (2, 3), window_size=2,
                operator=["softmax", "neutreno", "gaussian"], mlp_ratio=2.0,
            ),
            _LITTLE,
        ),
        partial(_run_windowed, patch_size=2, window_size=2),
    ),
)  # fmt: skip
_add(
    "class-attention-transformer",
    ClassAttentionTransformer,
    "Touvron et al. (2021)",
    "IF-5",
    build=lambda images: drawn(ClassAttentionTransformer(**_sizes(images), depth=2)),
    apply=lambda model, images: model(images),
    solve=over_batch(lambda model, image: (_run_class_attention(model, image),), _images),
    task=naming_digits(
        lambda images: drawn(ClassAttentionTransformer(**_sizes(images) | _WIDE, depth=2), _LITTLE),
        _run_class_attention,
    ),
)
_add(
    "self-expression-transformer",
    SelfExpressionTransformer,
    "Attention: Self-Expression Is All You Need, Fig. 4",
    "SE-15",
    build=lambda images: drawn(SelfExpressionTransformer(**_sizes(images), depth=4)),
    apply=lambda model, images: model(images),
    solve=over_batch(lambda model, image: (_run_self_expression(model, image),), _images),
    task=naming_digits(
        lambda images: drawn(SelfExpressionTransformer(**_sizes(images) | _WIDE, depth=4), _LITTLE),
        _run_self_expression,
    ),
)
for skip in (True, False):
    run = partial(backbone_pass.conv_mixer, kernel_size=3, patch_size=_PATCH, skip=skip)
    _add(
        "conv-mixer" if skip else "conv-mixer-without-skip",
        ConvMixer,
        "Trockman and Kolter (2022)",
        "SK-7",
        build=lambda images, skip=skip: drawn(
            ConvMixer(DIM, 2, 3, _PATCH, _CLASSES, skip, in_channels=images.shape[1])
        ),
        apply=lambda model, images: model(images),
        solve=over_batch(lambda model, image, run=run: (run(model, image),), _images),
        task=naming_digits(
            partial(_wide_mixer, skip=skip),
            partial(backbone_pass.conv_mixer, kernel_size=5, patch_size=4, skip=skip),
        ),
    )
_add(
    "language-model",
    LanguageModel,
    "Vaswani et al. (2017)",
    "SE-3",
    build=lambda images: drawn(
        LanguageModel(10, DIM, 2, HEADS, 16, operator=["softmax", "twicing"])
    ),
    apply=lambda model, images: model(*_ids_and_padding(images)).flatten(1),
    solve=over_batch(
        lambda model, ids, hidden: (
            backbone_pass.language_model(
                model, ids.astype(int), _SETTINGS, padding=hidden.astype(bool)
            ),
        ),
        _ids_and_padding,
    ),
    task=saying_pixels(),
)
