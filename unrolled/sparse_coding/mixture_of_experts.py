"""Sparse mixture of experts: a sparse code in the dictionary of all experts, found by routing."""

from typing import Any

import torch
from torch import Tensor, nn

from ..attention import check_count, is_transformed


class SparseMixtureOfExperts(nn.Module):
    """Sparse mixture of experts, whose output is a sparse code times a dictionary.

    For each token x (a row), with a softmax router ``p = softmax(x R^T)`` and gates ``g_j = p_j``,
    or those of `renormalize` ::

        y = sum_{j in top k of p} g_j relu(x Q_j^T) P_j^T = z Dict^T,   Dict = [P_1 ... P_M]

    where z holds ``g_j relu(x Q_j^T)`` for the chosen experts and zeros for the others: of its
    M k' entries at most k k' are not zero. Only the chosen experts are computed, except in exported
    programs and the transforms of ``torch.func``, which compute all. The code comes from routing,
    not from a pursuit: z need not be the best code in the dictionary.

    Parameters
    ----------
    dim : int
        Width d of the tokens.
    n_experts : int
        M >= 1.
    expert_width : int
        Hidden width k' >= 1 of an expert.
    top_k : int, default=2
        Experts k that a token is sent to, 1 to M.
    renormalize : bool, default=False
        If False, gates are the softmax over all experts, and sum to less than one if k < M. If
        True, they are the softmax over the chosen ones. The paper's formula can be read both ways
        (erratum E0-p).

    Attributes
    ----------
    router : Parameter of shape (M, d)
    analysis : Parameter of shape (M, k', d)
        Q_j of every expert.
    synthesis : Parameter of shape (M, d, k')
        P_j of every expert.

    Raises
    ------
    ValueError
        If an argument is out of range, or tokens have another width.

    References
    ----------
    Shazeer et al. (2017); EQUATIONS IF-32, IF-33. The dictionary is d x (M k'), where the paper
    prints d x (M k) (erratum E0-o).

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled import SparseMixtureOfExperts
    >>> layer = SparseMixtureOfExperts(8, n_experts=4, expert_width=16)
    >>> x = torch.randn(5, 8)
    >>> torch.allclose(layer(x), layer.codes(x) @ layer.dictionary().T, atol=1e-6)
    True
    """

    def __init__(
        self,
        dim: int,
        n_experts: int,
        expert_width: int,
        top_k: int = 2,
        *,
        renormalize: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.dim = check_count(dim, "dim", 1)
        self.n_experts = check_count(n_experts, "n_experts", 1)
        self.expert_width = check_count(expert_width, "expert_width", 1)
        self.top_k = check_count(top_k, "top_k", 1)
        if top_k > n_experts:
            raise ValueError(f"top_k: must be at most the {n_experts} experts, got {top_k}")
        self.renormalize = renormalize
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        self.router = nn.Parameter(torch.empty(n_experts, dim, **factory))
        self.analysis = nn.Parameter(torch.empty(n_experts, expert_width, dim, **factory))
        self.synthesis = nn.Parameter(torch.empty(n_experts, dim, expert_width, **factory))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw all weights anew, uniformly within ``1 / sqrt(width of their input)``."""
        with torch.no_grad():
            for weight in self.parameters():
                bound = weight.shape[-1] ** -0.5
                weight.uniform_(-bound, bound)

    def forward(self, x: Tensor) -> Tensor:
        """Mix the experts of every token.

        Parameters
        ----------
        x : Tensor of shape (..., d)

        Returns
        -------
        Tensor of shape (..., d)
        """
        tokens = self._flatten_tokens(x)
        if _counts_are_unknown(x):
            return (self._code_by_all(tokens) @ self.dictionary().mT).to(x.dtype).reshape(x.shape)
        codes, rows, experts = self._code_by_chosen(tokens)
        mixed = _apply_experts(codes, experts, self.synthesis)
        out = torch.zeros_like(tokens).index_add(0, rows, mixed.to(tokens.dtype))
        return out.reshape(x.shape)

    def codes(self, x: Tensor) -> Tensor:
        """Return the sparse codes (..., M k') of tokens (..., d) in the `dictionary`."""
        tokens = self._flatten_tokens(x)
        if _counts_are_unknown(x):
            z = self._code_by_all(tokens)
        else:
            codes, rows, experts = self._code_by_chosen(tokens)
            z = tokens.new_zeros(len(tokens), self.n_experts, self.expert_width)
            z = z.index_put((rows, experts), codes)
        return z.reshape(*x.shape[:-1], self.n_experts * self.expert_width)

    def dictionary(self) -> Tensor:
        """Return the dictionary ``[P_1 ... P_M]``, of shape (d, M k'); atoms are columns."""
        return self.synthesis.transpose(0, 1).reshape(self.dim, -1)

    def route(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return gates and indices of the experts chosen for tokens (..., d), each (..., top_k).

        The softmax is taken in float32 at least.
        """
        scores = (x @ self.router.mT).to(torch.promote_types(x.dtype, torch.float32))
        best, chosen = scores.topk(self.top_k, dim=-1)
        gates = best.softmax(-1) if self.renormalize else scores.softmax(-1).gather(-1, chosen)
        return gates.to(x.dtype), chosen

    def balance_loss(self, x: Tensor) -> Tensor:
        """Return ``M sum_j f_j p_j``, a loss against experts that are never chosen.

        f_j is the share of all choices that fall on expert j, p_j its mean softmax score. The loss
        is 1 where all experts are used alike, and M where all tokens go to one.

        References
        ----------
        Fedus et al., "Switch Transformers" (2022).
        """
        tokens = self._flatten_tokens(x)
        _, chosen = self.route(tokens)
        scores = (tokens @ self.router.mT).softmax(-1).sum(0) / max(len(tokens), 1)
        counts = torch.bincount(chosen.flatten(), minlength=self.n_experts).to(scores.dtype)
        share = counts / max(chosen.numel(), 1)
        return self.n_experts * (share * scores).sum()

    def _code_by_all(self, tokens: Tensor) -> Tensor:
        """Return codes (n_tokens, M k'), computed by all experts, chosen or not."""
        gates, chosen = self.route(tokens)
        weights = gates.new_zeros(len(tokens), self.n_experts).scatter(-1, chosen, gates)
        # (n_tokens, M k')
        hidden = torch.relu(tokens @ self.analysis.flatten(0, 1).mT).to(tokens.dtype)
        return (weights[..., None] * hidden.unflatten(-1, (self.n_experts, -1))).flatten(-2)

    def _code_by_chosen(self, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the codes of all choices, sorted by expert, their tokens and experts."""
        gates, chosen = self.route(tokens)
        experts, order = chosen.flatten().sort(stable=True)
        rows = order // self.top_k
        hidden = torch.relu(_apply_experts(tokens[rows], experts, self.analysis))
        return gates.flatten()[order, None] * hidden.to(tokens.dtype), rows, experts

    def _flatten_tokens(self, x: Tensor) -> Tensor:
        """Return tokens (n, dim) from (..., dim)."""
        if x.ndim < 1 or x.shape[-1] != self.dim:
            raise ValueError(f"x: must be (..., {self.dim}), got {tuple(x.shape)}")
        return x.reshape(-1, self.dim)

    def extra_repr(self) -> str:
        return (
            f"dim={self.dim}, n_experts={self.n_experts}, expert_width={self.expert_width}, "
            f"top_k={self.top_k}, renormalize={self.renormalize}"
        )


def _counts_are_unknown(x: Tensor) -> bool:
    """Whether values cannot tell how many tokens an expert has: exports, transforms, meta."""
    return torch.compiler.is_exporting() or is_transformed() or x.is_meta


def _apply_experts(inputs: Tensor, experts: Tensor, weights: Tensor) -> Tensor:
    """Apply each expert's weights to its own inputs; inputs are sorted by expert."""
    counts = torch.bincount(experts, minlength=len(weights)).tolist()
    parts = zip(inputs.split(counts), weights, strict=True)
    return torch.cat([part @ weight.mT for part, weight in parts])
