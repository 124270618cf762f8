"""Twins: backbones from images, or ids, to scores."""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ...boosting import GeneralizedResidual
from ...kernel_smoothing import Local
from ...models import (
    ClassAttentionTransformer,
    ConvMixer,
    LanguageModel,
    SelfExpressionTransformer,
    VisionTransformer,
    WindowedTransformer,
)
from ..heads import Array
from . import backbone_pass
from .block_pass import Settings
from .fitted import N_CLASSES, naming_digits
from .pixel_language import saying_pixels
from .small_models import DIM, HEADS, add, drawn, hidden_tokens, joined, over_batch

_CLASSES, _PATCH = 5, 2
_WIDE = {"num_classes": N_CLASSES, "dim": 96}  # where scores are to name digits
_NARROW = 4
_LITTLE = 0.05  # of weights that are moved, in sums of so many
_SETTINGS = Settings(HEADS)


def _part(images: Any, columns: int = 6) -> Any:
    """Images that are higher than wide."""
    return images[..., :columns]


def _images(images: Tensor) -> tuple[Tensor]:
    return (_part(images),)


def _narrow_images(images: Tensor) -> tuple[Tensor]:
    return (_part(images, _NARROW),)


def _ids(images: Tensor) -> Tensor:
    """A row of pixels of each image in ten grey levels."""
    return (images.flatten(1)[:, 24:32] * 9.99).long().clamp(0, 9)


def _ids_and_padding(images: Tensor) -> tuple[Tensor, Tensor]:
    ids = _ids(images)
    return ids, hidden_tokens(images, ids.shape[1])


def _images_and_padding(images: Tensor) -> tuple[Tensor, Tensor]:
    images = _part(images)
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


def _add_vision_transformer(
    name: str, equation: str, pool: str, in_wide: list[Any], **options: Any
) -> None:
    """`in_wide` are the operators of the model that names digits."""
    operators = options["operator"]
    apart = "bilateral" in operators
    wide = _WIDE | ({"dim": 120} if apart else {})

    def build(images: Array) -> nn.Module:
        depth = len(operators)
        sizes = _sizes(_part(images))
        return drawn(VisionTransformer(**sizes, depth=depth, pool=pool, **options))

    def build_wide(images: Array) -> nn.Module:
        given = _sizes(images) | wide | options | {"operator": in_wide}
        return drawn(VisionTransformer(**given, depth=len(in_wide), pool=pool), _LITTLE)

    def run(
        model: Any, image: Array, padding: Array | None = None, operators: Any = operators
    ) -> Array:
        return backbone_pass.vision_transformer(
            model, image, _SETTINGS, patch_size=_PATCH, pool=pool, padding=padding,
            positions=options.get("positions", "learned"),
            positions_in=tuple(x != "bilateral" for x in operators) if apart else None,
        )  # fmt: skip

    def apply(model: VisionTransformer, images: Tensor) -> Tensor:
        images, hidden = _images_and_padding(images)
        return joined(model(images), model(images, patch_padding_mask=hidden))

    def solve(model: Any, image: Array, hidden: Array) -> tuple[Array, ...]:
        return run(model, image), run(model, image, hidden.astype(bool))

    _add(
        name, VisionTransformer, "Dosovitskiy et al. (2021)", equation,
        build=build, apply=apply, solve=over_batch(solve, _images_and_padding),
        task=naming_digits(build_wide, partial(run, operators=in_wide)),
    )  # fmt: skip


def _run_windowed(model: Any, image: Array, settings: Settings = _SETTINGS, **sizes: Any) -> Array:
    return backbone_pass.windowed_transformer(
        model, image, settings, window_size=2, num_heads=(2, 3), **sizes
    )


def _run_class_attention(model: Any, image: Array, **settings: Any) -> Array:
    return backbone_pass.class_attention_transformer(
        model, image, Settings(HEADS, scale="layer"), patch_size=_PATCH, **settings
    )


def _run_self_expression(model: Any, image: Array) -> Array:
    return backbone_pass.self_expression_transformer(
        model, image, patch_size=_PATCH, num_heads=HEADS, norm_eps=_SETTINGS.norm_eps
    )


def _apply_language_model(model: LanguageModel, images: Tensor) -> Tensor:
    """Scores, and the loss of each sequence with its padding and without."""
    ids, hidden = _ids_and_padding(images)
    each = zip(ids[:, None], hidden[:, None], strict=True)
    losses = [torch.stack([model.loss(*one), model.loss(one[0])]) for one in each]
    return joined(model(ids, hidden), torch.stack(losses))


def _solve_language_model(model: Any, ids: Array, hidden: Array) -> tuple[Array, ...]:
    ids, padding = ids.astype(int), hidden.astype(bool)
    scores, losses = [], []
    for hides in (padding, np.zeros_like(padding)):
        scores.append(backbone_pass.language_model(model, ids, _SETTINGS, padding=hides))
        losses.append(backbone_pass.language_loss(scores[-1], ids, hides))
    return scores[0], *losses


def _wide_mixer(images: Array, *, skip: bool) -> nn.Module:
    mixer = ConvMixer(384, 1, 5, 4, N_CLASSES, skip, in_channels=images.shape[1])
    return drawn(mixer, 2 * _LITTLE)


_ON_GRID = ["spatial_gaussian", lambda heads, head_dim: Local(1), "criss_cross"]
_add_vision_transformer(
    "vision-transformer", "IF-5", "class", ["softmax", "neutreno"],
    operator=["softmax", "elliptical", "neutreno"],
)  # fmt: skip
_add_vision_transformer(
    "vision-transformer-mean", "IF-5", "mean", ["twicing", "gaussian"],
    operator=["twicing", "gaussian"], positions="sinusoidal", dtype=torch.float64,
)  # fmt: skip
_add_vision_transformer(  # without positions in its tokens, scores read places by the last layer
    "vision-transformer-positions-apart", "IF-21", "class", ["softmax", "bilateral"],
    operator=["bilateral", "softmax"],
)  # fmt: skip
_add_vision_transformer(
    "vision-transformer-on-grid", "QK-local", "class", _ON_GRID, operator=_ON_GRID
)
_add(
    "windowed-transformer",
    WindowedTransformer,
    "Liu et al. (2021)",
    "IF-5",
    build=lambda images: drawn(
        WindowedTransformer(
            (images.shape[2], _NARROW), 1, images.shape[1], _CLASSES, 6, (4, 1), (2, 3),
            window_size=2, operator=["bilateral", "softmax", "elliptical", "neutreno", "gaussian"],
            mlp_ratio=2.0, residual=lambda: GeneralizedResidual(0),
        )
    ),
    apply=lambda model, images: model(*_narrow_images(images)),
    solve=over_batch(
        lambda model, image: (
            _run_windowed(
                model, image, replace(_SETTINGS, residual=0), patch_size=1,
                positions_in=(False, True, True, True, True),
            ),
        ),
        _narrow_images,
    ),
    task=naming_digits(
        lambda images: drawn(
            WindowedTransformer(
                images.shape[2:], 2, images.shape[1], N_CLASSES, 48, (2, 1), (2, 3), window_size=2,
                operator=["softmax", "neutreno", "gaussian"], mlp_ratio=2.0,
            ),
            _LITTLE,
        ),
        partial(_run_windowed, patch_size=2),
    ),
)  # fmt: skip
_add(
    "class-attention-transformer",
    ClassAttentionTransformer,
    "Touvron et al. (2021)",
    "IF-5",
    build=lambda images: drawn(
        ClassAttentionTransformer(
            **_sizes(_part(images)), depth=2, operator=["bilateral", "softmax"]
        )
    ),
    apply=lambda model, images: model(*_images(images)),
    solve=over_batch(
        lambda model, image: (_run_class_attention(model, image, positions_in=(False, True)),),
        _images,
    ),
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
    build=lambda images: drawn(SelfExpressionTransformer(**_sizes(_part(images)), depth=4)),
    apply=lambda model, images: model(*_images(images)),
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
        apply=lambda model, images: model(*_images(images)),
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
    apply=_apply_language_model,
    solve=over_batch(_solve_language_model, _ids_and_padding),
    task=saying_pixels(),
)
