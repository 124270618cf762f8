"""Twins whose agreement is judged on data, but that serve neither clustering nor denoising."""

_REASONS = {
    "scales or spreads features, which groups and cleans nothing": (
        "token-graying-svd", "token-graying-dct", "token-graying-condition",
        "layer-scale", "feat-scale", "feat-scale-masked", "feat-scale-gain",
    ),
    "has weights that are drawn, where training would find them": (
        "learned-ista-other-dictionary", "re-attention", "self-expressive-network",
        "self-expressive-network-training", "self-expressive-network-bound",
        "sparse-mixture-of-experts",
    ),
    "ranks the keys alike for every query": (
        "logistic-attention", "graph-attention", "graph-attention-gain-bound",
    ),
    "is about nearly equal weights, where its proof or its convergence bites": (
        "random-walk-limit", "sinkhorn-limit", "sinkhorn-rate", "softmax-gain-bound",
        "softmax-depth-bound",
    ),
    "is solved on a dozen points, of which others are no nonnegative mixtures": (
        "nonnegative-coding-limit",
    ),
    "has nearly equal weights and no bandwidth to change that": ("feature-kernel",),
    "adds a branch to tokens, and leaves them twice as large": ("residual-snr",),
    "runs a model whose weights are drawn, on a few images": (
        "vision-transformer", "vision-transformer-mean", "vision-transformer-positions-apart",
        "vision-transformer-on-grid", "attention-shell-loaded", "bilateral-precomputed",
        "windowed-transformer", "class-attention-transformer", "conv-mixer",
        "conv-mixer-without-skip", "language-model", "biased-attention", "block",
        "block-without-skips", "block-feat-scale", "block-boosted", "block-generalized-residual",
        "deep-self-expression", "block-high-frequencies", "attention-shell",
        "attention-shell-no-bias",
    ),
}  # fmt: skip
WITHOUT_TASK = {name: reason for reason, names in _REASONS.items() for name in names}
