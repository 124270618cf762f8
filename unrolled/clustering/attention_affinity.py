"""Subspace clustering by attention: the coefficients are the matrix of an operator."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ...solvers.clustering.base import Auto, Choices
from ...solvers.inputs import Array
from ..attention import check_positive
from ..named_operators import OperatorLike, made_operator
from .base import UnitRowClustering


@dataclass(eq=False, repr=False, kw_only=True)
class AttentionSubspaceClustering(UnitRowClustering):
    """Subspace clustering by an attention operator, whose matrix holds the coefficients.

    The coefficients of unit rows ``u_i = x_i / |x_i|`` are ::

        C = operator.matrix(Q, Q),     Q = s U,     s^2 = temperature sqrt(n_features)

    An affinity of the coefficients and the spectral step follow. Nothing is trained: the result is
    that of an attention layer with identity projections. Softmax attention has the logits
    ``temperature cos(x_i, x_j)``. An operator that regresses queries on keys with a penalty lam,
    such as ``Ridge(1.0)`` or ``SparseCoding(0.1)``, has the penalty ``lam / s^2`` for unit rows. An
    operator with a relative penalty, such as those made by name, does not depend on the
    temperature.

    If the operator takes masks that differ between queries, a point does not attend to itself;
    twicing can still return to it through other points. Operators without such masks, ridge and low
    rank among them, keep their diagonal unless their own settings exclude it, as
    ``Ridge(1.0, zero_diagonal=True)`` does.

    Parameters
    ----------
    n_clusters : int or None, default=8
        None takes the number at the eigengap, at most 10 (`eigengap_n_clusters`).
    operator : str, Operator or callable, default="softmax"
        A name of `unrolled.operator_names`, an operator for one head, or a factory
        ``(num_heads, head_dim) -> Operator``. An operator that needs a `Context` of a model is
        refused. An operator that reads positions, such as "alibi", takes the order of the samples.
    temperature : float or "auto", default="auto"
        Size of the logits, > 0. "auto" fits 10, 3, 30, 100 and 300, and takes the value whose
        clusters are best separated and balanced (`solvers.choose_settings`).
    affinity : callable, default=symmetric_affinity
        Makes the affinity of the coefficients, as in `solvers.SparseSubspaceClustering`.
    assign_labels : {"kmeans", "cluster_qr"}, default="kmeans"
    random_state : int, RandomState or None
        Seeds k-means.
    device : torch.device or str, optional
        Where the operator is applied. None is the CPU.

    Attributes
    ----------
    labels_ : ndarray of int of shape (n_samples,)
    coef_ : ndarray of shape (n_samples, n_samples)
        Row i represents the unit row of sample i. Rows and columns of zero samples are zero.
    affinity_matrix_ : ndarray of shape (n_samples, n_samples)
    operator_ : Operator
        A copy of the operator in the dtype of X.
    temperature_ : float
        The given or chosen temperature.
    n_features_in_ : int

    Warns
    -----
    sklearn.exceptions.ConvergenceWarning
        If the graph does not tell the clusters apart, or its eigenvectors are not certified
        (`spectral_labels`).

    References
    ----------
    "Attention: Self-Expression Is All You Need"; EQUATIONS SE-5, SE-15, QK-ridge, QK-low rank.

    Examples
    --------
    >>> from twinsolve.unrolled.clustering import AttentionSubspaceClustering
    >>> X = [[1.0, 0.0], [2.0, 0.0], [3.0, 0.0], [0.0, 1.0], [0.0, 2.0], [0.0, 3.0]]
    >>> model = AttentionSubspaceClustering(2, operator="ridge", random_state=0).fit(X)
    >>> model.labels_
    array([1, 1, 1, 0, 0, 0], dtype=int32)
    >>> model.predict([[5.0, 0.1], [0.0, 7.0]])
    array([1, 0], dtype=int32)
    """

    _choices: ClassVar[Choices] = {"temperature": (10.0, 3.0, 30.0, 100.0, 300.0)}

    operator: OperatorLike = "softmax"
    temperature: float | Auto = "auto"

    def _train(self, X: Array) -> None:
        n_features = X.shape[1]
        self._scale = (check_positive(self.temperature_, "temperature") * n_features**0.5) ** 0.5
        operator = made_operator(self.operator, 1, n_features)
        if operator.needs:
            raise ValueError(
                f"operator: must not need the context of a model, but {type(operator).__name__} "
                f"needs {', '.join(operator.needs)}"
            )
        self.operator_ = operator.to(device=self.device, dtype=self._to_tensor(X).dtype).eval()

    @torch.no_grad()
    def _compute_coefficients(self, queries: Array, keys: Array | None) -> Array:
        q = self._as_one_head(queries)
        mask = None
        if keys is None and self.operator_.pair_masks:
            mask = ~torch.eye(len(queries), dtype=torch.bool, device=q.device)
        if keys is not None and self.operator_.positional:
            raise ValueError(
                f"operator: {type(self.operator_).__name__} reads positions, and new points have "
                "none; use fit_predict, or an operator without positions"
            )
        k = q if keys is None else self._as_one_head(keys).to(q.dtype)
        coefficients: Array = self.operator_.matrix(q, k, mask=mask)[0].cpu().numpy()
        return coefficients

    def _as_one_head(self, X: Array) -> Tensor:
        """Return the points as queries or keys of one head."""
        return self._scale * self._to_tensor(X)[None]
