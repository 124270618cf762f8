"""Semantic segmentation by transformers with any attention."""
