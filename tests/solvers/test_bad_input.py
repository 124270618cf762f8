"""Every argument of the solvers is checked: the error names it, whichever function it was.

Functions of images take other arrays, and are checked in their own tests.
"""

from inspect import isfunction, signature
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_equal
from scipy.sparse import csr_array, issparse

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
LANDMARKS = {"queries": POINTS, "keys": POINTS, "n_landmarks": 2, "scale": 1.0}
MEMORY = {"states": POINTS[:3], "patterns": POINTS, "beta": 1.5}
HEADS = {"X": POINTS, "basis": SQUARE[:4] / 4}
MEMBERS = HEADS | {"memberships": STOCHASTIC, "eps": 0.5}
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
    "coding_rate": {"X": POINTS, "eps": 0.5},
    "coding_rate_gradient": {"X": POINTS, "eps": 0.5},
    "coding_rate_step": HEADS | {"n_heads": 2, "eps": 0.5, "step": 0.1},
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
    "entmax": {"logits": MASKABLE, "alpha": 1.5},
    "entmax_gap": {"logits": MASKABLE, "probabilities": tuple(STOCHASTIC), "alpha": 1.5},
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
    "ista": SPARSE_CODING | {"n_iter": 2, "step": 0.1, "start": SQUARE},
    "hopfield_energy": MEMORY,
    "iterated_pseudo_inverse": {"A": STOCHASTIC, "n_iter": 2},
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
    "mixing_rate_bound": {"X": POINTS, "weights": STOCHASTIC, "eps": 0.5, "share": 1.0},
    "nadaraya_watson": KERNEL | {"values": POINTS},
    "nadaraya_watson_residual": KERNEL | {"values": POINTS, "estimate": POINTS},
    "nearest_rows_affinity": {"coef": SQUARE, "n_neighbors": 1},
    "neutreno_fixed_point": {
        "f": POINTS, "A": STOCHASTIC, "lam": 0.5, "tol": 1e-6, "max_iter": 1000,
    },
    "neutreno_iteration": {"f": POINTS, "A": STOCHASTIC, "lam": 0.1, "n_iter": 2},
    "neutreno_lam_limit": {"K": AFFINITY},
    "neutreno_spectral_radius": {"A": STOCHASTIC, "lam": 0.5},
    "nystrom_factors": LANDMARKS,
    "nystrom_matrix": LANDMARKS | {"n_iter": 2},
    "nystrom_smoother": LANDMARKS | {"values": POINTS, "n_iter": 2},
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
    "pseudo_inverse_residual": {"A": SQUARE, "Z": SQUARE},
    "random_walk_limit": {"values": POINTS, "A": STOCHASTIC},
    "random_walk_rate": {"A": STOCHASTIC},
    "random_walk_values": {"values": POINTS, "A": STOCHASTIC, "n_steps": 2},
    "rate_reduction": {"X": POINTS, "memberships": STOCHASTIC, "eps": 0.5, "lam": 0.1},
    "rate_reduction_optimum": {
        "counts": (2, 3), "ranks": (1, 2), "n_features": 4, "eps": 0.5, "lam": 0.1,
    },
    "rank_clusterings": {"scores": (0.5, 0.7), "labellings": (LABELS, LABELS)},
    "regularized_energy": {"u": POINTS} | ENERGY,
    "relative_residual": {"coef": SQUARE, "X": POINTS, "targets": POINTS},
    "residual_noise_share": {"filter": SQUARE, "signal": POINTS, "noise": POINTS},
    "retrieval_error_bound": MEMORY,
    "retrieval_lipschitz_bound": {"patterns": POINTS, "beta": 1.5},
    "retrieval_step": MEMORY,
    "retrieve": MEMORY | {"tol": 1e-6, "max_iter": 500},
    "robust_low_rank_self_expression": {"X": POINTS, "lam": 1.0, "tol": 1e-3, "max_iter": 500},
    "scale_by_row_maximum": {"coef": SQUARE},
    "scale_frequencies": {"Y": POINTS, "s": ANY, "t": ANY},
    "segment_means": {"X": POINTS, "n_segments": 2},
    "selection_score": {"affinity": AFFINITY, "labels": LABELS, "n_clusters": 2},
    "signal_to_noise_ratio": {"signal": POINTS, "noise": POINTS},
    "signal_variation": {"signals": POINTS, "lam": 1.0},
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
    "subspace_memberships": HEADS | {"n_heads": 2, "sharpness": 1.5},
    "subspace_preserving_error": {"coef": SQUARE, "labels_true": LABELS},
    "subspace_rate": HEADS | {"n_heads": 2, "eps": 0.5},
    "subspace_rate_gradient": HEADS | {"n_heads": 2, "eps": 0.5},
    "svd_power_affinity": {"coef": SQUARE, "n_clusters": 2, "dimension": 1, "power": 2.0},
    "symmetric_affinity": {"coef": SQUARE},
    "token_statistics": MEMBERS,
    "total_variation": {"f": POINTS, "lam": 1.0, "tol": 1e-6, "max_iter": 500},
    "twicing": {"smoother": SQUARE, "values": POINTS},
    "unit_rows": {"coef": SQUARE},
    "variational_rate": MEMBERS,
    "variational_rate_step": MEMBERS | {"step": 0.01},
    "weighted_least_squares_residual": {"weights": AFFINITY, "values": POINTS, "estimate": POINTS},
}  # fmt: skip


def call(name, **changed):
    return PUBLIC[name](**ALLOWED.get(name, {}) | changed)


def test_no_function_is_missing_here():
    families = (
        "self_expression", "sparse_coding", "clustering", "metrics", "boosting", "conditioning",
        "kernel_smoothing", "locally_linear", "nonlocal_energy", "spectral_filtering",
        "associative_memory", "coding_rate",
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
    ("iterated_pseudo_inverse", "n_iter"),
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
    ("nystrom_matrix", "n_iter"),
    ("nystrom_smoother", "n_iter"),
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
        (good.astype(str).astype(object) + "x", "must hold real numbers"),
        (good.astype(str), "must hold real numbers"),
        (np.ma.masked_equal(good, good[1, 2]), "must not be a masked array"),
        (good.astype("datetime64[D]"), "must hold real numbers"),
        (good.astype("timedelta64[s]"), "must hold real numbers"),
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


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("name", ALLOWED)
def test_objects_that_are_numbers_and_masks_that_hide_nothing_are_taken(name):
    """As columns of pandas that may hold missing values, and do not."""
    seeded = {"random_state": 0} if "random_state" in signature(PUBLIC[name]).parameters else {}
    for argument, good in ALLOWED[name].items():
        if isinstance(good, np.ndarray):
            expected = dense(call(name, **seeded))
            for given in (good.astype(object), np.ma.masked_array(good)):
                found = dense(call(name, **seeded | {argument: given}))
                for a, b in zip(found, expected, strict=True):
                    assert_equal(a, b)


def dense(found):
    parts = found if isinstance(found, tuple | list) else [found]
    parts = [getattr(part, "coef", part) for part in parts]
    return [part.toarray() if issparse(part) else np.asarray(part) for part in parts]


# Certificates, penalties and what is summed, whatever the arguments are.
FLOAT64 = {
    "coding_rate_gradient", "coding_rate_step", "convex_ridge", "duality_gap",
    "filter_energy_gradient", "iterated_pseudo_inverse", "lam_from_gamma", "lam_max",
    "lasso_objective", "least_squares_residual", "local_linear_residual", "locally_linear_residual",
    "low_pass_ratio", "nadaraya_watson_residual", "nystrom_factors", "nystrom_matrix",
    "nystrom_smoother", "retrieval_error_bound", "retrieval_step", "retrieve",
    "hopfield_energy", "segment_means", "stationary_distribution", "subspace_memberships",
    "subspace_rate_gradient", "token_statistics", "variational_rate_step",
    "weighted_least_squares_residual",
}  # fmt: skip


def dtypes(found):
    """Of the arrays of reals in an answer, but for those of a certificate."""
    found = getattr(found, "coef", found)
    parts = found if isinstance(found, tuple | list) else [found]
    return {part.dtype for part in parts if getattr(part, "ndim", 0) and part.dtype.kind == "f"}


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_float32_is_kept_unless_an_argument_is_float64():
    for name, allowed in ALLOWED.items():
        arrays = {k: v for k, v in allowed.items() if getattr(v, "shape", ())}
        single = {k: v.astype(np.float32) for k, v in arrays.items()}
        if not arrays or name in ("anisotropic_nonlocal_means", "ksvd"):
            continue  # one has a metric in a tuple, the other an objective: see their own tests
        kept = np.float64 if name in FLOAT64 else np.float32
        assert dtypes(call(name, **single)) <= {np.dtype(kept)}, name
        for argument, wide in arrays.items():
            assert dtypes(call(name, **single | {argument: wide})) <= {np.dtype(np.float64)}, name


def test_data_whose_squares_leave_float64_are_refused_by_name():
    cases = [(name, "X", {}) for name in ALLOWED if name.endswith("self_expression")]
    affine = "basis_pursuit_self_expression", "sparse_self_expression"
    cases += [(name, "X", {"affine": True}) for name in affine]
    cases += [("sparse_code", "Y", {}), ("sparse_code", "dictionary", {}), ("ksvd", "Y", {})]
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
