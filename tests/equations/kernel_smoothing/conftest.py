from ...solvers.kernel_smoothing.conftest import encode, rounding, sdpa, tokens

__all__ = ["encode", "rounding", "sdpa", "tokens"]
