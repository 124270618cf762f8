"""Twins of kernel smoothing."""
