"""Backbones whose attention is any operator."""

from .blocks import Block
from .checkpoints import load_huggingface_state_dict, load_timm_state_dict
from .class_attention import ClassAttentionTransformer
from .conv_mixer import ConvMixer
from .denoisers import (
    ConvexRidgeDenoiser,
    FilterDiffusionDenoiser,
    GroupCodingDenoiser,
    MixtureOfExpertsDenoiser,
    NoiseLevelDiffusionDenoiser,
    NonlocalFilterDiffusionDenoiser,
    NonLocalMeansDenoiser,
    PatchCodingDenoiser,
)
from .language_model import LanguageModel
from .segmenter import Segmenter
from .self_expression_transformer import SelfExpressionTransformer
from .sequence_classifier import SequenceClassifier
from .tokens import sinusoidal_positions
from .vision_transformer import VisionTransformer
from .windowed_transformer import WindowedTransformer

__all__ = [
    "Block",
    "ClassAttentionTransformer",
    "ConvMixer",
    "ConvexRidgeDenoiser",
    "FilterDiffusionDenoiser",
    "GroupCodingDenoiser",
    "LanguageModel",
    "MixtureOfExpertsDenoiser",
    "NoiseLevelDiffusionDenoiser",
    "NonLocalMeansDenoiser",
    "NonlocalFilterDiffusionDenoiser",
    "PatchCodingDenoiser",
    "Segmenter",
    "SelfExpressionTransformer",
    "SequenceClassifier",
    "VisionTransformer",
    "WindowedTransformer",
    "load_huggingface_state_dict",
    "load_timm_state_dict",
    "sinusoidal_positions",
]
