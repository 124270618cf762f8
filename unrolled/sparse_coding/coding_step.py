"""Steps on sparse codes with learned parameters: ISTA, group ISTA and matching pursuit."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..attention import Positive
from .patches import Similar


class CodingStep(nn.Module):
    """One step of ISTA on sparse codes, with parameters of its own.

    For signals Y (rows) and codes C of the step before ::

        C <- S_t( C + s (Y - C D) A^T )

    with the synthesis dictionary D, the analysis dictionary A (rows are atoms), the step length s
    and a threshold t_j for each atom. At first ``A = D`` and ``t_j = s lam / 2``: the step is
    `proximal_step` on ``|Y - C D|_F^2 + lam |C|_1``.

    Codes go in and come out in units of thresholds: ``C / t`` solves the same problem in atoms
    ``t_j d_j``, where every threshold is 1, and the step is then one matrix product of signals, one
    of codes and one shrinkage.

    Parameters
    ----------
    dictionary : Tensor of shape (n_atoms, d)
    lam : float
        Penalty > 0 that the thresholds start at.
    step : float
        Step length > 0 at first.
    from_zero : bool, default=False
        The step always starts from zero codes, and D is not a parameter.

    Attributes
    ----------
    analysis, synthesis : Parameter of shape (n_atoms, d)
    step : Positive
    log_threshold : Parameter of shape (n_atoms,)

    References
    ----------
    Gregor and LeCun (2010); EQUATIONS SE-15, SE-17.

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled.sparse_coding.coding_step import CodingStep
    >>> coding = CodingStep(torch.eye(2), lam=2.0, step=1.0)
    >>> (coding(torch.tensor([[3.0, 0.5]])) * coding.threshold()).detach()
    tensor([[2., 0.]])
    """

    synthesis: Tensor | None

    def __init__(
        self, dictionary: Tensor, lam: float, step: float, *, from_zero: bool = False
    ) -> None:
        super().__init__()
        self.analysis = nn.Parameter(dictionary.clone())
        synthesis = None if from_zero else nn.Parameter(dictionary.clone())
        self.register_parameter("synthesis", synthesis)
        self.step = Positive(
            step, name="step", learnable=True, device=dictionary.device, dtype=dictionary.dtype
        )
        threshold = dictionary.new_full((len(dictionary),), step * lam / 2)
        self.log_threshold = nn.Parameter(threshold.log())

    def threshold(self) -> Tensor:
        """Return the thresholds t, of shape (n_atoms,)."""
        return self.log_threshold.exp()

    def forward(
        self, signals: Tensor, codes: Tensor | None = None, unit: Tensor | None = None
    ) -> Tensor:
        """Take one step from `codes`, or from zero, to codes in units of this step's `threshold`.

        Parameters
        ----------
        signals : Tensor of shape (n_signals, d) codes : Tensor of shape (n_signals, n_atoms),
        optional
            In units of `unit`.
        unit : Tensor of shape (n_atoms,), optional
            Unit of `codes`: the thresholds of the step that they come from.
        """
        return F.softshrink(self.unshrunk(signals, codes, unit), 1.0)

    def unshrunk(
        self, signals: Tensor, codes: Tensor | None = None, unit: Tensor | None = None
    ) -> Tensor:
        """Return ``(C + s (Y - C D) A^T) / t``, which `forward` thresholds at 1."""
        scaled_analysis = self.step() * self.analysis / self.threshold()[:, None]
        from_signals = signals @ scaled_analysis.mT.to(signals.dtype)
        if codes is None or unit is None or self.synthesis is None:
            return from_signals
        code_map = (
            torch.diag(unit / self.threshold())
            - (unit[:, None] * self.synthesis) @ scaled_analysis.mT
        )
        return torch.addmm(from_signals, codes, code_map.to(codes.dtype))


class GroupCodingStep(CodingStep):
    """One step of ISTA that shrinks a code by the energy of its atom in similar patches.

    With ``z = C + s (Y - C D) A^T`` of `CodingStep` and S_i the patches similar to patch i ::

        e_ij = (1 - b_j) z_ij^2 + b_j mean_{l in S_i} z_lj^2
        c_ij = z_ij max(1 - t_j / sqrt(e_ij), 0)

    where negative e_ij count as zero. At first ``b = 0``, which is `CodingStep`; ``b = 1`` is the
    proximal step of the group Lasso, where the sets S_i are groups that do not overlap.

    Parameters
    ----------
    *args, **kwargs
        Those of `CodingStep`.

    Attributes
    ----------
    sharing : Parameter of shape (n_atoms,)
        b.

    References
    ----------
    Lecouat, Ponce and Mairal (2020), Fully Trainable and Interpretable Non-Local Sparse Models for
    Image Restoration, section 3.2, whose groups have sums of squares.

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled.sparse_coding.coding_step import GroupCodingStep
    >>> from twinsolve.unrolled.sparse_coding.patches import Similar
    >>> coding = GroupCodingStep(torch.eye(1), lam=2.0, step=1.0)
    >>> both = Similar.of(torch.tensor([[0, 1], [0, 1]]))
    >>> (coding(torch.tensor([[3.0], [0.5]]), both) * coding.threshold()).detach().flatten()
    tensor([2.0000, 0.0000])
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.sharing = nn.Parameter(torch.zeros_like(self.log_threshold))

    def forward(  # type: ignore[override]
        self,
        signals: Tensor,
        similar: Similar,
        codes: Tensor | None = None,
        unit: Tensor | None = None,
    ) -> Tensor:
        """Take one step from `codes`, or from zero, as in `CodingStep`, by `similar` patches."""
        z = self.unshrunk(signals, codes, unit)
        squares, share = z.square(), self.sharing.to(z.dtype)
        energy = torch.addcmul(
            (1 - share) * squares, share / similar.n_similar, similar.sums(squares)
        )
        # Thresholds are the unit: energies of up to 1 give zero.
        return z * (1 - F.threshold(energy, 1.0, 1.0).rsqrt())


class PursuitStep(nn.Module):
    """One step of matching pursuit: a mixture of experts, each of which is one atom.

    The router sends a residual x to the expert j with the largest ``|x . r_j|``. Its code z, of
    either sign, and the new residual are ::

        z = max(1 - t / |x . r_j|, 0) (x . a_j),     x <- x - z p_j

    At first ``r_j = a_j = p_j`` is an atom d_j: a step of matching pursuit with the soft threshold
    t, and where ``|d_j| = 1`` the coordinate descent step of ``|x - c D|^2 + 2 t |c|_1`` on a code
    c that is zero at j. The router learns by the gate, the factor ``max(...)``.

    Parameters
    ----------
    dictionary : Tensor of shape (n_atoms, d)
    threshold : float
        t > 0 at first.

    Attributes
    ----------
    router, analysis, synthesis : Parameter of shape (n_atoms, d)
        Rows are r_j, a_j and p_j.
    threshold : Positive

    References
    ----------
    Mallat and Zhang (1993), Shazeer et al. (2017); EQUATIONS IF-32, IF-33, IF-KSVD.

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled.sparse_coding.coding_step import PursuitStep
    >>> residual, atoms, codes = PursuitStep(torch.eye(2), 1.0)(torch.tensor([[0.5, -3.0]]))
    >>> residual.detach(), atoms, codes.detach()
    (tensor([[ 0.5000, -1.0000]]), tensor([1]), tensor([-2.0000]))
    """

    def __init__(self, dictionary: Tensor, threshold: float) -> None:
        super().__init__()
        self.router = nn.Parameter(dictionary.clone())
        self.analysis = nn.Parameter(dictionary.clone())
        self.synthesis = nn.Parameter(dictionary.clone())
        self.threshold = Positive(
            threshold,
            name="threshold",
            learnable=True,
            device=dictionary.device,
            dtype=dictionary.dtype,
        )

    def forward(self, residual: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the residuals (n_signals, d) after the step, the chosen atoms and their codes."""
        router, analysis, synthesis, threshold = (
            x.to(residual.dtype)
            for x in (self.router, self.analysis, self.synthesis, self.threshold())
        )
        with torch.no_grad():
            atoms = (residual @ router.mT).abs().argmax(dim=1)
        score, code = (
            (residual * F.embedding(atoms, rows)).sum(dim=1) for rows in (router, analysis)
        )
        code = code * (1 - threshold / torch.maximum(score.abs(), threshold))
        return residual - code[:, None] * F.embedding(atoms, synthesis), atoms, code
