"""Checks of layers against solvers, and the problems that trained layers solve."""
