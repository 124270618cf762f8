"""`twinsolve check`: every layer against its solver."""
