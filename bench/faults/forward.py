"""Faults of the default forward pass: thresholds, steps, bandwidths and temperatures."""

# fmt: off
from .fault import Faults

forward = Faults("forward")

add = forward.add
add("kernel_smoothing/gaussian.py", "bandwidth-not-squared",
    "scale=bandwidth**-2)", "scale=bandwidth**-1)",
    "gaussian-attention")
add("kernel_smoothing/gaussian.py", "key-norms-not-halved",
    "return -k.square().sum(dim=-1, keepdim=True) / 2",
    "return -k.square().sum(dim=-1, keepdim=True)",
    "gaussian-attention")
add("kernel_smoothing/kernel.py", "laplace-of-squares",
    "\"laplace\": lambda q, k: -distances(q, k)",
    "\"laplace\": lambda q, k: -squared_distances(q, k)",
    "laplace-kernel")
add("kernel_smoothing/kernel.py", "gaussian-of-twice-the-square",
    "-squared_distances(q, k) / 2", "-squared_distances(q, k)",
    "gaussian-kernel")
add("kernel_smoothing/feature_kernel.py", "features-cut-off",
    "x.relu() + x.clamp(max=0).exp()", "x.relu()",
    "feature-kernel")
add("kernel_smoothing/tupe.py", "positions-of-another-temperature",
    "(q.shape[-1] - p_q.shape[-1]) * 2", "q.shape[-1] - p_q.shape[-1]",
    "tupe")
add("kernel_smoothing/balancing.py", "columns-balanced-last",
    "f = _potential(logits + g, -1)", "pass",
    "sinkhorn-iterates", "sinkhorn-limit")
add("kernel_smoothing/elliptical.py", "metric-by-mean",
    "largest = sums.amax(dim=-1, keepdim=True)", "largest = sums.mean(dim=-1, keepdim=True)",
    "elliptical-attention")
add("kernel_smoothing/top_k.py", "one-key-more",
    "min(self.n_largest, k.shape[-2])", "min(self.n_largest + 1, k.shape[-2])",
    "top-k")
add("kernel_smoothing/local.py", "window-narrower",
    "(rows.abs() <= self.radius) &", "(rows.abs() < self.radius) &",
    "local-window")
add("kernel_smoothing/local.py", "row-and-column",
    "(rows == 0) | (columns == 0)", "(rows == 0) & (columns == 0)",
    "criss-cross")
add("kernel_smoothing/logistic.py", "bias-dropped",
    " + self.bias.to(wide)", "",
    "graph-attention")
add("kernel_smoothing/alibi.py", "causal-feature-unscaled",
    "slopes * index / (scale * unit)", "slopes * index / unit",
    "alibi")
add("sparse_coding/penalties.py", "hard-threshold",
    "return z.sign() * (z.abs() - threshold).clamp(min=0)",
    "return torch.where(z.abs() > threshold, z, 0)",
    "learned-ista-step", "unrolled-self-expression-iterates")
add("sparse_coding/penalties.py", "threshold-doubled",
    "self.lam * (self.l1_ratio / 2)", "self.lam * self.l1_ratio",
    "support-adaptive-coding-iterates", "learned-coding-recursion")
add("sparse_coding/code_blocks.py", "threshold-doubled-in-blocks",
    "(2 / lam, step * lam / 2)", "(1 / lam, step * lam)",
    "sparse-coding-iterates")
add("sparse_coding/step_lengths.py", "step-halved",
    ".rsqrt()).clamp(max=_LONGEST)", ".rsqrt() / 2).clamp(max=_LONGEST)",
    "sparse-coding-iterates")
add("sparse_coding/iterations.py", "long-step-beyond-support",
    "return torch.where(grows, short, long)", "return long",
    "support-adaptive-coding-iterates")
add("sparse_coding/penalties.py", "largest-penalty-halved",
    "2 * (q * keys)", "(q * keys)",
    "relative-coding-iterates")
add("sparse_coding/learned_ista.py", "penalty-of-first-layer",
    "lam = at_iteration(self.lam, t)", "lam = at_iteration(self.lam, 0)",
    "learned-ista-recursion")
add("sparse_coding/mixture_of_experts.py", "worst-experts",
    "scores.topk(self.top_k, dim=-1)", "scores.topk(self.top_k, dim=-1, largest=False)",
    "sparse-mixture-of-experts")
add("boosting/twicing_attention.py", "residual-subtracted",
    "return once + A @", "return once - A @",
    "twicing-attention")
add("boosting/residuals.py", "skip-connection-dropped",
    "return x + y\n", "return y\n",
    "residual-snr")
add("boosting/residuals.py", "first-tokens-added",
    "torch.addcmul(x + y, t, earlier - x)", "torch.addcmul(x + y, t, earlier)",
    "boosted-residual")
add("boosting/residuals.py", "present-tokens-added",
    "torch.addcmul(y, t, earlier)", "torch.addcmul(x + y, t, earlier)",
    "generalized-residual")
add("nonlocal_energy.py", "fidelity-of-wrong-sign",
    "torch.addcmul(smooth, first - u, lam)", "torch.addcmul(smooth, u - first, lam)",
    "neutreno-attention")
add("nonlocal_energy.py", "safe-step-not-divided",
    "torch.addcmul(smooth, first, lam) / (1 + lam)", "torch.addcmul(smooth, first, lam)",
    "neutreno-safe-iterates")
add("self_expression/low_rank_attention.py", "singular-values-kept-whole",
    "torch.where(self.on, self.w - self.t.squeeze(-1), 0)", "torch.where(self.on, self.w, 0)",
    "low-rank-attention")
add("self_expression/ridge_attention.py", "own-point-not-divided",
    "return a / torch.maximum(rest, alone) * excess", "return a * excess",
    "ridge-attention-zero-diagonal", "ridge-self-expression-zero-diagonal")
add("self_expression/key_products.py", "relative-to-singular-value",
    "torch.where(largest > 0, largest, 1)", "torch.where(largest > 0, largest.sqrt(), 1)",
    "ridge-relative-penalty")
add("self_expression/unrolled_ista.py", "unrolled-threshold-doubled",
    "SparsePenalty(scale * penalties[t]", "SparsePenalty(2 * scale * penalties[t]",
    "unrolled-self-expression-iterates")
add("self_expression/unrolled_admm.py", "splitting-threshold-halved",
    "penalties = lam * lam_max_of", "penalties = lam / 2 * lam_max_of",
    "unrolled-admm")
add("self_expression/self_expressive_network.py", "width-not-divided",
    "soft_threshold(Q @ K.mT, threshold) / self.width", "soft_threshold(Q @ K.mT, threshold)",
    "self-expressive-network")
add("self_expression/self_expressive_network.py", "embedding-unbounded",
    "nn.Sequential(*layers[:-1], nn.Tanh())", "nn.Sequential(*layers[:-1])",
    "self-expressive-network", "self-expressive-network-bound")
add("locally_linear.py", "ridge-not-relative",
    "torch.where(trace > 0, reg * trace, 1.0)", "torch.where(trace > 0, reg, 1.0)",
    "locally-linear-attention")
add("locally_linear.py", "weights-do-not-sum-to-one",
    "h / torch.where(valid.any(dim=-1, keepdim=True), total, 1.0)", "h",
    "locally-linear-attention")
add("image_filters.py", "strength-not-squared",
    "clamp(min=0) / h / h)\n        weights", "clamp(min=0) / h)\n        weights",
    "nonlocal-means-windowed")
add("image_filters.py", "patch-distance-not-averaged",
    "h * (patches.shape[-1] / 2) ** 0.5", "h * patches.shape[-1] ** 0.5",
    "nonlocal-means")
add("image_filters.py", "outside-counts",
    "weights = weights * _shifts(inside, dy, image.shape)[:, 0].transpose(1, 2)", "pass",
    "nonlocal-means-windowed")
add("spectral_filtering/attention_scaling.py", "low-pass-dropped",
    "-omega * mean, 1 + omega, smoothed", "-omega * mean, omega, smoothed",
    "attn-scale")
add("spectral_filtering/feature_scaling.py", "mean-and-rest-exchanged",
    "torch.addcmul(y, t, y - dc) + s * dc", "torch.addcmul(y, s, y - dc) + t * dc",
    "feat-scale")
add("spectral_filtering/reattention.py", "norm-bias-dropped",
    "gamma, beta, self.norm.eps", "gamma, 0 * beta, self.norm.eps",
    "re-attention")
add("spectral_filtering/reattention.py", "norm-of-another-eps",
    "beta, self.norm.eps)", "beta, 1e-3)",
    "re-attention")
add("conditioning.py", "cosines-not-orthonormal",
    "return torch.cat([D[:1] / math.sqrt(2), D[1:]])", "return D",
    "token-graying-dct")
add("attention/operator.py", "values-of-all-tokens-averaged",
    "Call(q, k, v, mask, is_causal, context)",
    "Call(q, k, v.mean(-2, keepdim=True).expand_as(v), mask, is_causal, context)",
    "softmax-gain-bound", "softmax-depth-bound", "attn-scale-gain", "softmax-attention")
