"""Loops of the solvers that numba compiles, and the spreading of rows over workers.

The problem of a solver is stated in its family; this folder makes its loops fast. A file that
serves only one loop lies in the family, beside this loop.
"""
