"""Every operator that the contract of test_operators.py runs over; a line for each."""

import math

import twinsolve.unrolled as layers

OPERATORS = {
    "softmax": lambda: layers.Softmax(),
    "softmax scaled": lambda: layers.Softmax(scale=0.7),
    "gaussian": lambda: layers.Gaussian(),
    "gaussian per head": lambda: layers.Gaussian(0.9, num_heads=3, learnable=True),
    "twicing": lambda: layers.Twicing(layers.Gaussian(1.2)),
    "twicing twice": lambda: layers.Twicing(layers.Twicing(layers.Softmax())),
    "sparse coding": lambda: layers.SparseCoding(0.5),
    "self-expression": lambda: layers.SparseCoding(0.5, n_iter=8, zero_diagonal=True),
    "nonnegative": lambda: layers.SparseCoding(0.5, nonnegative=True),
    "sparse coding per head": lambda: layers.SparseCoding(0.5, num_heads=3, learnable=True),
    "locally linear": lambda: layers.LocallyLinear(4),
    "locally linear self": lambda: layers.LocallyLinear(4, zero_diagonal=True),
    "bilateral": lambda: layers.Bilateral(),
    "bilateral per head": lambda: layers.Bilateral(1.1, 0.9, num_heads=3, learnable=True),
    "bilateral distances": lambda: layers.Bilateral(0.8, 1.3, distances=True, learnable=True),
    "nonlocal": lambda: layers.Bilateral(math.inf, 1.2),
    "alibi": lambda: layers.ALiBi(3),
    "alibi learnable": lambda: layers.ALiBi(3, slopes=[0.3, 0.1, 0.0], learnable=True),
    "tupe": lambda: layers.Tupe(6, 3, head_dim=5),
    "elliptical": lambda: layers.Elliptical(),
    "sinkhorn": lambda: layers.Sinkhorn(layers.Gaussian(1.2), n_iter=4),
    "sinkhorn elliptical": lambda: layers.Sinkhorn(layers.Elliptical()),
    "twicing bilateral": lambda: layers.Twicing(layers.Bilateral()),
}
