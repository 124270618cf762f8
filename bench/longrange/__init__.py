"""`twinsolve longrange`: sequences whose classes hang on what stands far apart."""
