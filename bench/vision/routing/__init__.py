"""Routers of sparse mixtures of experts as clusterers of image tokens."""
