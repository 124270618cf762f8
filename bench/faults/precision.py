"""Faults of precision: sums in the dtype of the inputs, and digits dropped on the way."""

# fmt: off
from .fault import Faults

precision = Faults("precision")

_WITHIN = "It moves the output by less than bfloat16 rounds it, which the tolerance allows."

add = precision.add
add("kernel_smoothing/kernel.py", "kernel-in-bfloat16",
    "wide = torch.promote_types(q.dtype, torch.float32)", "wide = q.dtype",
    "laplace-kernel", "gaussian-kernel")
add("kernel_smoothing/linear.py", "linear-in-bfloat16",
    "out_type, wide = v.dtype, torch.promote_types(v.dtype, torch.float32)",
    "out_type, wide = v.dtype, v.dtype",
    "linear-attention",
    survives=_WITHIN)
add("kernel_smoothing/feature_kernel.py", "features-in-bfloat16",
    "        wide = torch.promote_types(x.dtype, torch.float32)\n", "        wide = x.dtype\n",
    "feature-kernel")
add("kernel_smoothing/simplex.py", "threshold-in-bfloat16",
    "wide = torch.promote_types(q.dtype, torch.float32)", "wide = q.dtype",
    "sparsemax-attention",
    survives=_WITHIN)
add("kernel_smoothing/gaussian.py", "key-norms-in-bfloat16",
    "return torch.cat([high, (exact - high.float()).to(k.dtype)], dim=-1)", "return high",
    "gaussian-attention",
    survives=_WITHIN)
add("kernel_smoothing/features.py", "slope-feature-in-bfloat16",
    "for _ in range(3):", "for _ in range(1):",
    "alibi",
    survives=_WITHIN)
add("locally_linear.py", "local-systems-in-float32",
    "dtype, q, k = q.dtype, q.double(), k.double()", "dtype, q, k = q.dtype, q.float(), k.float()",
    "locally-linear-attention")
add("sparse_coding/step_lengths.py", "step-in-float32",
    "    k = k.double()\n    if visible", "    k = k.float()\n    if visible",
    "sparse-coding-iterates")
add("sparse_coding/sparse_attention.py", "codes-in-bfloat16",
    "return torch.promote_types(q.dtype, wide)", "return q.dtype",
    "sparse-coding-iterates",
    survives=_WITHIN)
add("self_expression/key_products.py", "products-in-float32",
    "transposed = k.double().mT\n"
    "        return transposed @ transposed.mT, transposed @ v.double()",
    "transposed = k.float().mT\n"
    "        found = transposed @ transposed.mT, transposed @ v.float()\n"
    "        return tuple(x.double() for x in found)",
    "ridge-attention", "low-rank-attention")
add("conditioning.py", "graying-in-float32",
    "gray(X.double(), self.eps)", "gray(X.float(), self.eps)",
    "token-graying-dct", "token-graying-svd")
add("kernel_smoothing/pair_distances.py", "distances-by-products",
    "return torch.cdist(q, k, compute_mode=\"donot_use_mm_for_euclid_dist\").square()",
    "return torch.cdist(q.float(), k.float()).square().to(q.dtype)",
    "gaussian-kernel")
add("fixed_point.py", "fixed-point-stopped-early",
    "(change <= tol * size)", "(change <= 1e-2 * size)",
    "neutreno-solved", "sparse-coding-solved")
