"""Faults of options: ignored, or read at the wrong place."""

# fmt: off
from .fault import Faults

options = Faults("option")

add = options.add
add("sparse_coding/code_blocks.py", "nonnegative-ignored",
    "    if nonnegative:\n        return z.sub_(1)", "    if False:\n        return z.sub_(1)",
    "nonnegative-coding-iterates")
add("sparse_coding/penalties.py", "nonnegative-ignored-step-by-step",
    "(z - threshold).clamp(min=0) if self.nonnegative else soft_threshold(z, threshold)",
    "soft_threshold(z, threshold)",
    "nonnegative-coding-iterates")
add("sparse_coding/code_blocks.py", "own-code-kept",
    "if settings.zero_diagonal and start < block.n_keys:", "if False:",
    "self-expression-iterates")
add("sparse_coding/sparse_attention.py", "own-code-kept-step-by-step",
    "if not self.zero_diagonal:", "if True:",
    "self-expression-iterates", "support-adaptive-self-expression-iterates")
add("sparse_coding/sparse_attention.py", "penalty-not-relative",
    "        if self.relative:\n", "        if False:\n",
    "relative-coding-iterates")
add("sparse_coding/sparse_attention.py", "penalty-not-relative-step-by-step",
    "lam_max(q, k, strongest_key(q, k, allowed)) if self.relative else 1.0", "1.0",
    "relative-coding-iterates")
add("sparse_coding/penalties.py", "penalty-relative-to-own-key",
    "size = size.masked_fill(~allowed, -1)", "pass",
    "relative-self-expression-iterates")
add("sparse_coding/sparse_attention.py", "penalty-of-first-iteration",
    "scale * lam[min(t, len(lam) - 1)].to(wide)", "scale * lam[0].to(wide)",
    "learned-coding-recursion")
add("sparse_coding/sparse_attention.py", "step-of-first-iteration",
    "(relative_step[min(t, len(lam) - 1)] * unit)", "(relative_step[0] * unit)",
    "learned-coding-recursion")
add("sparse_coding/iteration_parameters.py", "numbers-of-first-iteration",
    "values[min(t, len(values) - 1)]", "values[0]",
    "learned-ista-recursion", "unrolled-self-expression-recursion")
add("sparse_coding/sparse_attention.py", "support-step-ignored",
    "return support_step(codes, move, curvature(k, codes != 0), whole)",
    "return move(codes, 1 / whole)",
    "support-adaptive-coding-iterates")
add("sparse_coding/learned_ista.py", "other-dictionary-ignored",
    "self._dictionary(signals, dictionary).to(wide)", "self._dictionary(signals, None).to(wide)",
    "learned-ista-other-dictionary")
add("sparse_coding/learned_ista.py", "weight-of-first-iteration",
    "weight = self.weight[layer] if", "weight = self.weight[0] if",
    "learned-ista-coupled", "learned-ista-recursion")
add("sparse_coding/mixture_of_experts.py", "gates-always-renormalised",
    "best.softmax(-1) if self.renormalize else scores.softmax(-1).gather(-1, chosen)",
    "best.softmax(-1)",
    "sparse-mixture-of-experts")
add("image_filters.py", "noise-level-ignored-in-window",
    "-(distance - 2 * sigma**2).clamp(min=0) / h / h", "-distance / h / h",
    "nonlocal-means-windowed")
add("image_filters.py", "noise-level-ignored",
    "if sigma == 0:", "if True:",
    "nonlocal-means")
add("image_filters.py", "even-patch-on-wrong-side",
    "((patch_size - 1) // 2, patch_size // 2)", "(patch_size // 2, (patch_size - 1) // 2)",
    "nonlocal-means-windowed", "nonlocal-means")
add("image_filters.py", "colours-summed",
    ".square().mean(dim=1)", ".square().sum(dim=1)",
    "nonlocal-means-windowed")
add("image_filters.py", "window-one-pixel-narrower",
    "min(patch_distance, height - 1), min(patch_distance, width - 1)",
    "min(patch_distance - 1, height - 1), min(patch_distance - 1, width - 1)",
    "nonlocal-means-windowed")
add("conditioning.py", "graying-exponent-ignored",
    "largest * ratio**eps", "largest * ratio**0.95",
    "token-graying-dct")
add("conditioning.py", "singular-exponent-ignored",
    "torch.where(ratio > 0, ratio**eps, 0)", "torch.where(ratio > 0, ratio**0.95, 0)",
    "token-graying-svd")
add("conditioning.py", "transform-ignored",
    "_gray_dct if self.transform == \"dct\" else _gray_svd", "_gray_dct",
    "token-graying-svd")
add("kernel_smoothing/logistic.py", "negative-slope-ignored",
    "F.leaky_relu(logits, self.negative_slope)", "F.leaky_relu(logits)",
    "graph-attention")
add("kernel_smoothing/bilateral.py", "distances-ignored",
    "        if self.distances:\n", "        if False:\n",
    "bilateral-tokens", "nonlocal-means-tokens")
add("kernel_smoothing/bilateral.py", "positions-dropped",
    "if not self.uses_positions or context is None or context.projected_positions is None:",
    "if True:",
    "bilateral-attention")
add("kernel_smoothing/bilateral.py", "position-bandwidth-not-squared",
    "p_q if natural else p_q / hp**2", "p_q if natural else p_q / hp",
    "bilateral-attention")
add("kernel_smoothing/elliptical.py", "metric-ignored",
    "        if self.metric is not None:\n            return",
    "        if False:\n            return",
    "elliptical-given-metric")
add("boosting/residuals.py", "history-index-ignored",
    "return history[self.source]", "return history[-1]",
    "generalized-residual", "boosted-residual")
add("nonlocal_energy.py", "safe-step-ignored",
    "            if relaxed:\n", "            if False:\n",
    "neutreno-safe-iterates")
add("nonlocal_energy.py", "one-iteration-of-many",
    "for _ in range(self.n_iter):", "for _ in range(1):",
    "neutreno-iterates")
add("kernel_smoothing/balancing.py", "one-iteration-more",
    "for _ in range(self.n_iter):", "for _ in range(self.n_iter + 1):",
    "sinkhorn-iterates")
add("kernel_smoothing/linear.py", "linear-scale-ignored",
    "self.scale * call.q.to(wide), call", "call.q.to(wide) / 16, call",
    "linear-attention")
add("kernel_smoothing/softmax.py", "softmax-scale-ignored",
    "is_causal=is_causal, scale=self.scale)", "is_causal=is_causal)",
    "softmax-attention")
add("kernel_smoothing/symmetric.py", "symmetric-scale-ignored",
    "is_causal=is_causal, scale=self.scale)", "is_causal=is_causal)",
    "symmetric-attention")
add("kernel_smoothing/simplex.py", "sparsemax-scale-ignored",
    "scale = q.shape[-1] ** -0.5 if self.scale is None else self.scale",
    "scale = q.shape[-1] ** -0.5",
    "sparsemax-attention")
add("kernel_smoothing/local.py", "window-scale-ignored",
    "scale=self.scale,", "scale=None,",
    "local-window")
add("kernel_smoothing/local.py", "grid-ignored",
    "self.near(i // width - j // width, i % width - j % width)", "self.near(i - j, i - i)",
    "local-window")
add("kernel_smoothing/local.py", "class-token-sees-its-window",
    "near | (i < 0) | (j < 0) if n_class else near", "near",
    "local-window", "criss-cross")
add("kernel_smoothing/spatial_gaussian.py", "class-token-stands-on-grid",
    "squares = squares.masked_fill((i < 0) | (j < 0), 0)", "pass",
    "spatial-gaussian")
add("kernel_smoothing/gaussian.py", "fixed-bandwidth-ignored",
    "return self.bandwidth.initial", "return q.shape[-1] ** 0.25",
    "gaussian-attention")
add("kernel_smoothing/feature_kernel.py", "feature-map-ignored",
    "self.feature_map(x.to(dtype))", "elu_features(x.to(dtype))",
    "feature-kernel")
add("self_expression/key_products.py", "relative-penalty-ignored",
    "    if not relative:\n", "    if True:\n",
    "ridge-relative-penalty", "low-rank-relative-penalty")
add("self_expression/low_rank_attention.py", "relative-threshold-halved",
    "(lam if self.relative else lam / 2)", "(lam / 2)",
    "low-rank-relative-penalty")
add("self_expression/ridge_attention.py", "own-point-kept",
    "        if self.zero_diagonal:\n            out", "        if False:\n            out",
    "ridge-attention-zero-diagonal", "ridge-self-expression-zero-diagonal")
add("locally_linear.py", "regularisation-ignored",
    "reg=self.reg, allowed", "reg=1e-3, allowed",
    "locally-linear-attention")
add("locally_linear.py", "own-point-among-neighbours",
    "        if self.zero_diagonal:\n", "        if False:\n",
    "locally-linear")
add("sparse_coding/penalties.py", "squares-not-penalised",
    "if self.l1_ratio < 1:\n            codes", "if False:\n            codes",
    "unrolled-admm")
add("self_expression/unrolled_ista.py", "relative-penalty-of-unrolled-ignored",
    "scale = self._penalty_scale(products, hidden)", "scale = 1.0",
    "unrolled-self-expression-iterates")
add("self_expression/unrolled_ista.py", "features-of-queries-ignored",
    "q = self.features(queries)", "q = queries",
    "unrolled-self-expression-iterates", "unrolled-self-expression-new-points")
add("self_expression/self_expressive_network.py", "own-coefficient-kept",
    "if own is None:\n            return C\n", "if True:\n            return C\n",
    "self-expressive-network")
