"""Residual recursions around filters: skip connections to earlier layers."""

from collections.abc import Iterable, Sequence

from numpy.typing import ArrayLike

from ...validation import check_integer, check_positive
from ..inputs import Array, check_one_or_each
from .filters import Callback, Filter, bind_layers, check_signal, iterate


def boost(
    filter: Filter | Sequence[Filter],
    y: ArrayLike,
    *,
    t: float | ArrayLike = 0.0,
    n_iter: int,
    callback: Callback | None = None,
) -> Array:
    """Filter with two residual branches, one to the previous layer and one to the first.

    ::

        Y_0 = y,     Y_{l+1} = f(Y_l) + t Y_0 + (1 - t) Y_l

    With ``t = 0`` this is exactly the plain residual ``f(Y_l) + Y_l``. With its two branches it is
    not a special case of `generalized_residual`. For linear f, with f' the filter of the next
    layer, two layers combine to ``Y_{l+2} = f'(f(Y_l) + Y_l) + t f'(Y_0 - Y_l) + t Y_0 +
    (1 - t) Y_{l+1}``. For a filter that depends on the data, like attention, they do not (erratum
    E0-j).

    Parameters
    ----------
    filter : matrix or callable, or a list or tuple of them, one a layer
        An array-like or sparse array of shape (n_samples, n_samples), or a function of Y_l, which
        need not be linear. One matrix for each layer may also be an ndarray of shape (n_iter,
        n_samples, n_samples).
    y : array-like of shape (n_samples, n_values), or an image for callables
        A callable gets and returns arrays of this shape, which may also be (height, width) or have
        three dimensions. For a matrix, an image must have one row for each pixel.
    t : float or array-like of shape (n_iter,), default=0.0
        Weight of the first layer, one for all layers or one for each. The bounds need it in
        ``[0, 1]``. The default is the plain residual.
    n_iter : int
        Number of layers >= 0.
    callback : callable, optional
        Called as ``callback(l, Y_l)`` for l = 0 to n_iter; must not write into Y_l.

    Returns
    -------
    ndarray of the shape of `y`
        Y_n; float32 if y and the matrices are, else float64.

    Raises
    ------
    ValueError
        If a matrix is not square or does not fit y, an entry is not finite, a callable returns
        another shape, complex numbers, NaN or infinity, a layer overflows, ``n_iter < 0``, or the
        number of values of t or of filters is neither 1 nor `n_iter`.

    References
    ----------
    EQUATIONS IF-26, IF-27; Lipschitz constant: `boosting_lipschitz_bound`.

    Examples
    --------
    >>> from twinsolve.solvers import boost
    >>> boost([[0.5, 0.5], [0.5, 0.5]], [[0.0], [1.0]], t=0.5, n_iter=2)
    array([[1.25],
           [2.25]])
    """
    n_iter = check_integer(n_iter, "n_iter", minimum=0)
    weights = check_one_or_each(t, "t", n_iter, "layer").tolist()
    functions, y = bind_layers(filter, check_signal(y, "y"), n_iter, "filter")

    def step(layer: int, Y: Array) -> Array:
        first = weights[layer]
        return functions[layer](Y) + (first * y + (1 - first) * Y)

    return iterate(step, y, n_iter, callback, "filter")


def generalized_residual(
    filter: Filter | Sequence[Filter],
    y: ArrayLike,
    *,
    sources: Sequence[int],
    weights: float | ArrayLike = 1.0,
    callback: Callback | None = None,
) -> Array:
    """Filter with a residual branch to any earlier layer: the generalised residual connection.

    ::

        Y_0 = y,     Y_{l+1} = f(Y_l) + t_l Y_{i_l},     0 <= i_l <= l

    ``i_l = l`` with ``t_l = 1`` is the standard residual.

    Parameters
    ----------
    filter : matrix or callable, or a list or tuple of them, one a layer
        As for `boost`.
    y : array-like of shape (n_samples, n_values), or an image for callables
        As for `boost`.
    sources : sequence of int of length n_layers
        The indices i_l.
    weights : float or array-like of shape (n_layers,), default=1.0
        The weights t_l; the definition has them in ``(0, 1]``.
    callback : callable, optional
        Called as ``callback(l, Y_l)`` for l = 0 to n_layers; must not write into Y_l.

    Returns
    -------
    ndarray of the shape of `y`
        The last layer; float32 if y and the matrices are, else float64.

    Raises
    ------
    ValueError
        As `boost` does; or if an i_l is not a whole number in ``[0, l]``.

    References
    ----------
    EQUATIONS IF-GRC.

    Examples
    --------
    >>> from twinsolve.solvers.boosting import generalized_residual
    >>> A = [[0.5, 0.5], [0.5, 0.5]]
    >>> generalized_residual(A, [[0.0], [1.0]], sources=[0, 0], weights=[1.0, 0.5])
    array([[1. ],
           [1.5]])
    """
    if not isinstance(sources, Iterable):
        raise ValueError(f"sources: must be a sequence of whole numbers, got {sources!r}")
    indices = [
        check_integer(source, f"sources[{layer}]", minimum=0, maximum=layer)
        for layer, source in enumerate(sources)
    ]
    t = check_one_or_each(weights, "weights", len(indices), "layer").tolist()
    functions, y = bind_layers(filter, check_signal(y, "y"), len(indices), "filter")
    layers = [y]

    def step(layer: int, Y: Array) -> Array:
        layers.append(functions[layer](Y) + t[layer] * layers[indices[layer]])
        return layers[-1]

    return iterate(step, y, len(indices), callback, "filter")


def boosting_lipschitz_bound(lipschitz: float, n_layers: int, *, t: float = 0.0) -> float:
    """Lipschitz constant of n boosted layers from the Lipschitz constant L of the filter.

    ::

        K_0 = 1,     K_{n+1} = (L + 1 - t) K_n + t
        K_n = (L a^n - t) / (L - t),  a = L + 1 - t;     K_n = 1 + n t  if  L = t

    For the plain residual, ``t = 0``, it is ``K_n = (L + 1)^n``. ``f = L id`` attains the bound.
    For ``L > t`` the ratio of K_n to ``(L + 1)^n`` tends to ``L / (L - t) (1 - t / (L + 1))^n``;
    for ``L < t`` K_n stays bounded and tends to ``t / (t - L)``.

    Parameters
    ----------
    lipschitz : float
        Constant L >= 0 of the filter of every layer. Dot-product attention on all inputs has none.
    n_layers : int
        Number of layers n >= 0.
    t : float, default=0.0
        Weight of the first layer in `boost`, in ``[0, 1]``.

    Returns
    -------
    float
        Infinite where it exceeds the range of float64.

    Raises
    ------
    ValueError
        If ``L < 0``, ``n < 0`` or t is not in ``[0, 1]``.

    References
    ----------
    EQUATIONS IF-29. The paper prints the closed form without its condition ``L > t`` (erratum E0-l)
    and the general recurrence with reversed signs (E0-k).

    Examples
    --------
    >>> from twinsolve.solvers.boosting import boosting_lipschitz_bound
    >>> boosting_lipschitz_bound(1.0, 12), boosting_lipschitz_bound(0.5, 12, t=0.5)
    (4096.0, 7.0)
    """
    L = check_positive(lipschitz, "lipschitz", allow_zero=True)
    t = check_positive(t, "t", allow_zero=True)
    if t > 1:
        raise ValueError(f"t: must be in [0, 1], got {t!r}")
    K = 1.0
    for _ in range(check_integer(n_layers, "n_layers", minimum=0)):
        K = (L + 1 - t) * K + t
    return K
