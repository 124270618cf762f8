"""`twinsolve inspect`: measure what the layers of a model do to their tokens."""
