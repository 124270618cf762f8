"""A dictionary trained through the codes of its Lasso."""

from typing import Any

import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from ..attention import Positive, check_positive, own_copy
from .lasso import solved_lasso
from .proof import SolvedRecord


class LassoEncoder(nn.Module):
    """Sparse codes of signals in a learned dictionary, by `solved_lasso`.

    ::

        argmin_C  |X - C A|_F^2 + lam |C|_1 + ridge |C|_F^2

    A loss of the codes, or of what is made of them, trains dictionary and penalty: task-driven
    dictionary learning. ``codes @ encoder.atoms()`` reconstructs the signals.

    Parameters
    ----------
    dictionary : array-like of shape (n_atoms, n_features)
        Atoms at first, such as those of `twinsolve.solvers.sparse_coding.ksvd`.
    lam : float
        Penalty > 0 at first; its logarithm is trained.
    ridge : float, default=0.0
        Weight >= 0 of the squares; a positive one makes the codes a Lipschitz function of the
        dictionary.
    nonnegative : bool, default=False
        Codes >= 0.
    unit_atoms : bool, default=True
        Divide atoms by their norms before they are used. Else they could grow and make the penalty
        mean nothing.
    n_jobs : int, optional
        Number of threads.

    Attributes
    ----------
    dictionary : Parameter of shape (n_atoms, n_features)
    lam : Positive
    record : SolvedRecord, optional
        Gaps and margins of the last call; None before the first.

    Raises
    ------
    ValueError
        If an argument is out of range.

    References
    ----------
    Mairal, Bach and Ponce, "Task-driven dictionary learning" (2012); EQUATIONS SE-17, IG-1.

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled.solved import LassoEncoder
    >>> encoder = LassoEncoder(torch.eye(2), lam=2.0)
    >>> encoder(torch.tensor([[3.0, 0.5]]))
    tensor([[2., 0.]], grad_fn=<ToCopyBackward0>)
    """

    def __init__(
        self,
        dictionary: ArrayLike | Tensor,
        lam: float,
        *,
        ridge: float = 0.0,
        nonnegative: bool = False,
        unit_atoms: bool = True,
        n_jobs: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        atoms = own_copy(dictionary, dtype).to(device)
        if atoms.ndim != 2 or not atoms.is_floating_point():
            raise ValueError(
                "dictionary: must be floating point, of shape (n_atoms, n_features), got "
                f"{atoms.dtype} {tuple(atoms.shape)}"
            )
        self.dictionary = nn.Parameter(atoms)
        self.lam = Positive(lam, name="lam", learnable=True, device=device, dtype=atoms.dtype)
        self.ridge = check_positive(ridge, "ridge", allow_zero=True)
        self.nonnegative, self.unit_atoms, self.n_jobs = nonnegative, unit_atoms, n_jobs
        self.record: SolvedRecord | None = None
        self._starts: dict[int, tuple[Tensor, Tensor]] = {}

    def atoms(self) -> Tensor:
        """Return the atoms in use, of shape (n_atoms, n_features)."""
        return (
            nn.functional.normalize(self.dictionary, dim=1) if self.unit_atoms else self.dictionary
        )

    def forward(self, signals: Tensor, samples: Tensor | None = None) -> Tensor:
        """Codes of signals.

        Parameters
        ----------
        signals : Tensor of shape (..., n_signals, n_features)
        samples : Tensor of int of shape (..., n_signals), optional
            Names of the signals, under which their codes are kept: where a signal of a name comes
            again, as in the next epoch, the search begins there.

        Returns
        -------
        Tensor of shape (..., n_signals, n_atoms)
        """
        if samples is not None and samples.shape != signals.shape[:-1]:
            raise ValueError(
                f"samples: must have shape {tuple(signals.shape[:-1])}, one name a signal, "
                f"got {tuple(samples.shape)}"
            )
        codes, self.record = solved_lasso(
            signals,
            self.atoms(),
            lam=self.lam(),
            ridge=self.ridge,
            nonnegative=self.nonnegative,
            start=None if samples is None else self._recall(samples),
            n_jobs=self.n_jobs,
            return_record=True,
        )
        if samples is not None:
            self._keep(samples, codes.detach())
        return codes

    def _recall(self, samples: Tensor) -> Tensor:
        """Return the codes that samples of these names had last; zeros for new names."""
        start = self.dictionary.new_zeros(samples.numel(), len(self.dictionary))
        for row, name in zip(start, samples.flatten().tolist(), strict=True):
            if name in self._starts:
                atoms, values = self._starts[name]
                row[atoms] = values.to(row)
        return start.view(*samples.shape, -1)

    def _keep(self, samples: Tensor, codes: Tensor) -> None:
        """Keep the non-zeros of the codes of each sample, by its name."""
        rows, atoms = codes.flatten(0, -2).nonzero(as_tuple=True)
        counts = torch.bincount(rows, minlength=samples.numel()).tolist()
        parts: Any = zip(
            samples.flatten().tolist(),
            atoms.split(counts),
            codes.flatten(0, -2)[rows, atoms].split(counts),
            strict=True,
        )
        self._starts.update((name, (support, values)) for name, support, values in parts)

    def extra_repr(self) -> str:
        n_atoms, n_features = self.dictionary.shape
        return (
            f"n_atoms={n_atoms}, n_features={n_features}, ridge={self.ridge:.4g}, "
            f"nonnegative={self.nonnegative}, unit_atoms={self.unit_atoms}, n_jobs={self.n_jobs}"
        )
