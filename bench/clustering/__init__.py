"""`twinsolve cluster`: solved beside learned coefficients on the data sets of the field."""
