"""`twinsolve longrange`: sequences whose class depends on tokens far from each other."""
