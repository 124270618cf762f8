"""Backbones whose attention is any operator."""
