"""What the solvers compile with numba, and how they spread rows over workers.

A solver's problem stands in its family; here is how a loop of it is made fast. Files that serve one
loop alone stand in the family, beside it.
"""
