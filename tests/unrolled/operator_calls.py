"""Tokens, and operators called with all the context that they may need."""

import torch

from twinsolve.unrolled import Context


def tokens(*shape, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape or (2, 3, 9, 5), generator=generator, dtype=dtype)


def qkv(seed=0):
    return tokens(seed=seed), tokens(seed=seed + 1), tokens(2, 3, 9, 4, seed=seed + 2)


def context_of(q, k, v):
    """Everything that an operator may need, token by token from its own inputs."""
    index = torch.arange(k.shape[-2], dtype=k.dtype)[:, None]
    return Context(
        positions=torch.cos(index * torch.arange(1, 7, dtype=k.dtype) / 3),
        projected_positions=(torch.cos(2 * q), torch.sin(k)),
        first_values=torch.sin(v),
        values=torch.sin(2 * k),  # as wide as the keys, as they are in a shell
        previous_values=torch.cos(k),
    )


class Called(torch.nn.Module):
    """An operator with the context of its inputs, as a shell would call it."""

    def __init__(self, operator):
        super().__init__()
        self.operator = operator

    def forward(self, q, k, v, **masks):
        return self.operator(q, k, v, context=context_of(q, k, v), **masks)
