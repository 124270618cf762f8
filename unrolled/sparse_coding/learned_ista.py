"""The LISTA family: networks whose layers are iterations of ISTA with learned parameters."""

from typing import Any, Literal, get_args

import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from ..attention import Positive, check_count, check_positive, own_copy, without_autocast
from .iterations import (
    SparsePenalty,
    at_iteration,
    positive_per_iteration,
    proximal_step,
    repeated,
    safe_step,
)


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
        In the dtype of `dictionary`; computed in float64.

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
    """Return the rows p_i of ``(D^+)^T`` and ``g_i = p_i . d_i``; both are 0 for zero atoms."""
    rows = torch.linalg.pinv(atoms).mT * (atoms != 0).any(dim=1, keepdim=True)
    return rows, (rows * atoms).sum(dim=1)


Parametrization = Literal["lista", "coupled", "step", "alista", "adaptive"]


class LISTA(nn.Module):
    """Sparse codes by unrolled ISTA iterations with learned parameters: the LISTA family.

    For signals Y (rows) and a dictionary D (rows are atoms), iteration t is ::

        C <- S_{s_t lam_t / 2}( C + s_t G_t(C) ),     C = 0 at first

    and the parametrizations differ in G, which for ISTA on ``|Y - C D|_F^2 + lam |C|_1`` is
    ``(Y - C D) D^T``:

    ============  ==============================  ====================================
    "lista"       ``Y B_t - C M_t``               ``B_t = D^T, M_t = D D^T`` at first
    "coupled"     ``(Y - C D) W_t^T``             ``W_t = D`` at first
    "step"        ``(Y - C D) D^T``               only steps and penalties are learned
    "alista"      ``(Y - C D) W^T``               ``W = analytic_weights(D)``, fixed
    "adaptive"    ``(Y U - C D V^T V) D^T``       ``U = V = I`` at first, for any D
    ============  ==============================  ====================================

    In the printed form of LISTA, ``S_th(Y We + C Wc)``, these are ``We = s_t B_t``,
    ``Wc = I - s_t M_t`` and ``th = s_t lam_t / 2``. At the initial parameters all but "alista" are
    ISTA. ALISTA is not, and its limit is no Lasso solution in D: it runs ISTA in the metric of the
    leverages ``g_i = d_i (D^T D)^+ d_i^T`` on ``|(Y - C D) P|_F^2 + lam sum_i g_i |c_i|_1`` with
    ``P^2 = (D^T D)^+``, a weighted Lasso of whitened signals.

    Parameters
    ----------
    dictionary : array-like or Tensor of shape (n_atoms, d)
        Kept as a buffer, in its own floating dtype unless `dtype` is given.
    n_iter : int
        Number of iterations >= 1, with parameters of their own. The attribute may be changed later:
        fewer stop early, more repeat the last one's parameters.
    lam : float
        Penalty > 0 on the scale above, of every iteration at first, and always that of `objective`.
        A code is zero iff ``lam >= 2 max_j |y . d_j|``. The papers give no default.
    parametrization : {"lista", "coupled", "step", "alista", "adaptive"}, default="step"
        By default the one that needs the fewest signals to train.

    Attributes
    ----------
    step, lam : ModuleList of Positive
        ``step[t]()`` and ``lam[t]()`` are s_t and lam_t. Steps are ``1 / |D|_2^2`` at first, and
        `analytic_step`, the longest stable one, for "alista". For "adaptive" they are 1 at first,
        in units of the safe step ``1 / |D^T D|_F`` of the dictionary given.
    input_weight, gram_weight : Parameter
        B and M, one for each iteration; or U and V of "adaptive", shared by all.
    weight : Parameter or Tensor
        W of "coupled" and "alista".

    Raises
    ------
    ValueError
        If an argument is out of range, or shapes do not fit.

    References
    ----------
    Gregor and LeCun (2010), Chen et al. (2018), Ablin et al. (2019), Liu et al. (2019), Aberdam et
    al. (2020); EQUATIONS SE-15L, SE-17, LS-2, LS-3.

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled import LISTA
    >>> layer = LISTA(torch.eye(2), n_iter=3, lam=2.0)
    >>> layer(torch.tensor([[3.0, 0.5]])).detach()
    tensor([[2., 0.]])
    """

    dictionary: Tensor
    input_weight: Tensor
    gram_weight: Tensor
    weight: Tensor

    def __init__(
        self,
        dictionary: ArrayLike | Tensor,
        n_iter: int,
        lam: float,
        parametrization: Parametrization = "step",
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if parametrization not in get_args(Parametrization):
            raise ValueError(
                f"parametrization: must be one of {', '.join(get_args(Parametrization))}, "
                f"got {parametrization!r}"
            )
        device = place_of(dictionary) if device is None else device
        with torch.device("cpu"):  # numbers are read from it, also where layers have no memory
            D = _check_dictionary(dictionary)
            D = D if dtype is None else D.to(dtype)
            first_step = _choose_first_step(D, parametrization)
        factory: dict[str, Any] = {"device": device, "dtype": D.dtype}
        self.parametrization = parametrization
        self.n_iter = check_count(n_iter, "n_iter", 1)
        self.penalty = check_positive(lam, "lam")
        self.register_buffer("dictionary", D.to(device))
        self.lam = positive_per_iteration(lam, n_iter, "lam", **factory)
        self.step = positive_per_iteration(first_step, n_iter, "step", **factory)
        for name, first in _choose_first_weights(D, parametrization).items():
            stacked = first if parametrization == "adaptive" else first.expand(n_iter, -1, -1)
            self.register_parameter(name, nn.Parameter(torch.empty_like(stacked, device=device)))
        if parametrization == "alista":
            self.register_buffer("weight", analytic_weights(D).to(device))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Return all parameters to their values at construction, by the dictionary, a buffer."""
        for value in (*self.step, *self.lam):
            assert isinstance(value, Positive)
            value.reset_parameters()
        with torch.no_grad():
            for name, first in _choose_first_weights(self.dictionary, self.parametrization).items():
                self.get_parameter(name).copy_(first)

    def forward(self, signals: Tensor, dictionary: Tensor | None = None) -> Tensor:
        """Code signals in the dictionary.

        Parameters
        ----------
        signals : Tensor of shape (..., n_signals, d)
        dictionary : Tensor of shape (..., n_atoms, d), optional
            Another one than at construction, for "adaptive".

        Returns
        -------
        Tensor of shape (..., n_signals, n_atoms)
            bfloat16 and float16 iterate in float32.
        """
        wide = torch.promote_types(signals.dtype, torch.float32)
        Y, D = signals.to(wide), self._choose_dictionary(signals, dictionary).to(wide)
        with without_autocast(Y):
            unit = safe_step(D).to(wide) if self.parametrization == "adaptive" else 1.0
            batch = torch.broadcast_shapes(Y.shape[:-2], D.shape[:-2])

            def move(codes: Tensor, t: int) -> Tensor:
                step = unit * at_iteration(self.step, t).to(wide)
                pull = self._compute_pull(t, Y, codes if t else None, D)
                lam = at_iteration(self.lam, t).to(wide)
                return proximal_step(codes, pull, step, SparsePenalty(lam))

            zero = Y.new_zeros(*batch, Y.shape[-2], D.shape[-2])
            return repeated(move, zero, range(self.n_iter)).to(signals.dtype)

    def objective(self, signals: Tensor, codes: Tensor, dictionary: Tensor | None = None) -> Tensor:
        """``|y - c D|^2 + lam |c|_1`` of each signal, at the penalty given at construction.

        Parameters
        ----------
        signals : Tensor of shape (..., n_signals, d)
        codes : Tensor of shape (..., n_signals, n_atoms)
        dictionary : Tensor of shape (..., n_atoms, d), optional

        Returns
        -------
        Tensor of shape (..., n_signals)
        """
        D = self._choose_dictionary(signals, dictionary).to(signals.dtype)
        return (signals - codes @ D).square().sum(-1) + self.penalty * codes.abs().sum(-1)

    def _compute_pull(self, t: int, Y: Tensor, codes: Tensor | None, D: Tensor) -> Tensor:
        """Return ``G_t(C)`` of the class's table; `codes` None stands for ``C = 0``."""
        layer = min(t, len(self.step) - 1)
        if self.parametrization == "lista":
            pull = Y @ self.input_weight[layer].to(Y.dtype)
            return pull if codes is None else pull - codes @ self.gram_weight[layer].to(Y.dtype)
        if self.parametrization == "adaptive":
            pull, root = Y @ self.input_weight.to(Y.dtype), self.gram_weight.to(Y.dtype)
            return (pull if codes is None else pull - codes @ D @ root.mT @ root) @ D.mT
        residual = Y if codes is None else Y - codes @ D
        if self.parametrization == "step":
            return residual @ D.mT
        weight = self.weight[layer] if self.parametrization == "coupled" else self.weight
        return residual @ weight.to(Y.dtype).mT

    def _choose_dictionary(self, signals: Tensor, dictionary: Tensor | None) -> Tensor:
        """Return the dictionary to code in, after a check of its width and the signals'."""
        if dictionary is None:
            dictionary = self.dictionary
        elif self.parametrization != "adaptive":
            raise ValueError(
                'dictionary: must be None unless the parametrization is "adaptive", got a tensor '
                f'with "{self.parametrization}"'
            )
        d = self.dictionary.shape[-1]
        if not signals.is_floating_point():
            raise ValueError(f"signals: must be of a floating dtype, got {signals.dtype}")
        if any(x.ndim < 2 or x.shape[-1] != d for x in (signals, dictionary)):
            raise ValueError(
                f"signals: signals and dictionary must have rows of width {d}, got shapes "
                f"{tuple(signals.shape)} and {tuple(dictionary.shape)}"
            )
        return dictionary

    def extra_repr(self) -> str:
        n_atoms, d = self.dictionary.shape
        return (
            f"n_atoms={n_atoms}, d={d}, n_iter={self.n_iter}, lam={self.penalty:.4g}, "
            f"parametrization={self.parametrization!r}"
        )


def place_of(dictionary: ArrayLike | Tensor) -> torch.device:
    """Return the device for a layer that names none: the dictionary's, or the default one."""
    default = torch.get_default_device()
    return (
        dictionary.device if isinstance(dictionary, Tensor) and default.type != "meta" else default
    )


def _check_dictionary(dictionary: ArrayLike | Tensor) -> Tensor:
    """Return a copy of the dictionary in a floating dtype, after a check that it is finite."""
    D = own_copy(dictionary)
    if D.is_meta:
        raise ValueError("dictionary: must hold numbers, got one on the device meta")
    D = D if D.is_floating_point() else D.to(torch.get_default_dtype())
    if D.ndim != 2 or 0 in D.shape or not bool(D.isfinite().all()):
        raise ValueError(
            f"dictionary: must be finite, of shape (n_atoms, d), got shape {tuple(D.shape)} with "
            f"{int((~D.isfinite()).sum())} entries that are not finite"
        )
    return D


def _choose_first_step(D: Tensor, parametrization: Parametrization) -> float:
    """Return the step length of all iterations at construction."""
    if parametrization == "adaptive":
        return 1.0
    if parametrization == "alista":
        return analytic_step(D)
    norm = float(torch.linalg.matrix_norm(D.double(), 2))
    return norm**-2 if norm > 0 else 1.0


def _choose_first_weights(D: Tensor, parametrization: Parametrization) -> dict[str, Tensor]:
    """Return the learned matrices at construction, by name."""
    if parametrization == "lista":
        return {"input_weight": D.mT, "gram_weight": D @ D.mT}
    if parametrization == "coupled":
        return {"weight": D}
    if parametrization == "adaptive":
        eye = torch.eye(D.shape[1], device=D.device, dtype=D.dtype)
        return {"input_weight": eye, "gram_weight": eye}
    return {}
