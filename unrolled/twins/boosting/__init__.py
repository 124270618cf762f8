"""Twins of boosting; every module beside this one is found by the catalogue."""
