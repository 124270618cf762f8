"""Faults of refusals: what has no meaning in a layer is accepted silently."""

# fmt: off
from .fault import Faults

refusals = Faults("refusal")

add = refusals.add
add("attention/operator.py", "causal-accepted-everywhere",
    "if is_causal and not self.causal:", "if False:",
    "sinkhorn-iterates", "ridge-attention", "low-rank-attention")
add("attention/operator.py", "fewer-queries-accepted-everywhere",
    "if self.square_only and q.shape[-2] != k.shape[-2]:", "if False:",
    "sinkhorn-iterates", "neutreno-attention", "ridge-self-expression-zero-diagonal")
add("attention/masks.py", "causal-with-more-queries-accepted",
    "    if n_queries > n_keys:\n", "    if False:\n",
    "softmax-attention", "linear-attention", "laplace-kernel")
add("attention/masks.py", "pairs-of-global-problem-accepted",
    "or bool((visible != visible[..., :1, :]).any()):", "or False:",
    "ridge-attention", "sinkhorn-iterates")
add("attention/masks.py", "bias-of-codes-accepted",
    "if checkable and not bool((hidden | (mask == 0)).all()):", "if False:",
    "linear-attention", "locally-linear-attention", "sparse-coding-iterates")
add("kernel_smoothing/balancing.py", "sinkhorn-declared-causal",
    "self.causal = False", "self.causal = True",
    "sinkhorn-iterates")
add("self_expression/ridge_attention.py", "ridge-declared-causal",
    "    causal = False\n", "    causal = True\n",
    "ridge-attention")
add("self_expression/low_rank_attention.py", "low-rank-declared-for-pairs",
    "    pair_masks = False\n", "    pair_masks = True\n",
    "low-rank-attention")
add("sparse_coding/sparse_attention.py", "self-expression-of-fewer-queries",
    "self.square_only = zero_diagonal", "self.square_only = False",
    "self-expression-iterates")
add("nonlocal_energy.py", "fidelity-of-fewer-queries",
    "self.square_only = True", "self.square_only = False",
    "neutreno-attention")
add("attention/operator.py", "other-number-of-heads-accepted",
    "and part.num_heads not in (None, heads):", "and False:",
    "gaussian-attention", "ridge-attention")
