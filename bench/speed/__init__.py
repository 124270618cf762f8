"""What `twinsolve speed` times: our solvers beside those that a user would pick instead."""
