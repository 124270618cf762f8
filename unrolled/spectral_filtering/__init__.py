"""Attention and features as filters with a response to frequencies."""

from .attention_scaling import AttnScale
from .feature_scaling import FeatScale, LayerScale
from .means import visible_mean
from .reattention import ReAttention

__all__ = ["AttnScale", "FeatScale", "LayerScale", "ReAttention", "visible_mean"]
