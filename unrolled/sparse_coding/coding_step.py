"""One step of ISTA with dictionaries of its own, in the form with the fewest passes over codes."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..attention import Positive


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
        Codes given are always zero, and D is not a parameter.

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
        """The thresholds t, of shape (n_atoms,)."""
        return self.log_threshold.exp()

    def forward(
        self, signals: Tensor, codes: Tensor | None = None, unit: Tensor | None = None
    ) -> Tensor:
        """One step from given codes, or from zero.

        Parameters
        ----------
        signals : Tensor of shape (n_signals, d)
        codes : Tensor of shape (n_signals, n_atoms), optional
            In units of `unit`.
        unit : Tensor of shape (n_atoms,), optional
            What the codes given are multiples of: the thresholds of the step that they come from.

        Returns
        -------
        Tensor of shape (n_signals, n_atoms)
            In units of this step's `threshold`.
        """
        return F.softshrink(self.unshrunk(signals, codes, unit), 1.0)

    def unshrunk(
        self, signals: Tensor, codes: Tensor | None = None, unit: Tensor | None = None
    ) -> Tensor:
        """``(C + s (Y - C D) A^T) / t``: what `forward` shrinks."""
        pull = self.step() * self.analysis / self.threshold()[:, None]
        moved = signals @ pull.mT.to(signals.dtype)
        if codes is None or unit is None or self.synthesis is None:
            return moved
        kept = torch.diag(unit / self.threshold()) - (unit[:, None] * self.synthesis) @ pull.mT
        return torch.addmm(moved, codes, kept.to(codes.dtype))
