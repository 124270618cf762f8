"""`twinsolve inspect`: what the layers of a model do to the tokens that reach them."""
