"""The weights of least coherence with a dictionary, which ALISTA takes in its place."""

import torch
from torch import Tensor


def analytic_weights(dictionary: Tensor) -> Tensor:
    """Weights ``W = argmin |W D^T|_F^2`` subject to ``w_i . d_i = 1`` for every atom.

    Rows are separate problems, solved by ``w_i = p_i / g_i`` with p_i the row of the transposed
    pseudoinverse of D and ``g_i = p_i . d_i`` the leverage of the atom. Zero atoms, which cannot
    meet the constraint, get zero weights.

    Parameters
    ----------
    dictionary : Tensor of shape (n_atoms, d)

    Returns
    -------
    Tensor of shape (n_atoms, d)
        Computed in float64, in the dtype of `dictionary`.

    References
    ----------
    Liu et al., "ALISTA: analytic weights are as good as learned weights in LISTA" (2019);
    EQUATIONS LS-2.

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled.sparse_coding import analytic_weights
    >>> analytic_weights(torch.tensor([[2.0, 0.0], [2.0, 1.0]]))
    tensor([[ 0.5000, -1.0000],
            [ 0.0000,  1.0000]])
    """
    rows, leverage = _leverages(dictionary.double())
    return (rows / torch.where(leverage > 0, leverage, 1)[:, None]).to(dictionary.dtype)


def analytic_step(dictionary: Tensor) -> float:
    """Longest step ``1 / rho(W D^T)`` for which iterations with `analytic_weights` are stable.

    With ``D^+`` the pseudoinverse and g the leverages, ``W D^T`` has the eigenvalues of the
    symmetric ``g_i^-1/2 (D D^+)_ij g_j^-1/2``.
    """
    atoms = dictionary.double()
    rows, leverage = _leverages(atoms)
    scale = torch.where(leverage > 0, leverage, 1).rsqrt()
    radius = torch.linalg.matrix_norm(scale[:, None] * (atoms @ rows.mT) * scale, 2)
    return float(1 / radius) if radius > 0 else 1.0


def _leverages(atoms: Tensor) -> tuple[Tensor, Tensor]:
    """Transposed pseudoinverse, and its products with the atoms, row by row; 0 for zero atoms."""
    rows = torch.linalg.pinv(atoms).mT * (atoms != 0).any(dim=1, keepdim=True)
    return rows, (rows * atoms).sum(dim=1)
