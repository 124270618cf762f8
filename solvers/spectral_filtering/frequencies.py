"""The mean of the tokens (DC), the rest (HC), and the Fourier spectrum of attention."""

import numpy as np
import scipy.fft
from numpy.typing import ArrayLike

from ..inputs import Array, check_matrix, check_square
from ..scales import frobenius_norm, unit_size


def split_frequencies(X: ArrayLike) -> tuple[Array, Array]:
    """Split tokens into their mean (direct current, DC) and the rest (high frequencies, HC).

    ::

        DC[X] = 1 1^T X / N,     HC[X] = X - DC[X] = H X,     H = I - 1 1^T / N

    These are the first and all other bins of the Fourier transform over the tokens. The parts are
    orthogonal: ``|X|_F^2 = |DC|_F^2 + |HC|_F^2``.

    Parameters
    ----------
    X : array-like of shape (n_tokens, n_features)

    Returns
    -------
    dc, hc : ndarray of shape (n_tokens, n_features)
        float32 if X is, else float64. All rows of `dc` are the same.

    Raises
    ------
    ValueError
        On NaN, infinity or a wrong shape.

    References
    ----------
    Wang et al., "Anti-oversmoothing in deep vision transformers via the Fourier domain analysis"
    (2022); EQUATIONS AO-14 to AO-18. The projector is ``I - 1 1^T / N``, printed once without the
    1/N (erratum E1-l).

    Examples
    --------
    >>> from twinsolve.solvers import split_frequencies
    >>> dc, hc = split_frequencies([[1.0], [5.0]])
    >>> dc.ravel(), hc.ravel()
    (array([3., 3.]), array([-2.,  2.]))
    """
    X = check_matrix(X, "X")
    mean, high = centre(X)
    return np.tile(mean.astype(X.dtype), (len(X), 1)), high.astype(X.dtype, copy=False)


def high_frequency_share(X: ArrayLike) -> float:
    """Share of the high frequencies in the norm of the tokens; 0 if all tokens are the same.

    ::

        |HC X|_F / |X|_F = sqrt(1 - (|DC X|_F / |X|_F)^2)

    Parameters
    ----------
    X : array-like of shape (n_tokens, n_features)

    Returns
    -------
    float
        In [0, 1]; 0 if X is zero.

    Raises
    ------
    ValueError
        On NaN, infinity or a wrong shape.

    References
    ----------
    EQUATIONS AO-HF.

    Examples
    --------
    >>> from twinsolve.solvers.spectral_filtering import high_frequency_share
    >>> high_frequency_share([[7.0], [-1.0]])
    0.8
    """
    X = unit_size(check_matrix(X, "X"))
    norm = frobenius_norm(X)
    return min(frobenius_norm(centre(X)[1]) / norm, 1.0) if norm > 0 else 0.0


def attention_spectrum(A: ArrayLike) -> tuple[Array, Array]:
    """Fourier spectrum of an attention matrix, and the intensity of each band.

    ::

        Lam = F A F^-1,     F_jk = exp(-2 pi i j k / N) / sqrt(N),     intensity_j = |Lam_j|_2

    Lam maps the spectrum of the values to the spectrum of the output: entry (j, k) is the gain from
    frequency k to frequency j, and ``Lam_j`` is row j. If the rows of A sum to 1, column 0 is
    (1, 0, ..., 0): the mean of the values enters no other band. Lam and A have the same Frobenius
    norm, and bands j and N - j of a real A have the same intensity. Takes O(N^2 log N) operations.

    Parameters
    ----------
    A : array-like of shape (n_tokens, n_tokens)
        Row i holds the weights with which token i attends to the tokens.

    Returns
    -------
    spectrum : complex ndarray of shape (n_tokens, n_tokens)
        Band 0 is first, in the order of `numpy.fft.fftfreq`; complex64 if A is float32.
    intensity : ndarray of shape (n_tokens,)

    Raises
    ------
    ValueError
        If A is not square or an entry is not finite.

    References
    ----------
    EQUATIONS AO-SPEC. The transform is printed without the 1/N of the exponent, and its inverse
    without the complex conjugate (errata E1-a, E1-b).

    Examples
    --------
    >>> from twinsolve.solvers.spectral_filtering import attention_spectrum
    >>> spectrum, intensity = attention_spectrum([[0.75, 0.25], [0.25, 0.75]])
    >>> spectrum.real, intensity
    (array([[1. , 0. ],
           [0. , 0.5]]), array([1. , 0.5]))
    """
    A = check_square(check_matrix(A, "A"), "A")
    bands = scipy.fft.fft(A, axis=0, norm="ortho")
    spectrum: Array = scipy.fft.ifft(bands, axis=1, norm="ortho", overwrite_x=True)
    return spectrum, np.linalg.norm(spectrum, axis=1)


def centre(X: Array) -> tuple[Array, Array]:
    """Return the mean of the rows and the remainder, in float64; equal rows leave exactly 0."""
    high = X - X[0].astype(np.float64)
    shift = high.mean(axis=0)
    high -= shift
    return X[0] + shift, high
