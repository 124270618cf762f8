"""Twins of kernel smoothing; every module beside this one is found by the catalogue."""
