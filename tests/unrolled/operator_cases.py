"""Every operator that the contract of test_operators.py runs over; a line for each."""

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
    "support steps": lambda: layers.SparseCoding(0.5, step="support", num_heads=3, learnable=True),
    "support self": lambda: layers.SparseCoding(
        0.5, n_iter=8, step="support", zero_diagonal=True, nonnegative=True
    ),
    "locally linear": lambda: layers.LocallyLinear(4),
    "locally linear self": lambda: layers.LocallyLinear(4, zero_diagonal=True),
    "ridge": lambda: layers.Ridge(0.7),
    "ridge self": lambda: layers.Ridge(0.7, zero_diagonal=True),
    "ridge per head": lambda: layers.Ridge(0.7, num_heads=3, learnable=True, zero_diagonal=True),
    "low rank": lambda: layers.LowRank(0.7),
    "low rank per head": lambda: layers.LowRank(2.0, num_heads=3, learnable=True),
}
