"""Attention and features as filters with a response to frequencies."""
