"""Every argument of the solvers is checked: the error names it, whichever function it was.

Functions of images take other arrays, and are checked in their own tests.
"""

from inspect import isfunction, signature
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.sparse import csr_array

from twinsolve.solvers import OMPSubspaceClustering
from twinsolve.solvers.nonlocal_energy import FilterBank, Potentials, dct_filters

from ..public import public

PUBLIC = public("solvers")

rng = np.random.default_rng(0)
POINTS, SQUARE = rng.standard_normal((6, 4)), rng.standard_normal((6, 6))
AFFINITY = np.abs(SQUARE + SQUARE.T)
LABELS = [0, 0, 0, 1, 1, 1]
STOCHASTIC = AFFINITY / AFFINITY.sum(axis=1, keepdims=True)
# A number that may have any sign is a np.float32 here, one that must be >= 0 a float.
ANY = np.float32(0.5)
# Arrays in tuples are not walked: logits may be -inf, others may have one or three dimensions.
MASKABLE = tuple(SQUARE)
ENERGY = {"f": POINTS, "K": AFFINITY, "lam": 1.0}
KERNEL = {"queries": POINTS, "keys": POINTS, "bandwidth": 1.0}
LINEAR = {"query_weight": SQUARE, "key_weight": SQUARE, "value_weight": SQUARE}
RIDGE = {
    "f": POINTS,
    "bank": FilterBank(dct_filters(2)),
    "potentials": Potentials(np.ones((3, 1)), np.ones((3, 1))),
}
SPARSE_CODING = {"Y": POINTS, "dictionary": POINTS, "lam": 1.0}
ALLOWED: dict[str, dict[str, Any]] = {
    "admm_low_rank_self_expression": {
        "X": POINTS, "lam": 1.0, "penalty": 1.0, "growth": 1.1, "tol": 1e-3, "max_iter": 500,
    },
    "admm_outlier_self_expression": {
        "X": POINTS, "lam": 1.0, "lam_outlier": 1.0, "penalty": 1.0, "tol": 0.1, "max_iter": 9,
    },
    "admm_self_expression": {"X": POINTS, "lam": 1.0, "penalty": 1.0, "tol": 0.1, "max_iter": 9},
    "anisotropic_nonlocal_means": {
        "X": POINTS, "values": POINTS, "metric": tuple(POINTS**2), "h": 1.0,
    },
    "attention_condition_bound": {"X": SQUARE} | LINEAR,
    "attention_spectrum": {"A": SQUARE},
    "basis_pursuit_self_expression": {"X": POINTS, "tol": 1e-6, "max_iter": 100},
    "boost": {"filter": SQUARE, "y": POINTS, "t": ANY, "n_iter": 2},
    "boosting_lipschitz_bound": {"lipschitz": 1.0, "n_layers": 2, "t": 0.5},
    "choose_clusterer": {
        "estimators": (OMPSubspaceClustering(2, random_state=0),), "X": tuple(POINTS),
    },
    "choose_settings": {
        "estimator": OMPSubspaceClustering(2, random_state=0), "X": tuple(POINTS),  # it checks them
        "grid": {"n_nonzero": [1, 2]},
    },
    "clustering_accuracy": {"labels_true": LABELS, "labels_pred": LABELS},
    "coefficient_distance": {"coef": SQUARE, "reference": SQUARE},
    "condition_number": {"X": POINTS},
    "connectivity": {"affinity": AFFINITY, "labels_true": LABELS},
    "convex_ridge": RIDGE | {"lam": 1.0},
    "coordinate_descent": SPARSE_CODING | {"n_iter": 2},
    "dct_dictionary": {"patch_size": 2, "n_frequencies": 3, "channels": 2},
    "dct_filters": {"size": 3},
    "duality_gap": SPARSE_CODING | {"coef": SQUARE, "l1_ratio": 0.5},
    "eigengap_n_clusters": {"affinity": AFFINITY, "max_clusters": 3},
    "elliptical_metric": {"values": POINTS, "previous": SQUARE[:, :4]},
    "energy_gradient": {"u": POINTS} | ENERGY,
    "entropic_gap": {"logits": MASKABLE, "probabilities": tuple(STOCHASTIC)},
    "ergodicity_coefficient": {"A": STOCHASTIC},
    "exact_gradient_flow": ENERGY | {"time": 1.0},
    "feed_forward_condition_bound": {"X": POINTS, "up_weight": SQUARE[:4], "down_weight": POINTS},
    "filter_diffusion_step": RIDGE | {"u": POINTS, "lam": ANY},
    "filter_energy": RIDGE | {"u": POINTS, "lam": ANY},
    "filter_energy_gradient": RIDGE | {"u": POINTS, "lam": ANY},
    "fista": SPARSE_CODING | {"n_iter": 2, "step": 0.1},
    "generalized_residual": {"filter": SQUARE, "y": POINTS, "sources": (0, 0), "weights": ANY},
    "gradient_flow": ENERGY | {"n_iter": 2, "step": 0.01},
    "gray_tokens": {"X": POINTS, "eps": 0.9},
    "high_frequency_gain": {"A": STOCHASTIC},
    "high_frequency_gain_bound": {"n_tokens": 4, "alpha": 1.0, "n_layers": 2},
    "high_frequency_share": {"X": POINTS},
    "high_pass_scale": {"A": STOCHASTIC, "omega": ANY},
    "high_pass_values": {"smoothed": POINTS, "values": POINTS, "omega": ANY},
    "ista": SPARSE_CODING | {"n_iter": 2, "step": 0.1},
    "keep_l1_mass": {"coef": SQUARE, "mass": 0.7},
    "keep_largest": {"coef": SQUARE, "n_entries": 1},
    "ksvd": {"Y": POINTS, "n_atoms": 3, "n_nonzero": 1, "n_iter": 2},
    "l1_analysis": {
        "f": POINTS, "bank": RIDGE["bank"], "lam": 1.0, "tol": 1e-6, "max_iter": 500,
    },
    "l2_boosting": {"smoother": SQUARE, "values": POINTS, "n_iter": 2, "shrinkage": 0.5},
    "lam_from_alpha": {"X": POINTS, "alpha": 2.0},
    "lam_from_gamma": {"X": POINTS, "gamma": 2.0},
    "lam_max": {"Y": POINTS, "dictionary": POINTS},
    "lasso_objective": SPARSE_CODING | {"coef": SQUARE, "l1_ratio": 0.5},
    "least_squares_residual": {"X": POINTS, "coef": SQUARE, "lam": 1.0},
    "least_squares_self_expression": {"X": POINTS, "lam": 1.0},
    "local_linear_regression": KERNEL | {"values": POINTS, "reg": 0.1},
    "local_linear_residual": KERNEL | {"values": POINTS, "estimate": POINTS, "reg": 0.1},
    "locally_linear_embedding": {
        "weights": csr_array(np.roll(np.eye(6), 1, axis=1)), "n_components": 2, "tol": 1e-3,
        "max_iter": 20,
    },
    "locally_linear_residual": {
        "X": POINTS, "weights": csr_array(np.roll(np.eye(6), 1, axis=1)), "reg": 0.1,
    },
    "locally_linear_weights": {"X": POINTS, "n_neighbors": 2, "reg": 0.1},
    "low_pass_ratio": {"A": STOCHASTIC, "values": POINTS, "n_steps": 2},
    "low_rank_affinity": {"coef": SQUARE, "power": 4.0},
    "low_rank_gap": {"X": POINTS, "coef": SQUARE, "lam": 1.0},
    "low_rank_self_expression": {"X": POINTS, "lam": 1.0},
    "low_rank_sparse_self_expression": {
        "X": POINTS, "lam": 1.0, "beta": 1.0, "tol": 1e-3, "max_iter": 500,
    },
    "marginal_violation": {"matrix": SQUARE},
    "method_noise": {"filter": SQUARE, "y": POINTS},
    "minimize_convex_ridge": RIDGE | {"lam": 1.0, "tol": 1e-6, "max_iter": 500},
    "minimize_energy": ENERGY | {"tol": 1e-6, "max_iter": 1000},
    "nadaraya_watson": KERNEL | {"values": POINTS},
    "nadaraya_watson_residual": KERNEL | {"values": POINTS, "estimate": POINTS},
    "nearest_rows_affinity": {"coef": SQUARE, "n_neighbors": 1},
    "neutreno_fixed_point": {
        "f": POINTS, "A": STOCHASTIC, "lam": 0.5, "tol": 1e-6, "max_iter": 1000,
    },
    "neutreno_iteration": {"f": POINTS, "A": STOCHASTIC, "lam": 0.1, "n_iter": 2},
    "neutreno_lam_limit": {"K": AFFINITY},
    "neutreno_spectral_radius": {"A": STOCHASTIC, "lam": 0.5},
    "omp_self_expression": {"X": POINTS, "n_nonzero": 2, "tol": 0.1},
    "oriented_metric": {
        "image": tuple(SQUARE), "patch_size": 3, "along": 3.0, "across": 1.0, "sigma": 1.5,
    },
    "outlier_lams_from_alpha": {"X": POINTS, "alpha": 2.0},
    "outlier_self_expression": {
        "X": POINTS, "lam": 1.0, "lam_outlier": 1.0, "tol": 1e-6, "max_iter": 100,
    },
    "proximal_self_expression": {
        "X": POINTS, "prox": lambda Z, t: Z / (1 + 2 * t), "lam": 1.0, "tol": 1e-3, "max_iter": 500,
    },
    "random_walk_limit": {"values": POINTS, "A": STOCHASTIC},
    "random_walk_rate": {"A": STOCHASTIC},
    "random_walk_values": {"values": POINTS, "A": STOCHASTIC, "n_steps": 2},
    "rank_clusterings": {"scores": (0.5, 0.7), "labellings": (LABELS, LABELS)},
    "regularized_energy": {"u": POINTS} | ENERGY,
    "relative_residual": {"coef": SQUARE, "X": POINTS, "targets": POINTS},
    "residual_noise_share": {"filter": SQUARE, "signal": POINTS, "noise": POINTS},
    "robust_low_rank_self_expression": {"X": POINTS, "lam": 1.0, "tol": 1e-3, "max_iter": 500},
    "scale_by_row_maximum": {"coef": SQUARE},
    "scale_frequencies": {"Y": POINTS, "s": ANY, "t": ANY},
    "selection_score": {"affinity": AFFINITY, "labels": LABELS, "n_clusters": 2},
    "signal_to_noise_ratio": {"signal": POINTS, "noise": POINTS},
    "simplex_projection_residual": {"logits": MASKABLE, "probabilities": tuple(STOCHASTIC)},
    "sinkhorn": {"logits": MASKABLE, "tol": 1e-6, "max_iter": 1000},
    "skip_condition_bound": {"X": SQUARE, "M": SQUARE @ SQUARE.T},
    "smoother_matrix": KERNEL,
    "smoothness": {"u": POINTS, "K": AFFINITY},
    "smoothness_gradient": {"u": POINTS, "K": AFFINITY},
    "snr_gain_bound": {"signal_share": 1.0, "cosine": ANY, "noise_share": 0.5},
    "softmax_rows": {"coef": SQUARE},
    "sos_boosting": {"filter": STOCHASTIC, "y": POINTS, "n_iter": 2, "rho": 0.5, "tau": 0.5},
    "sos_tau_max": {"eigenvalues": (0.5, 1.0), "rho": 0.5},
    "sparse_code": SPARSE_CODING | {"tol": 1e-6, "l1_ratio": 0.5, "max_iter": 100},
    "sparse_code_path": {
        "Y": POINTS, "dictionary": POINTS, "lams": (1.0,), "tol": 1e-6, "l1_ratio": 0.5,
        "max_iter": 100,
    },
    "sparse_self_expression": {
        "X": POINTS, "lam": 1.0, "tol": 1e-6, "l1_ratio": 0.5, "max_iter": 100,
    },
    "sparsemax": {"logits": MASKABLE},
    "spectral_labels": {"affinity": AFFINITY, "n_clusters": 2},
    "split_frequencies": {"X": POINTS},
    "stationary_distribution": {"A": STOCHASTIC},
    "subspace_preserving_error": {"coef": SQUARE, "labels_true": LABELS},
    "svd_power_affinity": {"coef": SQUARE, "n_clusters": 2, "dimension": 1, "power": 2.0},
    "symmetric_affinity": {"coef": SQUARE},
    "total_variation": {"f": POINTS, "lam": 1.0, "tol": 1e-6, "max_iter": 500},
    "twicing": {"smoother": SQUARE, "values": POINTS},
    "unit_rows": {"coef": SQUARE},
    "weighted_least_squares_residual": {"weights": AFFINITY, "values": POINTS, "estimate": POINTS},
}  # fmt: skip


LATER, TINY = np.tri(6, dtype=bool), np.diag([1.0] * 5 + [1e-7])
NOTHING = np.full((2, 2), -np.inf)
FAR = {"queries": POINTS + 99, "kernel": "epanechnikov"}
COUPLES, STACK = np.ones((6, 2)), np.ones((6, 2, 3))
# What only some functions refuse: of what is allowed, what is changed, and the message.
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("keep_l1_mass", {"mass": 1.1}, "mass: must be"),
    *(
        (name, {"coef": wrap(np.ones((2, 3)))}, "coef: must be square")
        for name in ("symmetric_affinity", "svd_power_affinity", "nearest_rows_affinity")
        for wrap in (np.asarray, csr_array)
    ),
    *(
        (name, {"affinity": wrap(np.array(bad))}, f"affinity: {words}")
        for name in ("spectral_labels", "eigengap_n_clusters", "selection_score")
        for wrap in (np.asarray, csr_array)
        for bad, words in [
            (np.ones((2, 3)), "must be square"),
            ([[0.0, -1.0], [-1.0, 0.0]], "must be nonnegative"),
            ([[0.0, 1.0], [0.5, 0.0]], "must be symmetric"),
        ]
    ),
    ("selection_score", {"labels": [0]}, "labels: must be one for each of 6"),
    ("selection_score", {"labels": None, "n_clusters": 7}, "n_clusters: must be at most"),
    ("spectral_labels", {"n_clusters": 7}, "n_clusters: must be at most n_samples=6, got 7"),
    ("spectral_labels", {"assign_labels": "discretize"}, "assign_labels: must be"),
    ("admm_low_rank_self_expression", {"growth": 0.9}, "growth: must be >= 1, got"),
    ("anisotropic_nonlocal_means", {"metric": np.ones((5, 4))}, "metric: has 5 rows, but there ar"),
    ("anisotropic_nonlocal_means", {"metric": np.ones(3)}, "metric: has 3 columns"),
    ("anisotropic_nonlocal_means", {"metric": -np.ones(4)}, "metric: must be >= 0"),
    ("anisotropic_nonlocal_means", {"metric": np.full(4, np.nan)}, "metric: .*NaN"),
    ("anisotropic_nonlocal_means", {"values": POINTS[:5]}, "values: has 5 rows"),
    ("attention_condition_bound", {"X": SQUARE[:5]}, "X: needs at least as many tokens"),
    ("attention_condition_bound", {"X": np.ones((6, 6))}, "X: must have full rank"),
    ("attention_condition_bound", {"X": TINY}, "X: the output is too ill-conditioned"),
    ("attention_condition_bound", {"key_weight": np.ones((6, 6))}, "key_weight: must have full"),
    ("attention_condition_bound", {"value_weight": np.eye(3)}, "value_weight: must be 6 x 6"),
    ("attention_condition_bound", {"query_weight": SQUARE[:1]}, "query_weight: must be 6 x 6"),
    ("attention_spectrum", {"A": POINTS}, r"A: must be square, got shape \(6, 4\)"),
    ("boost", {"t": [0.1, 0.2, 0.3]}, "t: must be a number or hold one entry for each of the 2"),
    ("boost", {"filter": [SQUARE] * 3}, "filter: holds 3 filters for 2 layers"),
    ("boost", {"filter": np.ones((3, 6, 6))}, "filter: holds 3 filters for 2 layers"),
    ("boost", {"filter": [SQUARE, np.eye(2)]}, r"filter\[1\]: must be 6 x 6"),
    ("boost", {"filter": [np.tanh, np.sum]}, r"filter\[1\]: must return a real array"),
    ("boost", {"filter": np.ones((1, 3, 2, 2))}, "filter: Found array with dim 4"),
    ("boosting_lipschitz_bound", {"t": 1.5}, r"t: must be in \[0, 1\]"),
    ("clustering_accuracy", {"labels_pred": [0]}, "labels_pred: needs as many as labels_true, got"),
    ("coefficient_distance", {"reference": np.eye(3)}, ".*reference has"),
    ("condition_number", {"X": [[1.0], [1.0, 2.0]]}, "X: "),
    ("connectivity", {"labels_true": range(6)}, "labels_true: needs a class with at least two"),
    ("connectivity", {"labels_true": [0, 1]}, "labels_true: needs one label a sample"),
    ("elliptical_metric", {"previous": POINTS[:4]}, "previous: has 4 rows"),
    ("ergodicity_coefficient", {"A": np.tri(2)}, "A: every row must sum to 1, but row 1 is off"),
    ("feed_forward_condition_bound", {"X": POINTS[:3]}, "X: needs at least as many tokens"),
    ("feed_forward_condition_bound", {"up_weight": SQUARE[:5]}, "up_weight: has 5 rows, but X"),
    ("feed_forward_condition_bound", {"down_weight": SQUARE[:, :5]}, "down_weight: must have 6"),
    ("generalized_residual", {"sources": [0, 2]}, r"sources\[1\]: must be a whole"),
    ("generalized_residual", {"sources": 3}, "sources: must be a sequence"),
    ("generalized_residual", {"weights": [1.0]}, "weights: must be a number or hold one entry"),
    ("gray_tokens", {"X": [[[1.0, 2.0]], [[1.0]]]}, "X: "),
    ("gray_tokens", {"eps": 1.01}, r"eps: must be in \(0, 1\], got 1.01"),
    ("gray_tokens", {"transform": "fft"}, 'transform: must be "svd" or "dct", got \'fft\''),
    ("gray_tokens", {"transform": None}, 'transform: must be "svd" or "dct"'),
    ("gray_tokens", {"transform": np.array(["svd", "dct"])}, 'transform: must be "svd" or "dct"'),
    ("high_frequency_gain", {"A": 2 * np.eye(3)}, "A: every row"),
    ("high_pass_scale", {"A": 2 * STOCHASTIC}, "A: every row must sum to 1"),
    ("high_pass_scale", {"visible": LATER}, "visible: A has weight on a key"),
    ("high_pass_scale", {"visible": 1.0 * LATER}, "visible: must be boolean"),
    ("high_pass_scale", {"visible": [True, True]}, "visible: must broadcast to"),
    ("high_pass_scale", {"visible": [[True], [True, False]]}, "visible: must be an"),
    ("high_pass_values", {"visible": np.diag([1, 1, 0, 1, 1, 1]) > 0}, "visible: query 2 sees no"),
    ("high_pass_values", {"values": COUPLES}, "smoothed: has 4 columns, but 2"),
    ("ista", {"step": "long"}, 'step: must be a number, an array or "support"'),
    ("ista", {"step": [1.0] * 3}, "step: must be a number or hold 2"),
    ("ksvd", {"n_atoms": 7}, r"n_atoms: must be a whole number in \[1, 6\]"),
    ("ksvd", {"n_nonzero": 4}, r"n_nonzero: must be a whole number in \[1, 3\]"),
    ("l2_boosting", {"shrinkage": 1.01}, r"shrinkage: must be in \(0, 1\]"),
    ("lam_from_alpha", {"X": np.eye(2)}, "X: has a row that is orthogonal"),
    ("lasso_objective", {"coef": np.ones((3, 2))}, "coef: must have shape"),
    ("least_squares_residual", {"coef": np.ones((5, 6))}, "coef: must have shape"),
    ("least_squares_self_expression", {"X": [[1.0]], "zero_diagonal": True}, "X: Found array with"),
    ("local_linear_regression", {"values": POINTS[:5]}, "values: has 5 rows"),
    ("local_linear_regression", FAR, "bandwidth: query 0 has no key"),
    ("local_linear_residual", {"estimate": POINTS[:4]}, "estimate: has 4 rows, but there are"),
    ("locally_linear_embedding", {"weights": np.eye(4)[:3]}, "weights: must be square"),
    ("locally_linear_embedding", {"weights": np.ones((1, 1))}, "weights: must be square, of 2 row"),
    ("locally_linear_embedding", {"weights": np.ones((4, 4))}, "weights: every row must sum to 1"),
    ("locally_linear_embedding", {"weights": np.full((4, 4), 0.2501)}, "weights: every row must s"),
    ("locally_linear_embedding", {"n_components": 6}, r"n_components: .* in \[1, 5\], got 6"),
    ("locally_linear_embedding", {"random_state": "a"}, "'a' cannot be used to seed"),
    ("locally_linear_weights", {"n_neighbors": None}, "n_neighbors: give either n_neighbors or"),
    ("locally_linear_weights", {"graph": csr_array(np.ones((6, 6)))}, "n_neighbors: give either"),
    *(
        ("locally_linear_weights", {"n_neighbors": None, "graph": graph}, f"graph: {words}")
        for graph, words in [
            (np.ones((6, 6)), r"must be a sparse array of shape \(6, 6\)"),
            (csr_array((6, 2)), "must be"),
            (csr_array(np.eye(6)), "row 0 has no neighbours"),
        ]
    ),
    ("locally_linear_weights", {"n_neighbors": 6}, r"n_neighbors: must be a whole number in \[1,"),
    ("locally_linear_weights", {"queries": POINTS[:, :3]}, "queries: has 3 columns"),
    ("low_pass_ratio", {"A": np.eye(2)}, "A: must be 6 x 6 to fit the other input"),
    ("low_rank_gap", {"coef": np.eye(2)}, "coef: has 2 columns"),
    ("marginal_violation", {"matrix": np.ones((1, 2))}, "matrix: must be square"),
    ("method_noise", {"filter": lambda v: v * np.inf}, "filter: its result holds NaN or infinity"),
    ("nadaraya_watson", {"kernel": "cosine"}, "kernel: must be a callable or one of"),
    ("nadaraya_watson", {"kernel": ["gaussian"]}, "kernel: must be a callable or one of"),
    ("nadaraya_watson", {"kernel": lambda r: -r}, "kernel: must return"),
    ("nadaraya_watson", {"kernel": lambda r: 0.0 * r}, "bandwidth: query 0 has no key"),
    ("nadaraya_watson", {"kernel": lambda r: r + 1e308}, r"kernel: must return .* at most 1e\+307"),
    ("nadaraya_watson", {"queries": POINTS[:, :2]}, "queries: has 2 columns"),
    ("nadaraya_watson", {"values": POINTS[:5]}, "values: has 5 rows, but there are 6 keys"),
    ("nadaraya_watson_residual", {"estimate": POINTS[:5]}, "estimate: has 5 rows, but there"),
    ("neutreno_fixed_point", {"lam": np.ones(4)}, "lam: must be a number or hold one entry for"),
    ("neutreno_lam_limit", {"K": np.diag([1.0, 0.0])}, "K: row 1 is zero"),
    ("omp_self_expression", {"n_nonzero": 6}, r"n_nonzero: must be a whole number in \[1, 5\]"),
    ("oriented_metric", {"patch_size": 4}, "patch_size: must be odd"),
    ("oriented_metric", {"image": np.zeros((3, 3, 3))}, "image: .*dim 3"),
    ("outlier_lams_from_alpha", {"X": np.zeros((2, 2))}, "X: has a zero row"),
    ("proximal_self_expression", {"prox": []}, "prox: must be a callable"),
    ("proximal_self_expression", {"prox": [1]}, "prox: must be a callable"),
    ("regularized_energy", {"u": POINTS[:, :1]}, "(u|f): (has|Found)"),
    ("relative_residual", {"coef": np.eye(3)}, "coef: must have shape"),
    ("residual_noise_share", {"noise": 0 * POINTS}, "noise: must not be zero"),
    ("residual_noise_share", {"noise": POINTS[:1]}, "noise: has shape"),
    ("residual_noise_share", {"filter": lambda v: v * np.nan}, "filter: its result holds NaN"),
    ("scale_frequencies", {"s": [0.1, 0.2]}, "s: must be a number or hold one entry for each"),
    ("signal_to_noise_ratio", dict.fromkeys(["signal", "noise"], 0 * POINTS), "signal: is zero"),
    ("signal_to_noise_ratio", {"noise": POINTS[:1]}, "noise: has shape"),
    ("sinkhorn", {"logits": POINTS}, "logits: must be square"),
    ("sinkhorn", {"logits": [[np.nan]]}, "logits: .*NaN"),
    ("sinkhorn", {"logits": [[np.inf]]}, "logits: .*infinity"),
    ("sinkhorn", {"logits": [[1j]]}, "logits: .*Complex"),
    ("sinkhorn", {"logits": [0.0]}, "logits: .*2D array"),
    ("sinkhorn", {"logits": np.where(np.eye(3)[2] + np.eye(3)[:, [2]], 0, -np.inf)}, "logits: no"),
    ("sinkhorn", {"logits": NOTHING}, "logits: no doubly stochastic matrix has these zeros"),
    ("skip_condition_bound", {"M": np.triu(np.ones((6, 6)))}, "M: must be symmetric"),
    ("skip_condition_bound", {"M": -np.eye(6)}, "M: must be positive semidefinite"),
    ("skip_condition_bound", {"X": SQUARE[:5]}, "X: needs at least as many tokens"),
    ("smoothness", {"K": np.triu(AFFINITY)}, r"K: .*of directed weights k pass k \+ k\.T"),
    ("snr_gain_bound", {"cosine": 1.1}, r"cosine: must be a number in \[-1, 1\]"),
    ("sos_boosting", {"filter": np.eye(2)}, "filter: must be 6 x 6"),
    *(
        ("sos_tau_max", {"eigenvalues": bad}, "eigenvalues: must be")
        for bad in ([], [np.nan], [[1.0]], None)
    ),
    ("sparse_code", {"l1_ratio": 1.5}, r"l1_ratio: must be in \(0, 1\]"),
    ("sparse_code_path", {"lams": []}, "lams"),
    ("sparse_code_path", {"lams": [[[0.1]]]}, "lams"),
    ("sparse_code_path", {"lams": [0.1, -1.0]}, "lam"),
    ("sparse_code_path", {"lams": np.ones((2, 3))}, "lam"),
    ("sparse_self_expression", {"lam": 0.0, "affine": True}, "lam: must be finite"),
    ("sparse_self_expression", {"l1_ratio": 0.0, "affine": True}, "l1_ratio: must be > 0"),
    ("subspace_preserving_error", {"labels_true": [0, 1]}, "labels_true: needs one label a sample"),
    ("twicing", {"smoother": np.ones((6, 5))}, "smoother: must be 6 x 6"),
    ("twicing", {"values": STACK}, "smoother: a matrix acts on values of two dimensions"),
    ("twicing", {"values": STACK[..., None]}, "values: must have two or three dimensions"),
    ("twicing", {"values": [[1.0], [1.0, 2.0]]}, "values: must be an array, got rows of unequal"),
    *(("twicing", {"smoother": bad}, "smoother: ") for bad in ("gaussian", None)),
    ("twicing", {"smoother": lambda v: v * np.inf}, "smoother: iterate 1 holds NaN or infinity"),
    ("twicing", {"smoother": lambda v: v[:1]}, "smoother: must return a real array of shape"),
    ("twicing", {"smoother": lambda v: v * 1j}, "smoother: must return a real array"),
    ("twicing", {"smoother": lambda v: None}, "smoother: must return a real array"),
    ("weighted_least_squares_residual", {"estimate": POINTS[:5]}, "estimate: has 5 rows, but ther"),
    ("weighted_least_squares_residual", {"weights": 0.5 - np.eye(6)}, "weights: must be >= 0"),
    ("weighted_least_squares_residual", {"weights": 0 * SQUARE}, "weights: every row must have"),
    *(
        (name, changed, words)
        for name in ("sparse_code", "ista", "fista", "coordinate_descent")
        for changed, words in [
            ({"Y": COUPLES}, "Y: has 2 columns"),
            ({"lam": [1.0, 2.0]}, "lam: must be a number or hold one entry"),
            ({"Y": POINTS[:5], "zero_diagonal": True}, "zero_diagonal: needs as many"),
        ]
    ),
    *(
        (name, {"precision": bad}, f"precision: {words}")
        for name in ("nadaraya_watson", "smoother_matrix")
        for bad, words in [
            (np.eye(2), "has 2 columns"),
            (np.ones(2), "has 2 columns"),
            (np.triu(np.ones((4, 4))), "must be a symmetric"),
            (-np.eye(4), "must be positive semidefinite"),
            ([1.0, -1.0, 0.0, 1.0], "a diagonal must be >= 0"),
            ([1.0, np.nan, 0.0, 1.0], ".*NaN"),
        ]
    ),
    *(
        (name, {"logits": bad}, f"logits: {words}")
        for name in ("sparsemax", "simplex_projection_residual")
        for bad, words in [
            ([[0.0, np.nan]], "must be finite"),
            ([[0.0, np.inf]], "must be finite"),
            (np.array([[0.0, 1j]]), "Complex"),
            (np.float64(1), ""),
            (np.ones((2, 0)), ""),
            (np.ones((1, 2, 0)), r"must have shape \(\.\.\., N\)"),
            ([["a"]], "could not"),
        ]
    ),
    *(
        (name, {"probabilities": bad}, f"probabilities: {words}")
        for name in ("simplex_projection_residual", "entropic_gap")
        for bad, words in [
            ([1.0], "must have the logits' shape"),
            (np.nan * SQUARE, "must not hold"),
        ]
    ),
]


def call(name, **changed):
    return PUBLIC[name](**ALLOWED.get(name, {}) | changed)


def test_no_function_is_missing_here():
    families = (
        "self_expression", "sparse_coding", "clustering", "metrics", "boosting", "conditioning",
        "kernel_smoothing", "locally_linear", "nonlocal_energy", "spectral_filtering",
    )  # fmt: skip
    names = {
        f.__name__
        for f in PUBLIC.values()
        if isfunction(f) and f.__module__.split(".")[2] in families
        if "image" not in signature(f).parameters or f.__name__ in ALLOWED
    }
    assert names == set(ALLOWED)


STACKS = {
    (name, argument)
    for name, allowed in ALLOWED.items()
    for argument in {"y", "signal", "noise", "X", "values"} & allowed.keys()
    if "filter" in allowed or "smoother" in allowed
    or name in {"condition_number", "gray_tokens", "signal_to_noise_ratio"}
}  # fmt: skip


def marked(matrix, value):
    matrix = matrix.astype(type(value))
    matrix[1, 2] = matrix[2, 1] = value
    return matrix


ZERO_ALLOWED = {
    ("boost", "n_iter"),
    ("boosting_lipschitz_bound", "lipschitz"),
    ("boosting_lipschitz_bound", "n_layers"),
    ("boosting_lipschitz_bound", "t"),
    ("coordinate_descent", "n_iter"),
    ("exact_gradient_flow", "time"),
    ("fista", "n_iter"),
    ("gradient_flow", "n_iter"),
    ("high_frequency_gain_bound", "alpha"),
    ("ista", "n_iter"),
    ("l2_boosting", "n_iter"),
    ("local_linear_regression", "reg"),
    ("local_linear_residual", "reg"),
    ("locally_linear_embedding", "tol"),
    ("locally_linear_residual", "reg"),
    ("locally_linear_weights", "reg"),
    ("low_pass_ratio", "n_steps"),
    ("low_rank_gap", "lam"),
    ("low_rank_self_expression", "lam"),
    ("neutreno_iteration", "n_iter"),
    ("omp_self_expression", "tol"),
    ("random_walk_values", "n_steps"),
    ("snr_gain_bound", "noise_share"),
    ("snr_gain_bound", "signal_share"),
    ("sos_boosting", "n_iter"),
    ("sos_boosting", "rho"),
    ("sos_tau_max", "rho"),
}


def bad_matrices(good, stacks):
    """What no argument may be where the allowed one is a matrix, and what is said of it."""
    return [
        (marked(good, np.nan), "NaN"),
        (marked(good, -np.inf), "infinity"),
        (marked(good, 1j), "Complex"),
        (marked(good, None), ""),
        (good.astype(str).astype(object) + "x", "could not convert"),
        (good[0], "dimensions" if stacks else "2D array"),
        *([] if stacks else [(good[None, None], "dim [34]")]),
        (good[:0], "0 sample"),
        (good[:, :0], "0 feature"),
        (csr_array(marked(good, np.nan)), "NaN|[Ss]parse"),
        (csr_array(marked(good, 1j)), "Complex"),
    ]


def bad_values(name, argument, good):
    if isinstance(good, np.ndarray):
        return bad_matrices(good, (name, argument) in STACKS)
    if isinstance(good, np.float32):
        return [(bad, "must") for bad in (np.nan, -np.inf, "a", None)]
    if isinstance(good, list):
        bad = ([0, 1], [LABELS], [], 3, [0, 0, 0, 1, 1, np.nan], csr_array(np.eye(6)))
        return [(labels, "") for labels in bad]
    if isinstance(good, int | float):
        whole = [(1.5, "must be a whole number")] if isinstance(good, int) else []
        zero = [] if (name, argument) in ZERO_ALLOWED else [(0, "must")]
        return [(bad, "must") for bad in (-1, np.nan, np.inf, "a")] + whole + zero
    return []


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("name", ALLOWED)
def test_what_is_allowed_is_allowed_and_what_is_not_is_refused_by_name(name):
    call(name)
    for argument, good in ALLOWED[name].items():
        if (name, argument) in ZERO_ALLOWED:
            call(name, **{argument: 0})
        said = "labels(_true|_pred)?" if isinstance(good, list) else argument
        for bad, words in bad_values(name, argument, good):
            with pytest.raises(ValueError, match=f"^{said}: .*({words})"):
                call(name, **{argument: bad})


def test_what_a_function_refuses_of_its_own_is_named():
    for name, changed, words in REFUSED:
        with pytest.raises(ValueError, match=f"^{words}"):
            call(name, **changed)


def test_data_whose_squares_leave_float64_are_refused_by_name():
    cases = [(name, "X", {}) for name in ALLOWED if name.endswith("self_expression")]
    affine = "basis_pursuit_self_expression", "sparse_self_expression"
    cases += [(name, "X", {"affine": True}) for name in affine]
    cases += [("sparse_code", "Y", {}), ("sparse_code", "dictionary", {})]
    for name, argument, options in cases:
        for scale in (1e-160, 1e160):
            with pytest.raises(ValueError, match=f"^{argument}: the largest entry of row 0"):
                call(name, **{argument: scale * POINTS}, **options)


ONE_SAMPLE_SUFFICES = {
    "admm_low_rank_self_expression": 1.0,
    "least_squares_self_expression": 4 / (4 + 1),
    "low_rank_self_expression": 1 - 1 / (2 * 4),
    "proximal_self_expression": 4 / (4 + 1),
    "robust_low_rank_self_expression": 1.0,
}


def test_one_sample_cannot_represent_itself_where_the_diagonal_is_zero():
    for name in (name for name in ALLOWED if "self_expression" in name):
        if name not in ONE_SAMPLE_SUFFICES:
            with pytest.raises(ValueError, match=r"^X: Found array with 1 sample"):
                call(name, X=[[2.0, 0.0]])
            continue
        found = call(name, X=[[2.0, 0.0]])
        coef = found if isinstance(found, np.ndarray) else found.coef
        # Of a certificate at 1e-3.
        assert_allclose(coef, ONE_SAMPLE_SUFFICES[name], atol=5e-3)


def test_dictionary_learning_needs_a_signal():
    with pytest.raises(ValueError, match=r"^Y: needs a row that is not zero"):
        call("ksvd", Y=np.zeros((6, 4)))
