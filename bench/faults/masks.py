"""Faults of causal masks, padding, masks of pairs and additive ones."""

# fmt: off
from .fault import Faults

causal = Faults("causal mask")
masks = Faults("mask")

add = causal.add
add("attention/masks.py", "causal-hides-own-key",
    "pairs.tril(query_offset(q, k))", "pairs.tril(query_offset(q, k) - 1)",
    "softmax-attention", "laplace-kernel")
add("attention/masks.py", "causal-shows-next-key",
    "pairs.tril(query_offset(q, k))", "pairs.tril(query_offset(q, k) + 1)",
    "softmax-attention", "laplace-kernel")
add("attention/masks.py", "causal-queries-are-first-tokens",
    "pairs.tril(query_offset(q, k))", "pairs.tril()",
    "softmax-attention")
add("attention/call.py", "causal-block-hides-own-key",
    "own[:, None] >= torch", "own[:, None] > torch",
    "laplace-kernel", "top-k")
add("attention/call.py", "causal-block-starts-anew",
    "first = start + query_offset(self.q, self.k)", "first = query_offset(self.q, self.k)",
    "laplace-kernel", "top-k")
add("attention/call.py", "causal-block-queries-are-first-tokens",
    "first = start + query_offset(self.q, self.k)", "first = start",
    "laplace-kernel", "sparsemax-attention")
add("attention/fused.py", "causal-drops-padding",
    "combine_masks(mask, causal_mask(q, k))", "causal_mask(q, k)",
    "softmax-attention")
add("attention/fused.py", "causal-kernel-on-fewer-queries",
    "if is_causal and (mask is not None or q.shape[-2] != k.shape[-2]):",
    "if is_causal and mask is not None:",
    "softmax-attention")
add("kernel_smoothing/linear.py", "causal-linear-hides-own-key",
    "(q @ k.mT).tril() @ v\n    return", "(q @ k.mT).tril(-1) @ v\n    return",
    "linear-attention")
add("kernel_smoothing/linear.py", "causal-linear-sums-own-chunk-twice",
    "F.pad(sums[..., :-1, :, :], (0, 0, 0, 0, 1, 0)).cumsum(dim=-3)", "sums.cumsum(dim=-3)",
    "linear-attention")
add("kernel_smoothing/linear.py", "causal-linear-forgets-earlier-keys",
    "return past + linear_attention(", "return linear_attention(",
    "linear-attention", "feature-kernel")
add("kernel_smoothing/feature_kernel.py", "causal-features-ignored",
    "linear_attention(q, k, with_mass, is_causal=call.is_causal)",
    "linear_attention(q, k, with_mass)",
    "feature-kernel")
add("kernel_smoothing/alibi.py", "causal-alibi-drops-padding",
    "return _causal(q, k, v, slopes, mask)", "return _causal(q, k, v, slopes, None)",
    "alibi")
add("kernel_smoothing/alibi.py", "causal-alibi-favours-distant-keys",
    "split_feature(slopes * index / (scale * unit)",
    "split_feature(-slopes * index / (scale * unit)",
    "alibi")
add("kernel_smoothing/elliptical.py", "causal-metric-sees-later-values",
    "elliptical_weights(values, previous, is_causal=is_causal)",
    "elliptical_weights(values, previous)",
    "elliptical-attention")
add("kernel_smoothing/elliptical.py", "causal-metric-under-padding-sees-later-values",
    "combine_masks(visible, causal_mask(q, k)) if is_causal else visible", "visible",
    "elliptical-attention")
add("spectral_filtering/means.py", "causal-mean-of-all-values",
    "return _running_mean(v, None)[..., offset:, :] if is_causal else _mean(v)", "return _mean(v)",
    "attn-scale")
add("spectral_filtering/means.py", "causal-mean-counts-one-key-more",
    "torch.arange(1, n_keys + 1,", "torch.arange(2, n_keys + 2,",
    "attn-scale")
add("spectral_filtering/means.py", "causal-mean-of-pairs-ignores-causal",
    "visible = visible.tril(offset) if is_causal else visible\n", "\n",
    "attn-scale")
add("sparse_coding/code_blocks.py", "causal-codes-see-next-key",
    "codes.tril_(start + settings.offset)", "codes.tril_(start + settings.offset + 1)",
    "sparse-coding-iterates")
add("sparse_coding/code_blocks.py", "causal-codes-hide-last-key",
    "stop + offset\n", "stop + offset - 1\n",
    "sparse-coding-iterates")
add("sparse_coding/step_lengths.py", "causal-step-counts-own-square-thrice",
    "squares.tril(start - 1)", "squares.tril(start)",
    "sparse-coding-iterates")
add("sparse_coding/sparse_attention.py", "causal-steps-of-first-queries",
    "step[..., query_offset(q, k) :, :] if is_causal", "step[..., : q.shape[-2], :] if is_causal",
    "sparse-coding-iterates")
add("sparse_coding/sparse_attention.py", "causal-penalty-without-own-key",
    "earlier = own[:, None] >= torch", "earlier = own[:, None] > torch",
    "relative-coding-iterates")
add("locally_linear.py", "causal-neighbours-ignored",
    "call.hiding(\"LocallyLinear\").pairs()", "call.hiding(\"LocallyLinear\").mask",
    "locally-linear-attention")
add("spectral_filtering/reattention.py", "causal-maps-ignored",
    "call.pairs_of(rows, start)", "call._replace(is_causal=False).pairs_of(rows, start)",
    "re-attention")
add("kernel_smoothing/logistic.py", "causal-logistic-ignored",
    "if not is_causal and (mask is None or mask.shape[-2] == 1):",
    "if mask is None or mask.shape[-2] == 1:",
    "logistic-attention")
add("kernel_smoothing/gaussian.py", "causal-early-rows-on-wrong-keys",
    "seen = slice(offset + n_early)", "seen = slice(n_early)",
    "gaussian-attention")
add("nonlocal_energy.py", "causal-fidelity-smooths-over-all",
    "call._replace(v=u).output", "call._replace(v=u, is_causal=False).output",
    "neutreno-attention")
add("boosting/twicing_attention.py", "causal-matrix-of-twicing-ignored",
    "A = call.matrix_of(self.base)\n        return",
    "A = call._replace(is_causal=False).matrix_of(self.base)\n        return",
    "twicing-attention")

add = masks.add
add("attention/masks.py", "hidden-keys-keep-their-values",
    "return torch.where(seen, x, 0)", "return x",
    "softmax-attention", "ridge-attention", "linear-attention")
add("attention/masks.py", "softmax-ignores-mask",
    "logits = logits.masked_fill(~mask, -torch.inf)", "pass",
    "softmax-attention")
add("attention/masks.py", "bias-subtracted",
    "logits = logits + mask", "logits = logits - mask",
    "softmax-attention")
add("attention/masks.py", "row-without-keys-averages-all",
    ".masked_fill(empty, 0), dim=-1).masked_fill(empty, 0)", ".masked_fill(empty, 0), dim=-1)",
    "laplace-kernel", "exponential-kernel", "top-k")
add("attention/masks.py", "masks-do-not-add-up",
    "return mask & allowed", "return allowed",
    "softmax-attention", "local-window")
add("attention/masks.py", "negative-bias-hides",
    "mask <= torch.finfo(mask.dtype).min / 2", "mask < 0",
    "softmax-attention")
add("attention/fused.py", "mask-on-keys-and-queries-exchanged",
    "mask = mask[(None,) * (4 - mask.ndim)]",
    "mask = mask[(None,) * (4 - mask.ndim)]\n"
    "        mask = mask.mT if mask.shape[-2] == mask.shape[-1] else mask",
    "softmax-attention")
add("attention/fused.py", "first-mask-for-all-heads",
    "mask = mask[(None,) * (4 - mask.ndim)]", "mask = mask[(None,) * (4 - mask.ndim)][:, :1]",
    "softmax-attention")
add("kernel_smoothing/balancing.py", "sinkhorn-ignores-padding",
    "None if mask is None else padding_mask(mask, k.shape[-2], \"Sinkhorn\")", "None",
    "sinkhorn-iterates")
add("kernel_smoothing/balancing.py", "sinkhorn-balances-hidden-rows",
    "logits if visible is None else logits.masked_fill(~visible.mT, _low(logits))", "logits",
    "sinkhorn-iterates")
add("self_expression/key_products.py", "self-expression-ignores-padding",
    "return torch.where(padding_mask(mask, k.shape[-2], name).mT, k, 0)", "return k",
    "ridge-attention", "low-rank-attention")
add("kernel_smoothing/linear.py", "linear-pairs-on-wrong-axis",
    "call.pairs_of(rows, start)", "call._replace(mask=call.mask.mT).pairs_of(rows, start)",
    "linear-attention")
add("kernel_smoothing/feature_kernel.py", "features-ignore-pairs",
    "visible_products(rows, k, call.pairs_of(rows, start))", "visible_products(rows, k, None)",
    "feature-kernel")
add("kernel_smoothing/top_k.py", "largest-among-hidden-keys-too",
    "smallest = logits.detach()", "smallest = ((scale * q.to(wide)) @ k.to(wide).mT).detach()",
    "top-k")
add("kernel_smoothing/simplex.py", "sparsemax-ignores-mask",
    "project_on_simplex(masked_logits(self.logits(rows, k), visible))",
    "project_on_simplex(self.logits(rows, k))",
    "sparsemax-attention")
add("locally_linear.py", "neighbours-hidden-too",
    "nearness = nearness.masked_fill(~allowed, torch.inf)", "pass",
    "locally-linear-attention")
add("locally_linear.py", "neighbours-of-later-block-under-first-mask",
    "mask_rows(allowed, rows, start)", "mask_rows(allowed, rows, 0)",
    "locally-linear-attention")
add("sparse_coding/code_blocks.py", "first-mask-for-all-codes",
    "codes.masked_fill_(hidden[heads, rows, : block.n_keys], 0)",
    "codes.masked_fill_(hidden[:1, rows, : block.n_keys], 0)",
    "sparse-coding-iterates")
add("sparse_coding/sparse_attention.py", "step-of-all-keys",
    "safe_step(keys, visible, is_causal)", "safe_step(keys, None, is_causal)",
    "sparse-coding-iterates")
add("sparse_coding/sparse_attention.py", "step-of-all-keys-step-by-step",
    "unit = safe_step(k, seen)", "unit = safe_step(k)",
    "sparse-coding-iterates")
add("sparse_coding/sparse_attention.py", "curvature-of-all-keys",
    "k.new_ones(1, k.shape[-2]) if seen is None else seen", "k.new_ones(1, k.shape[-2])",
    "support-adaptive-coding-iterates")
add("nonlocal_energy.py", "fidelity-smooths-over-hidden-keys",
    "call._replace(v=u).output", "call._replace(v=u, mask=None).output",
    "neutreno-attention")
add("boosting/twicing_attention.py", "residual-smoothed-over-hidden-keys",
    "call._replace(v=call.v - once)", "call._replace(v=call.v - once, mask=None)",
    "twicing-attention", "twicing-of-twicing")
add("spectral_filtering/attention_scaling.py", "mean-over-hidden-keys",
    "visible_mean(v, mask=mask, is_causal", "visible_mean(v, is_causal",
    "attn-scale")
add("spectral_filtering/reattention.py", "hidden-keys-get-the-bias",
    "return mixed if mask is None else mixed.masked_fill(hidden_by(mask), 0)", "return mixed",
    "re-attention")
add("spectral_filtering/feature_scaling.py", "feature-mean-over-padding",
    "dc = visible_mean(y, mask=mask, is_causal=is_causal)",
    "dc = visible_mean(y, is_causal=is_causal)",
    "feat-scale", "block-feat-scale",
    survives="The twins give FeatScale no masks.")
add("kernel_smoothing/biased.py", "bias-replaces-mask",
    "add_bias(call.mask, self.bias.to(q.dtype))", "self.bias.to(q.dtype)",
    "biased-attention")
add("kernel_smoothing/bilateral.py", "distances-drop-mask",
    "gaussian_attention(q, k, v, bandwidth=1.0, mask=mask,",
    "gaussian_attention(q, k, v, bandwidth=1.0, mask=None,",
    "bilateral-tokens", "nonlocal-means-tokens")
add("kernel_smoothing/local.py", "window-drops-mask",
    "mask=combine_masks(seen, near)", "mask=near",
    "local-window", "criss-cross")
add("kernel_smoothing/alibi.py", "distance-bias-drops-mask",
    "mask=add_bias(seen, bias.to(q.dtype))", "mask=bias.to(q.dtype)",
    "alibi")
