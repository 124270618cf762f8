"""Twins of sparse coding."""
