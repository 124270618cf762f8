"""Every operator that the contract of test_operators.py runs over; a line for each."""

import twinsolve.unrolled as layers

OPERATORS = {
    "softmax": lambda: layers.Softmax(),
    "softmax scaled": lambda: layers.Softmax(scale=0.7),
    "gaussian": lambda: layers.Gaussian(),
    "gaussian per head": lambda: layers.Gaussian(0.9, num_heads=3, learnable=True),
    "symmetric": lambda: layers.Symmetric(),
    "sparsemax": lambda: layers.Sparsemax(),
    "sparsemax scaled": lambda: layers.Sparsemax(scale=2.0),
    "linear": lambda: layers.Linear(scale=0.2),
    "feature kernel": lambda: layers.FeatureKernel(),
    "laplace kernel": lambda: layers.Kernel("laplace", 0.8),
    "exponential kernel per head": lambda: layers.Kernel(
        "exponential", 1.5, num_heads=3, learnable=True
    ),
    "local": lambda: layers.Local(2),
    "local on a grid": lambda: layers.Local(1, width=4, scale=0.8),
    "criss-cross": lambda: layers.CrissCross(4),
    "top-k": lambda: layers.TopK(3),
    "spatial gaussian": lambda: layers.SpatialGaussian(1.1, width=4),
    "spatial gaussian per head": lambda: layers.SpatialGaussian(1.1, num_heads=3, learnable=True),
    "logistic": lambda: layers.Logistic(5, num_heads=3),
    "graph attention": lambda: layers.Logistic(5, num_heads=3, negative_slope=0.2),
    "twicing": lambda: layers.Twicing(layers.Gaussian(1.2)),
    "twicing twice": lambda: layers.Twicing(layers.Twicing(layers.Softmax())),
    "sparse coding": lambda: layers.SparseCoding(0.5),
    "self-expression": lambda: layers.SparseCoding(0.5, n_iter=8, zero_diagonal=True),
    "nonnegative": lambda: layers.SparseCoding(0.5, nonnegative=True),
    "sparse coding per head": lambda: layers.SparseCoding(0.5, num_heads=3, learnable=True),
    "locally linear": lambda: layers.LocallyLinear(4),
    "locally linear self": lambda: layers.LocallyLinear(4, zero_diagonal=True),
}
