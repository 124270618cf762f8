"""Twins of energies; every module beside this one is found by the catalogue."""
