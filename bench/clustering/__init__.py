"""`twinsolve cluster`: compare solved and learned coefficients on common data sets."""
