"""The problems of the solver wing, stated in a few lines of cvxpy: slow and trusted.

Imported by name only (``from twinsolve.solvers.oracles import sparse_coding``), so that cvxpy loads
when it is needed. A statement bears the name of the solver that it stands beside.
"""
