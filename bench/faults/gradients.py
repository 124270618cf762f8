"""Faults of gradients: inputs detached, terms dropped, straight through a threshold."""

# fmt: off
from .fault import Faults

gradients = Faults("gradient")

_NUMPY = "Its twin runs the layer through NumPy, where no gradient is."

add = gradients.add
add("kernel_smoothing/softmax.py", "softmax-keys-detached",
    "return fused_attention(q, k, v,", "return fused_attention(q, k.detach(), v,",
    "softmax-attention")
add("kernel_smoothing/symmetric.py", "symmetric-queries-detached",
    "return fused_attention(k, k, v,", "return fused_attention(k.detach(), k, v,",
    "symmetric-attention")
add("kernel_smoothing/gaussian.py", "key-norms-detached",
    "k = torch.cat([k, norms], dim=-1)", "k = torch.cat([k, norms.detach()], dim=-1)",
    "gaussian-attention")
add("kernel_smoothing/kernel.py", "kernel-bandwidth-detached",
    "bandwidth = self.bandwidth().to(wide)", "bandwidth = self.bandwidth().to(wide).detach()",
    "laplace-kernel")
add("kernel_smoothing/alibi.py", "relative-slope-detached",
    "self.relative_slope().to(wide)", "self.relative_slope().to(wide).detach()",
    "alibi")
add("kernel_smoothing/balancing.py", "potentials-detached",
    "f = _potential(logits + g, -1)", "f = _potential(logits + g, -1).detach()",
    "sinkhorn-iterates")
add("kernel_smoothing/simplex.py", "projection-straight-through",
    "return inside.addcmul_(support, mean, value=-1)", "return inside",
    "sparsemax-attention")
add("kernel_smoothing/simplex.py", "projection-mean-over-all-keys",
    "/ support.sum(dim=-1, keepdim=True).clamp(min=1)", "/ support.shape[-1]",
    "sparsemax-attention")
add("attention/eigenvalues.py", "eigenvalue-gradient-halved",
    "return gradient[..., None] * u[..., :, None] * u[..., None, :]",
    "return gradient[..., None] * u[..., :, None] * u[..., None, :] / 2",
    "ridge-relative-penalty", "low-rank-relative-penalty", "support-adaptive-coding-iterates")
add("self_expression/low_rank_attention.py", "filter-gradient-of-eigenvalues-alone",
    "return R @ (g.differences() * inner) @ R.mT, by",
    "return R @ torch.diag_embed(g.differences().diagonal(dim1=-2, dim2=-1)\n"
    "            * inner.diagonal(dim1=-2, dim2=-1)) @ R.mT, by",
    "low-rank-attention")
add("self_expression/low_rank_attention.py", "threshold-gradient-of-other-sign",
    "by_threshold = -(inner", "by_threshold = (inner",
    "low-rank-attention")
add("self_expression/key_products.py", "gram-gradient-halved",
    "(gram + gram.mT).to(k.dtype)", "gram.to(k.dtype)",
    "ridge-attention", "low-rank-attention")
add("self_expression/key_products.py", "moments-gradient-dropped",
    "by_k = (k @ gram + v @ moments.mT)", "by_k = (k @ gram)",
    "ridge-attention")
add("self_expression/ridge_attention.py", "leverage-gradient-dropped",
    "by_whitened = by_whitened - 2 * by_rest * whitened", "pass",
    "ridge-attention-zero-diagonal", "ridge-self-expression-zero-diagonal")
add("self_expression/ridge_attention.py", "excess-gradient-dropped",
    "inverse.to(k.dtype).mT + by_excess @ weights.to(k.dtype).mT", "inverse.to(k.dtype).mT",
    "ridge-attention-zero-diagonal", "ridge-self-expression-zero-diagonal")
add("sparse_coding/code_blocks.py", "codes-straight-through",
    "torch.ops.aten.softshrink_backward.grad_input(dB, codes[i], 0.0, grad_input=dB)", "pass",
    "sparse-coding-iterates")
add("sparse_coding/code_blocks.py", "step-gradient-dropped",
    "gt.sub_((D * (Q - R[i])).sum(dim=-1, keepdim=True) * M / T)", "pass",
    "sparse-coding-iterates")
add("sparse_coding/code_blocks.py", "penalty-gradient-dropped",
    "gm.add_((D * R[i]).sum(dim=-1, keepdim=True))", "pass",
    "sparse-coding-iterates")
add("sparse_coding/code_blocks.py", "key-gradient-through-residual-dropped",
    "gk.baddbmm_(codes[i - 1].mT, D, alpha=-1)", "pass",
    "sparse-coding-iterates")
add("sparse_coding/code_blocks.py", "gradient-of-last-iteration-alone",
    "dB.baddbmm_(D, K.mT, alpha=-1)", "dB.zero_()",
    "sparse-coding-iterates")
add("sparse_coding/penalties.py", "relative-penalty-detached",
    "(q * keys).sum(dim=-1, keepdim=True).abs()",
    "(q * keys).sum(dim=-1, keepdim=True).abs().detach()",
    "relative-coding-iterates")
add("sparse_coding/step_lengths.py", "step-length-detached",
    ".clamp(max=_LONGEST)", ".clamp(max=_LONGEST).detach()",
    "sparse-coding-iterates", "unrolled-self-expression-iterates")
add("sparse_coding/learned_ista.py", "earlier-codes-detached",
    "residual = Y if codes is None else Y - codes @ D",
    "residual = Y if codes is None else Y - codes.detach() @ D",
    "learned-ista-step", "learned-ista-recursion")
add("sparse_coding/mixture_of_experts.py", "gates-detached",
    "return gates.to(x.dtype), chosen", "return gates.detach().to(x.dtype), chosen",
    "sparse-mixture-of-experts")
add("conditioning.py", "largest-singular-value-held",
    "core[..., 0, 0] += scale", "pass",
    "token-graying-svd")
add("conditioning.py", "rotation-of-singular-vectors-dropped",
    " + antisymmetric * sums", "",
    "token-graying-svd")
add("conditioning.py", "largest-coefficient-held",
    "torch.where(kept, size, 1) / torch.where(kept, largest, 1)",
    "torch.where(kept, size, 1) / torch.where(kept, largest, 1).detach()",
    "token-graying-dct")
add("fixed_point.py", "gradient-of-one-step",
    "solved = ctx.solve(grad)", "solved = grad",
    "neutreno-solved", "sparse-coding-solved")
add("locally_linear.py", "ridge-detached",
    "trace = gram.diagonal(", "trace = gram.detach().diagonal(",
    "locally-linear-attention")
add("nonlocal_energy.py", "fidelity-weight-detached",
    "torch.addcmul(smooth, first - u, lam)", "torch.addcmul(smooth, first - u, lam.detach())",
    "neutreno-attention")
add("spectral_filtering/attention_scaling.py", "high-pass-weight-half-detached",
    "torch.addcmul(-omega * mean,", "torch.addcmul(-omega.detach() * mean,",
    "attn-scale")
add("spectral_filtering/feature_scaling.py", "mean-detached",
    " + s * dc", " + s * dc.detach()",
    "feat-scale")
add("spectral_filtering/reattention.py", "mixing-detached",
    "return self.theta.to(q.dtype),", "return self.theta.detach().to(q.dtype),",
    "re-attention")
add("boosting/twicing_attention.py", "residual-detached",
    "once + A @ drop_hidden(v - once, call.mask)",
    "once + A @ drop_hidden(v - once.detach(), call.mask)",
    "twicing-attention")
add("boosting/residuals.py", "residual-weight-detached",
    "t = self.t.to(y.dtype)", "t = self.t.detach().to(y.dtype)",
    "boosted-residual", "generalized-residual",
    survives=_NUMPY)
add("image_filters.py", "filter-strength-detached",
    "h=self.h().to(image.dtype)", "h=self.h().detach().to(image.dtype)",
    "nonlocal-means-windowed", "nonlocal-means")
add("image_filters.py", "filter-weights-detached",
    "(weights[:, None] * values)", "(weights.detach()[:, None] * values)",
    "nonlocal-means-windowed")
add("self_expression/self_expressive_network.py", "threshold-detached",
    "threshold = self.threshold().to(K.dtype)", "threshold = self.threshold().detach().to(K.dtype)",
    "self-expressive-network",
    survives=_NUMPY)
add("self_expression/unrolled_ista.py", "unrolled-step-detached",
    "unit = safe_step(k).to(wide)", "unit = safe_step(k).detach().to(wide)",
    "unrolled-self-expression-iterates", "unrolled-self-expression-recursion")
add("self_expression/unrolled_admm.py", "penalty-of-splitting-detached",
    "beta = 2 * lam * squares /", "beta = 2 * lam.detach() * squares /",
    "unrolled-admm",
    survives=_NUMPY)
