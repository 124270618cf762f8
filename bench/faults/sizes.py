"""Faults of sizes: blocks, few tokens, many, and fewer queries than keys."""

# fmt: off
from .fault import Faults

sizes = Faults("size")

add = sizes.add
add("attention/fused.py", "every-block-starts-at-zero",
    "q[..., i : i + _QUERY_BLOCK, :], i)", "q[..., i : i + _QUERY_BLOCK, :], 0)",
    "spatial-gaussian", "alibi", "local-window")
add("attention/fused.py", "narrow-values-unscaled",
    "return torch.softmax((scale * q) @ k.mT, dim=-1) @ v",
    "return torch.softmax(q @ k.mT, dim=-1) @ v",
    "softmax-attention")
add("attention/fused.py", "narrow-values-gradient-of-keys-dropped",
    "return torch.softmax((scale * q) @ k.mT, dim=-1) @ v",
    "return torch.softmax((scale * q) @ k.detach().mT, dim=-1) @ v",
    "softmax-attention", "gaussian-attention")
add("attention/fused.py", "blocks-unscaled",
    "blocked_attention(scale * q, k, v)", "blocked_attention(q, k, v)",
    "softmax-attention")
add("kernel_smoothing/linear.py", "chunk-before-alone",
    "(0, 0, 0, 0, 1, 0)).cumsum(dim=-3)", "(0, 0, 0, 0, 1, 0))",
    "linear-attention", "feature-kernel")
add("kernel_smoothing/simplex.py", "threshold-of-group-maxima",
    "return _newton(z, _threshold(torch.cat([largest, rest], dim=-1)))",
    "return _threshold(torch.cat([largest, rest], dim=-1))",
    "sparsemax-attention")
add("kernel_smoothing/simplex.py", "threshold-after-one-newton-step",
    "before is None or bool((size < before).any())", "before is None",
    "sparsemax-attention")
add("sparse_coding/code_blocks.py", "own-code-of-first-block",
    "codes.diagonal(offset=start, dim1", "codes.diagonal(offset=0, dim1",
    "self-expression-iterates")
add("sparse_coding/code_blocks.py", "causal-offset-of-first-block",
    "codes.tril_(start + settings.offset)", "codes.tril_(settings.offset)",
    "sparse-coding-iterates")
add("attention/masks.py", "mask-of-first-block",
    "return mask[..., start : start + rows.shape[-2], :]", "return mask[..., : rows.shape[-2], :]",
    "support-adaptive-coding-iterates", "learned-coding-recursion")
add("sparse_coding/sparse_attention.py", "own-code-of-first-block-step-by-step",
    "own = torch.arange(start, start + q.shape[-2], device=q.device)",
    "own = torch.arange(q.shape[-2], device=q.device)",
    "support-adaptive-self-expression-iterates", "learned-self-expression-recursion")
add("self_expression/ridge_attention.py", "few-keys-keep-own-point",
    "return (C - ratio[..., None] * P).masked_fill(own, 0)", "return C.masked_fill(own, 0)",
    "ridge-attention-zero-diagonal", "ridge-self-expression-zero-diagonal")
add("self_expression/low_rank_attention.py", "few-keys-without-queries",
    "q.double() @ k.mT, self._filter(k @ k.mT) @ v.double()",
    "k @ k.mT, self._filter(k @ k.mT) @ v.double()",
    "low-rank-attention")
add("self_expression/low_rank_attention.py", "few-keys-unfiltered",
    "self._filter(k @ k.mT) @ v.double()", "torch.linalg.inv(k @ k.mT) @ v.double()",
    "low-rank-attention")
add("self_expression/self_expressive_network.py", "own-coefficient-of-first-rows",
    "own[start : start + len(rows)]", "own[: len(rows)]",
    "self-expressive-network")
add("self_expression/self_expressive_network.py", "own-coefficient-of-first-columns",
    "torch.arange(at, at + len(K), device", "torch.arange(len(K), device",
    "self-expressive-network")
add("self_expression/unrolled_admm.py", "own-coefficient-of-first-block",
    "own_keys(own, start, rows, k)", "own_keys(own, 0, rows, k)",
    "unrolled-admm")
add("self_expression/unrolled_ista.py", "own-code-of-first-block-of-unrolled",
    "own_keys(own, start, rows, k)", "own_keys(own, 0, rows, k)",
    "unrolled-self-expression-iterates")
add("boosting/twicing_attention.py", "many-tokens-smoothed-twice",
    "call._replace(v=call.v - once)", "call._replace(v=once)",
    "twicing-attention")
add("kernel_smoothing/alibi.py", "distances-of-first-tokens",
    "_distances(offset + start, rows, k)", "_distances(start, rows, k)",
    "alibi")
add("kernel_smoothing/features.py", "positions-of-first-tokens",
    "features[..., query_offset(q, k) :, :]", "features[..., : q.shape[-2], :]",
    "tupe", "bilateral-attention")
add("kernel_smoothing/elliptical.py", "metric-of-first-tokens",
    "metric[..., query_offset(q, k) :, :]", "metric[..., : q.shape[-2], :]",
    "elliptical-attention")
add("kernel_smoothing/local.py", "window-of-first-tokens",
    "own = slice(offset + start, offset + start + rows.shape[-2])",
    "own = slice(start, start + rows.shape[-2])",
    "local-window")
add("kernel_smoothing/local.py", "window-ends-a-row-early",
    "self.radius + 1) * width", "self.radius) * width",
    "local-window")
add("kernel_smoothing/local.py", "window-begins-a-row-late",
    "(start // width - self.radius) * width", "(start // width - self.radius + 1) * width",
    "local-window")
add("spectral_filtering/means.py", "means-of-first-tokens",
    "(v, visible)[..., offset:, :]", "(v, visible)[..., : n_keys - offset, :]",
    "attn-scale")
