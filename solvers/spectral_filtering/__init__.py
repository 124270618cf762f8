"""Attention as a filter over tokens: its effect on their mean and on their high frequencies."""

from .frequencies import attention_spectrum, high_frequency_share, split_frequencies
from .scaling import high_pass_scale, high_pass_values, scale_frequencies
from .smoothing import (
    ergodicity_coefficient,
    high_frequency_gain,
    high_frequency_gain_bound,
    low_pass_ratio,
)

__all__ = [
    "attention_spectrum",
    "ergodicity_coefficient",
    "high_frequency_gain",
    "high_frequency_gain_bound",
    "high_frequency_share",
    "high_pass_scale",
    "high_pass_values",
    "low_pass_ratio",
    "scale_frequencies",
    "split_frequencies",
]
