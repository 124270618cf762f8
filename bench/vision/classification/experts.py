"""Sparse mixtures of experts in the place of feed-forward parts: how they are made and observed."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from torch import Tensor, nn

from ....unrolled import SparseMixtureOfExperts

BALANCE = 0.01  # weight of the balance loss, that of Fedus et al. (2022)
_TOP_K = 2

Seen = list[tuple[SparseMixtureOfExperts, Tensor]]


def mixture_maker(n_experts: int, mlp_ratio: float) -> Callable[[int], nn.Module]:
    """Mixtures whose chosen experts are together as wide as the feed-forward part is."""

    def make(dim: int) -> nn.Module:
        return SparseMixtureOfExperts(dim, n_experts, round(mlp_ratio * dim / _TOP_K), _TOP_K)

    return make


@contextmanager
def tokens_of_experts(model: nn.Module) -> Iterator[Seen]:
    """Fills a list with each mixture that runs meanwhile, and the tokens that enter it."""
    seen: Seen = []

    def keep(layer: SparseMixtureOfExperts, inputs: tuple[Tensor]) -> None:
        seen.append((layer, inputs[0]))

    with ExitStack() as stack:
        for part in model.modules():
            if isinstance(part, SparseMixtureOfExperts):
                stack.callback(part.register_forward_pre_hook(keep).remove)
        yield seen
