"""Twins of sparse coding; every module beside this one is found by the catalogue."""
