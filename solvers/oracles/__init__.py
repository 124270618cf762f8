"""The problems of the solvers, each stated in a few lines of cvxpy: slow and trusted.

Modules are imported by name only (``from twinsolve.solvers.oracles import sparse_coding``), so that
cvxpy loads only when needed. A statement has the name of the solver that it checks.
"""
