"""Twins of nonlocal energy."""
