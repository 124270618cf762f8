"""Operators in models that others have written."""
