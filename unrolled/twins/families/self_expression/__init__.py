"""Twins of self expression."""
