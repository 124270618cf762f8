"""Every operator that the contract of test_operators.py runs over; a line for each."""

import warnings

import twinsolve.unrolled as layers


def quiet(make, *arguments):
    """Make an operator whose warnings are known."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return make(*arguments)


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
    "twicing explicit": lambda: layers.Twicing(layers.Softmax()),
    "neutreno": lambda: layers.Neutreno(layers.Softmax()),
    "neutreno per head": lambda: layers.Neutreno(
        layers.Gaussian(1.2), 0.4, num_heads=3, learnable=True, n_iter=3
    ),
    "neutreno safe": lambda: layers.Neutreno(layers.Twicing(layers.Softmax()), relaxed=True),
    "twicing of neutreno": lambda: quiet(layers.Twicing, layers.Neutreno(layers.Gaussian(1.2))),
    "solved neutreno": lambda: layers.Solved(
        layers.Neutreno(layers.Softmax(), learnable=True), tol=1e-15
    ),
    "solved sparse coding": lambda: layers.Solved(layers.SparseCoding(4.0), tol=1e-13),
    "solved self-expression": lambda: layers.Solved(
        layers.SparseCoding(4.0, zero_diagonal=True, num_heads=3, learnable=True), tol=1e-13
    ),
}
