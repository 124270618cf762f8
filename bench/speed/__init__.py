"""`twinsolve speed`: time our solvers beside those of other packages."""
