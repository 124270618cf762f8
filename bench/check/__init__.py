"""`twinsolve check`: compare every layer with its solver."""
