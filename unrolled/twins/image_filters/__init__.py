"""Twins of the family image_filters."""
