"""Subspace clustering by attention: the matrix of an operator as coefficients."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ...solvers.clustering.base import Auto, Choices
from ...solvers.solution import Array
from ..attention import check_positive
from ..named_operators import OperatorLike, made_operator
from .base import UnitRowClustering


@dataclass(eq=False, repr=False, kw_only=True)
class AttentionSubspaceClustering(UnitRowClustering):
    """Subspace clustering by an attention operator: its matrix gives the coefficients.

    For unit rows ``u_i = x_i / |x_i|`` ::

        C = operator.matrix(Q, Q),     Q = s U,     s^2 = temperature sqrt(n_features)

    followed by an affinity of the coefficients and the spectral step. Softmax attention has the
    logits ``temperature cos(x_i, x_j)``; an operator that regresses queries on keys with penalty
    lam, such as ``Ridge(1.0)`` or ``SparseCoding(0.1)``, has that with ``lam / s^2`` on unit rows;
    one with a relative penalty, as by name, knows no temperature. Nothing is trained: it is what an
    attention layer with identity projections knows of the subspaces.

    A point does not attend to itself if the operator takes masks that differ between queries, but
    twicing returns to it by way of others. Operators that take none, ridge and low rank among them,
    keep their diagonal, unless they exclude it themselves as ``Ridge(1.0, zero_diagonal=True)``.

    Parameters
    ----------
    n_clusters : int or None, default=8
        None takes the number at the eigengap, at most 10 (`eigengap_n_clusters`).
    operator : str, Operator or callable, default="softmax"
        A name of `unrolled.operator_names`, an operator for one head, or a factory
        ``(num_heads, head_dim) -> Operator``. Those that need a
        `Context` of the model around them are refused. Those of positions, such as "alibi", take
        the order of the samples for them.
    temperature : float or "auto", default="auto"
        Size of the logits, > 0. "auto" fits 10, 3, 30, 100 and 300, and takes the one whose
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
        In the dtype of X; never the given one itself.
    temperature_ : float
        The one given or chosen.
    n_features_in_ : int

    References
    ----------
    "Attention: Self-Expression Is All You Need"; EQUATIONS SE-5, SE-15, QK-ridge, QK-low rank.

    Examples
    --------
    >>> from twinsolve.unrolled.clustering import AttentionSubspaceClustering
    >>> X = [[1.0, 0.0], [2.0, 0.0], [3.0, 0.0], [0.0, 1.0], [0.0, 2.0], [0.0, 3.0]]
    >>> model = AttentionSubspaceClustering(2, operator="ridge", random_state=0).fit(X)
    >>> model.labels_
    array([0, 0, 0, 1, 1, 1], dtype=int32)
    >>> model.predict([[5.0, 0.1], [0.0, 7.0]])
    array([0, 1], dtype=int32)
    """

    _choices: ClassVar[Choices] = {"temperature": (10.0, 3.0, 30.0, 100.0, 300.0)}

    operator: OperatorLike = "softmax"
    temperature: float | Auto = "auto"

    def _train(self, X: Array) -> None:
        n_features = X.shape[1]
        self._scale = (check_positive(self.temperature_, "temperature") * n_features**0.5) ** 0.5
        made = made_operator(self.operator, 1, n_features)
        if made.needs:
            raise ValueError(
                f"operator: {type(made).__name__} needs {', '.join(made.needs)} of a model around "
                "it; points alone have none"
            )
        self.operator_ = made.to(device=self.device, dtype=self._to_tensor(X).dtype).eval()

    @torch.no_grad()
    def _compute_coefficients(self, queries: Array, keys: Array | None) -> Array:
        q = self._as_one_head(queries)
        mask = None
        if keys is None and self.operator_.pair_masks:
            mask = ~torch.eye(len(queries), dtype=torch.bool, device=q.device)
        if keys is not None and self.operator_.positional:
            raise ValueError(
                f"operator: {type(self.operator_).__name__} reads where tokens stand, and new "
                "points have no place among those of fit"
            )
        k = q if keys is None else self._as_one_head(keys).to(q.dtype)
        found: Array = self.operator_.matrix(q, k, mask=mask)[0].cpu().numpy()
        return found

    def _as_one_head(self, X: Array) -> Tensor:
        """The points as queries or keys of one head."""
        return self._scale * self._to_tensor(X)[None]
