"""Jacobians of layers: their singular values and local Lipschitz constants."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.autograd.functional import jvp, vjp
from torch.nn.attention import SDPBackend, sdpa_kernel

from ..attention import check_count


def jacobian_spectrum(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Singular values of the Jacobian ``d vec(f(x)) / d vec(x)``, largest first.

    The whole Jacobian is built: for a few hundred entries of x. With a frozen attention matrix A
    and projection W it is the Kronecker product of A and ``W^T``, whose condition number is the
    product of theirs.

    Parameters
    ----------
    function : callable
        A layer: Tensor to Tensor, of any shapes.
    x : Tensor

    Returns
    -------
    Tensor of shape (min(n_outputs, n_inputs),)
        The first is the local Lipschitz constant, the first over the last the condition number.

    References
    ----------
    EQUATIONS SK-JAC.

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled.diagnostics import jacobian_spectrum
    >>> jacobian_spectrum(lambda x: 3 * x, torch.zeros(2, 2))
    tensor([3., 3., 3., 3.])
    """
    jacobian = torch.autograd.functional.jacobian(function, x.detach())
    n_inputs = x.numel()
    return torch.linalg.svdvals(jacobian.reshape(-1, n_inputs))


def lipschitz_constant(
    function: Callable[[Tensor], Tensor], x: Tensor, *, n_iter: int = 50, seed: int = 0
) -> Tensor:
    """Local Lipschitz constant at x: the largest singular value of the Jacobian there.

    By power iteration with Jacobian products, so that x may be large; it approaches the constant
    from below.

    Parameters
    ----------
    function : callable
        A layer: Tensor to Tensor.
    x : Tensor
    n_iter : int, default=50
        Number of iterations, >= 1.
    seed : int, default=0
        Of the first direction.

    Returns
    -------
    Tensor of shape ()

    Raises
    ------
    ValueError
        If ``n_iter < 1``.

    References
    ----------
    EQUATIONS IF-29, SK-JAC.

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled.diagnostics import lipschitz_constant
    >>> lipschitz_constant(lambda x: 3 * x, torch.zeros(4, 4))
    tensor(3.)
    """
    check_count(n_iter, "n_iter", 1)
    generator = torch.Generator().manual_seed(seed)
    direction = torch.randn(x.shape, generator=generator).to(x)
    growth = x.new_zeros(())
    # Forward products differentiate the backward pass, which the fused kernel does not offer.
    with sdpa_kernel(SDPBackend.MATH):
        for _ in range(n_iter):
            direction = direction / torch.linalg.vector_norm(direction)
            _, image = jvp(function, x.detach(), direction)
            growth = torch.linalg.vector_norm(image)
            if growth == 0:
                break
            _, direction = vjp(function, x.detach(), image)
    return growth
