"""Faults of constructors: defaults, initial values, and what is made of the arguments."""

# fmt: off
from .fault import Faults

defaults = Faults("constructor")

add = defaults.add
add("kernel_smoothing/alibi.py", "slopes-start-at-one",
    "2 ** (-8 * (h + 1) / power) for h in range(power)",
    "2 ** (-8 * h / power) for h in range(power)",
    "alibi")
add("kernel_smoothing/alibi.py", "slopes-between-shifted",
    "2 ** (-4 * (h + 1) / power)", "2 ** (-4 * (h + 2) / power)",
    "alibi")
add("nonlocal_energy.py", "fidelity-halved",
    "lam, name=\"lam\", num_heads", "lam / 2, name=\"lam\", num_heads",
    "neutreno-attention")
add("nonlocal_energy.py", "fidelity-default-changed",
    "lam: float = 0.6", "lam: float = 0.3",
    "neutreno-attention",
    survives="The check builds layers with arguments, and a signature's default is one of them.")
add("self_expression/ridge_attention.py", "ridge-penalty-halved",
    "lam, name=\"lam\", num_heads", "lam / 2, name=\"lam\", num_heads",
    "ridge-attention")
add("self_expression/low_rank_attention.py", "low-rank-penalty-halved",
    "lam, name=\"lam\", num_heads", "lam / 2, name=\"lam\", num_heads",
    "low-rank-attention")
add("sparse_coding/sparse_attention.py", "sparse-penalty-halved",
    "((\"lam\", lam), (", "((\"lam\", lam / 2), (",
    "sparse-coding-iterates")
add("sparse_coding/learned_ista.py", "learned-penalty-halved",
    "self.lam = positive_per_iteration(lam, n_iter",
    "self.lam = positive_per_iteration(lam / 2, n_iter",
    "learned-ista-step", "learned-ista-recursion")
add("self_expression/unrolled_ista.py", "unrolled-penalty-halved",
    "self.lam = positive_per_iteration(lam, n_iter",
    "self.lam = positive_per_iteration(lam / 2, n_iter",
    "unrolled-self-expression-iterates")
add("self_expression/unrolled_admm.py", "splitting-penalty-halved",
    "self.lam = Positive(lam, name", "self.lam = Positive(lam / 2, name",
    "unrolled-admm")
add("attention/parameters.py", "learnable-number-starts-at-its-logarithm",
    "self.log.fill_(math.log(self.initial))", "self.log.fill_(self.initial)",
    "laplace-kernel", "ridge-attention", "neutreno-attention", "nonlocal-means")
add("attention/fused.py", "default-temperature-missing",
    "scale = q.shape[-1] ** -0.5 if scale is None else scale", "scale = scale or 1.0",
    "alibi", "elliptical-attention", "softmax-attention")
add("kernel_smoothing/gaussian.py", "default-bandwidth-squared",
    "return q.shape[-1] ** 0.25", "return q.shape[-1] ** 0.5",
    "gaussian-attention")
add("kernel_smoothing/bilateral.py", "default-bandwidths-squared",
    "return q.shape[-1] ** 0.25 if", "return q.shape[-1] ** 0.5 if",
    "bilateral-attention", "nonlocal-attention", "bilateral-tokens")
add("kernel_smoothing/simplex.py", "sparsemax-default-temperature-missing",
    "q.shape[-1] ** -0.5 if self.scale", "1.0 if self.scale",
    "sparsemax-attention")
add("kernel_smoothing/linear.py", "linear-default-scale-changed",
    "scale: float = 1 / 16", "scale: float = 1 / 8",
    "linear-attention",
    survives="The check builds layers with arguments, and a signature's default is one of them.")
add("conditioning.py", "graying-default-changed",
    "eps: float = 0.95)", "eps: float = 0.9)",
    "token-graying-dct", "token-graying-svd",
    survives="The check builds layers with arguments, and a signature's default is one of them.")
add("spectral_filtering/attention_scaling.py", "high-pass-weight-starts-at-one",
    "self.omega = nn.Parameter(torch.zeros(shape,", "self.omega = nn.Parameter(torch.ones(shape,",
    "attn-scale-init")
add("spectral_filtering/feature_scaling.py", "layer-scale-starts-at-one",
    "nn.init.constant_(self.gamma, self.initial)", "nn.init.ones_(self.gamma)",
    "layer-scale")
add("boosting/residuals.py", "residual-weight-starts-at-zero",
    "0.0 if self.source is None else 1.0", "0.0",
    "generalized-residual", "boosted-residual-init")
add("sparse_coding/learned_ista.py", "first-step-of-root-of-curvature",
    "return norm**-2 if norm > 0", "return norm**-1 if norm > 0",
    "learned-ista-step")
add("sparse_coding/learned_ista.py", "gram-weight-starts-halved",
    "\"gram_weight\": D @ D.mT}", "\"gram_weight\": D @ D.mT / 2}",
    "learned-ista-lista")
add("sparse_coding/coherence.py", "analytic-weights-not-normalised",
    "(rows / torch.where(leverage > 0, leverage, 1)[:, None])", "rows",
    "analytic-lista-limit")
add("sparse_coding/coherence.py", "analytic-step-doubled",
    "return float(1 / radius)", "return float(2 / radius)",
    "analytic-lista-limit")
add("self_expression/unrolled_admm.py", "relaxation-left-out",
    "_RELAXATION = 1.6", "_RELAXATION = 1.0",
    "unrolled-admm")
