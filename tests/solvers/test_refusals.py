"""What only some functions refuse, and the message: one row a fault."""

from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_array

from .test_bad_input import AFFINITY, POINTS, SQUARE, STOCHASTIC, call

LATER, TINY = np.tri(6, dtype=bool), np.diag([1.0] * 5 + [1e-7])
NOTHING = np.full((2, 2), -np.inf)
FAR = {"queries": POINTS + 99, "kernel": "epanechnikov"}
COUPLES, STACK = np.ones((6, 2)), np.ones((6, 2, 3))
# The function, what is changed of its allowed arguments, and the message.
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("admm_low_rank_self_expression", {"growth": 0.9}, "growth: must be >= 1, got"),
    ("anisotropic_nonlocal_means", {"metric": np.ones((5, 4))}, "metric: has 5 rows, but there"),
    ("anisotropic_nonlocal_means", {"metric": np.ones(3)}, "metric: has 3 columns"),
    ("anisotropic_nonlocal_means", {"metric": -np.ones(4)}, "metric: must be >= 0"),
    ("anisotropic_nonlocal_means", {"metric": np.full(4, np.nan)}, "metric: .*NaN"),
    ("anisotropic_nonlocal_means", {"values": POINTS[:5]}, "values: has 5 rows"),
    ("attention_condition_bound", {"X": SQUARE[:5]}, "X: must have at least as many tokens"),
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
    ("clustering_accuracy", {"labels_pred": [0]},
     "labels_pred: must be as many as labels_true, got"),
    ("coefficient_distance", {"reference": np.eye(3)}, ".*reference has"),
    ("condition_number", {"X": [[1.0], [1.0, 2.0]]}, "X: "),
    ("connectivity", {"labels_true": range(6)}, "labels_true: must have a class with at least two"),
    ("connectivity", {"labels_true": [0, 1]}, "labels_true: must hold one label for each sample"),
    ("elliptical_metric", {"previous": POINTS[:4]}, "previous: has 4 rows"),
    ("ergodicity_coefficient", {"A": np.tri(2)}, "A: every row must sum to 1, but row 1 is off"),
    ("feed_forward_condition_bound", {"X": POINTS[:3]}, "X: must have at least as many tokens"),
    ("feed_forward_condition_bound", {"up_weight": SQUARE[:5]},
     "up_weight: must have one row for each"),
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
    ("high_pass_scale", {"visible": LATER}, "visible: must be True where A has weight"),
    ("high_pass_scale", {"visible": 1.0 * LATER}, "visible: must be boolean"),
    ("high_pass_scale", {"visible": [True, True]}, "visible: must broadcast to"),
    ("high_pass_scale", {"visible": [[True], [True, False]]}, "visible: must be an"),
    ("high_pass_values", {"visible": np.diag([1, 1, 0, 1, 1, 1]) > 0}, "visible: query 2 sees no"),
    ("high_pass_values", {"values": COUPLES}, "smoothed: has 4 columns, but 2"),
    ("ista", {"step": "long"}, 'step: must be a number, an array or "support"'),
    ("ista", {"step": [1.0] * 3}, "step: must be a number or hold 2"),
    ("keep_l1_mass", {"mass": 1.1}, "mass: must be"),
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
    ("locally_linear_embedding", {"weights": np.ones((1, 1))}, "weights: must be square"),
    ("locally_linear_embedding", {"weights": np.ones((4, 4))}, "weights: every row must sum to 1"),
    ("locally_linear_embedding", {"weights": np.full((4, 4), 0.2501)}, "weights: every row must"),
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
    ("locally_linear_weights", {"n_neighbors": 6}, r"n_neighbors: must be a whole number"),
    ("locally_linear_weights", {"queries": POINTS[:, :3]}, "queries: has 3 columns"),
    ("low_pass_ratio", {"A": np.eye(2)}, "A: must be 6 x 6 to fit the other input"),
    ("low_rank_gap", {"coef": np.eye(2)}, "coef: has 2 columns"),
    ("marginal_violation", {"matrix": np.ones((1, 2))}, "matrix: must be square"),
    ("method_noise", {"filter": lambda v: v * np.inf}, "filter: its result holds NaN or infinity"),
    ("nadaraya_watson", {"kernel": "cosine"}, "kernel: must be a callable or one of"),
    ("nadaraya_watson", {"kernel": ["gaussian"]}, "kernel: must be a callable or one of"),
    ("nadaraya_watson", {"kernel": lambda r: -r}, "kernel: must return"),
    ("nadaraya_watson", {"kernel": lambda r: 0.0 * r}, "bandwidth: query 0 has no key"),
    ("nadaraya_watson", {"kernel": lambda r: r + 1e308},
     r"kernel: must return weights from 0 to 1e\+307"),
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
    ("selection_score", {"labels": [0]}, "labels: must hold one label for each of the 6"),
    ("selection_score", {"labels": None, "n_clusters": 7}, "n_clusters: must be at most"),
    ("signal_to_noise_ratio", dict.fromkeys(["signal", "noise"], 0 * POINTS),
     "signal: must not be zero"),
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
    ("skip_condition_bound", {"X": SQUARE[:5]}, "X: must have at least as many tokens"),
    ("smoothness", {"K": np.triu(AFFINITY)}, r"K: .*for directed weights k pass k \+ k\.T"),
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
    ("sparse_self_expression", {"l1_ratio": 0.0, "affine": True}, "l1_ratio: must be a finite"),
    ("spectral_labels", {"n_clusters": 7}, "n_clusters: must be at most n_samples=6, got 7"),
    ("spectral_labels", {"assign_labels": "discretize"}, "assign_labels: must be"),
    ("subspace_preserving_error", {"labels_true": [0, 1]},
     "labels_true: must hold one label for each sample"),
    ("twicing", {"smoother": np.ones((6, 5))}, "smoother: must be 6 x 6"),
    ("twicing", {"values": STACK}, "smoother: a matrix needs values of two dimensions"),
    ("twicing", {"values": STACK[..., None]}, "values: must have two or three dimensions"),
    ("twicing", {"values": [[1.0], [1.0, 2.0]]}, "values: must be an array, got rows of unequal"),
    *(("twicing", {"smoother": bad}, "smoother: ") for bad in ("gaussian", None)),
    ("twicing", {"smoother": lambda v: v * np.inf}, "smoother: iterate 1 holds NaN or infinity"),
    ("twicing", {"smoother": lambda v: v[:1]}, "smoother: must return a real array of shape"),
    ("twicing", {"smoother": lambda v: v * 1j}, "smoother: must return a real array"),
    ("twicing", {"smoother": lambda v: None}, "smoother: must return a real array"),
    ("weighted_least_squares_residual", {"estimate": POINTS[:5]}, "estimate: has 5 rows, but"),
    ("weighted_least_squares_residual", {"weights": 0.5 - np.eye(6)}, "weights: must be >= 0"),
    ("weighted_least_squares_residual", {"weights": 0 * SQUARE}, "weights: every row must have"),
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
            ([["a"]], "must hold real numbers"),
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
]  # fmt: skip


def test_what_a_function_refuses_of_its_own_is_named():
    for name, changed, words in REFUSED:
        with pytest.raises(ValueError, match=f"^{words}"):
            call(name, **changed)
