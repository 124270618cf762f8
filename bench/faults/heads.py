"""Faults of heads and batches: the parameter of one for all, or an order mixed up."""

# fmt: off
from .fault import Faults

heads = Faults("heads")

add = heads.add
add("kernel_smoothing/gaussian.py", "gaussian-bandwidth-of-first-head",
    "return self.bandwidth().to(q.dtype)", "return self.bandwidth().to(q.dtype).flatten()[0]",
    "gaussian-attention")
add("kernel_smoothing/kernel.py", "kernel-bandwidth-of-first-head",
    "bandwidth = self.bandwidth().to(wide)", "bandwidth = self.bandwidth().to(wide).flatten()[0]",
    "laplace-kernel")
add("kernel_smoothing/bilateral.py", "bilateral-bandwidths-of-first-head",
    "else bandwidth().to(q.dtype)", "else bandwidth().to(q.dtype).flatten()[0]",
    "bilateral-attention")
add("kernel_smoothing/spatial_gaussian.py", "filter-bandwidth-of-first-head",
    "self.grid.on(k, context), self.bandwidth()\n",
    "self.grid.on(k, context), self.bandwidth().flatten()[0]\n",
    "spatial-gaussian")
add("kernel_smoothing/alibi.py", "slope-of-first-head",
    "slopes[:, None, None] *", "slopes[:1, None, None] *",
    "alibi")
add("kernel_smoothing/alibi.py", "relative-slope-of-first-head",
    "self.relative_slope().to(wide)", "self.relative_slope().to(wide).flatten()[0]",
    "alibi")
add("self_expression/key_products.py", "penalty-of-first-head",
    "lam = lam.double()", "lam = lam.double().flatten()[0]",
    "ridge-attention", "low-rank-attention")
add("sparse_coding/sparse_attention.py", "sparse-penalty-of-first-head",
    "lam = at_iteration(self.lam, 0).to(wide)",
    "lam = at_iteration(self.lam, 0).to(wide).flatten()[0]",
    "sparse-coding-iterates")
add("sparse_coding/sparse_attention.py", "relative-step-of-first-head",
    "step=at_iteration(self.relative_step, 0) * step",
    "step=at_iteration(self.relative_step, 0).flatten()[0] * step",
    "sparse-coding-iterates")
add("spectral_filtering/attention_scaling.py", "high-pass-weight-of-first-head",
    "return self.omega.to(q.dtype)", "return self.omega.to(q.dtype).flatten()[0]",
    "attn-scale")
add("nonlocal_energy.py", "fidelity-of-first-head",
    "lam, first = self.lam().to(v.dtype),", "lam, first = self.lam().to(v.dtype).flatten()[0],",
    "neutreno-attention")
add("kernel_smoothing/logistic.py", "weight-of-first-head",
    "terms = k.to(wide) @ self.key_weight.to(wide)",
    "terms = k.to(wide) @ self.key_weight.to(wide).reshape(-1, self.head_dim, 1)[0]",
    "logistic-attention", "graph-attention")
add("kernel_smoothing/tupe.py", "position-features-of-heads-mixed",
    "projected.unflatten(-1, (2 * self.num_heads, -1)).transpose(-3, -2)",
    "projected.unflatten(-1, (-1, 2 * self.num_heads)).movedim(-1, -3)",
    "tupe")
add("kernel_smoothing/elliptical.py", "given-metric-of-first-head",
    "else metric[:, None]\n", "else metric[:1, None]\n",
    "elliptical-given-metric")
add("spectral_filtering/reattention.py", "mixing-of-heads-transposed",
    "A.movedim(-3, -1) @ theta", "A.movedim(-3, -1) @ theta.mT",
    "re-attention")
add("spectral_filtering/reattention.py", "maps-of-one-bandwidth",
    "bandwidth = base.bandwidth_for(q)", "bandwidth = base.bandwidth_for(q).flatten()[0]",
    "re-attention")
add("image_filters.py", "patches-of-first-image",
    "shifted = _shifts(wide, dy, padded.shape)", "shifted = _shifts(wide[:1], dy, padded.shape)",
    "nonlocal-means-windowed")
add("attention/inputs.py", "batch-of-first-keys",
    "x if x.shape[:-2] == batch else", "x[:1].expand_as(x) if x.ndim > 3 else",
    "softmax-attention")
