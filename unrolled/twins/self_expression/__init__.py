"""Twins of self-expression; every module beside this one is found by the catalogue."""
