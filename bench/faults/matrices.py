"""Faults of `matrix`: unmasked, of another scale, or of another operator than the layer's."""

# fmt: off
from .fault import Faults

matrices = Faults("matrix")

add = matrices.add
add("attention/operator.py", "matrix-ignores-causal",
    "Call(q, k, k[..., :0], mask, is_causal, context)",
    "Call(q, k, k[..., :0], mask, False, context)",
    "softmax-attention")
add("attention/operator.py", "matrix-ignores-mask",
    "Call(q, k, k[..., :0], mask, is_causal, context)",
    "Call(q, k, k[..., :0], None, is_causal, context)",
    "softmax-attention")
add("kernel_smoothing/softmax.py", "softmax-matrix-unscaled",
    "return scale * call.q @ call.k.mT", "return call.q @ call.k.mT",
    "softmax-attention")
add("kernel_smoothing/gaussian.py", "gaussian-matrix-of-twice-the-distance",
    "(-squares / self.bandwidth_for(q) ** 2 / 2)", "(-squares / self.bandwidth_for(q) ** 2)",
    "gaussian-attention")
add("kernel_smoothing/linear.py", "linear-matrix-unscaled",
    "return self.scale * visible_products", "return visible_products",
    "linear-attention")
add("kernel_smoothing/linear.py", "linear-matrix-not-causal",
    "call.hiding(\"Linear\").pairs()", "call.hiding(\"Linear\").mask",
    "linear-attention")
add("kernel_smoothing/feature_kernel.py", "feature-matrix-not-normalised",
    "return _divide(weights, weights.sum(dim=-1, keepdim=True)).to(q.dtype)",
    "return weights.to(q.dtype)",
    "feature-kernel")
add("boosting/twicing_attention.py", "twicing-matrix-smooths-once",
    "return 2 * A - A @ drop_hidden(A, call.mask)", "return A",
    "twicing-attention")
add("spectral_filtering/attention_scaling.py", "mean-matrix-unmasked",
    "omega * uniform", "omega / A.shape[-1]",
    "attn-scale")
add("nonlocal_energy.py", "matrix-of-another-step",
    "A / (1 + lam) if self.relaxed else A - lam * identity", "A - lam * identity",
    "neutreno-safe-iterates", "neutreno-attention")
add("nonlocal_energy.py", "matrix-of-one-iteration",
    "torch.linalg.matrix_power(linear, self.n_iter)", "linear",
    "neutreno-iterates", "neutreno-attention")
add("self_expression/ridge_attention.py", "ridge-matrix-transposed",
    "return torch.cholesky_solve(k @ q.mT, factor).mT",
    "return torch.cholesky_solve(q @ k.mT, factor)",
    "ridge-attention")
add("self_expression/low_rank_attention.py", "low-rank-matrix-without-queries",
    "(q.double() @ self._filter(k.mT @ k) @ k.mT)", "(k @ self._filter(k.mT @ k) @ k.mT)",
    "low-rank-attention")
add("sparse_coding/sparse_attention.py", "codes-one-iteration-short",
    "return repeated(self.iteration(call), zero, range(self.n_iter))",
    "return repeated(self.iteration(call), zero, range(self.n_iter - 1))",
    "sparse-coding-iterates")
add("kernel_smoothing/spatial_gaussian.py", "filter-matrix-of-first-tokens",
    "_logits(query_offset(q, k), k.shape[-2], k,", "_logits(0, q.shape[-2], k,",
    "spatial-gaussian")
add("kernel_smoothing/alibi.py", "alibi-matrix-of-first-tokens",
    "_distances(query_offset(q, k), q, k)", "_distances(0, q, k)",
    "alibi")
add("kernel_smoothing/local.py", "window-matrix-of-first-tokens",
    "tokens[query_offset(q, k) :]", "tokens[: q.shape[-2]]",
    "local-window")
add("kernel_smoothing/symmetric.py", "symmetric-matrix-of-queries",
    "return scale * k @ k.mT", "return scale * q @ k.mT",
    "symmetric-attention")
add("kernel_smoothing/bilateral.py", "bilateral-matrix-without-positions",
    "return tokens + self._term(", "return tokens + 0 * self._term(",
    "bilateral-attention")
add("kernel_smoothing/tupe.py", "tupe-matrix-of-another-temperature",
    "(2 * q.shape[-1]) ** 0.5", "q.shape[-1] ** 0.5",
    "tupe")
add("kernel_smoothing/elliptical.py", "elliptical-matrix-without-metric",
    "torch.einsum(\"...id,...id,...jd->...ij\", q, metric, call.k)", "q @ call.k.mT",
    "elliptical-attention")
add("kernel_smoothing/simplex.py", "sparsemax-matrix-unmasked",
    "masked_logits(self.logits(call.q, call.k), call.pairs())", "self.logits(call.q, call.k)",
    "sparsemax-attention")
add("kernel_smoothing/top_k.py", "top-k-matrix-unmasked",
    "self._weights(call.q, call.k, call.pairs())", "self._weights(call.q, call.k, None)",
    "top-k")
add("kernel_smoothing/logistic.py", "logistic-matrix-without-queries",
    "self._sums(self._query_terms(call.q), call", "self._sums(0 * self._query_terms(call.q), call",
    "graph-attention")
add("locally_linear.py", "weights-to-neighbours-in-reverse",
    "zeros.scatter(-1, indices, weights)", "zeros.scatter(-1, indices.flip(-1), weights)",
    "locally-linear-attention")
add("spectral_filtering/reattention.py", "mixed-matrix-unmasked",
    "call.k.to(wide), mask=mask)", "call.k.to(wide))",
    "re-attention")
add("solved_operator.py", "solved-matrix-of-another-scale",
    "torch.linalg.solve((1 + lam) * identity - A, lam * identity)",
    "torch.linalg.solve((1 + lam) * identity - A, identity)",
    "neutreno-solved")
