"""Nyström attention: the quadrature, its masks, its cost and what it refuses."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from twinsolve.solvers.kernel_smoothing import nystrom_matrix
from twinsolve.unrolled import AttnScale, LanguageModel, Nystrom, Softmax, VisionTransformer

from .draws import tokens
from .recording import saved_sizes

N, D = 11, 4


def qkv(*shape):
    return tuple(tokens(*shape, seed=seed) for seed in range(3))


@pytest.mark.parametrize("n_landmarks", [1, 3, 4, 10])
@pytest.mark.parametrize("n_iter", [0, 1, 6])
def test_iterates_are_those_of_the_solver(n_landmarks, n_iter):
    q, k, v = qkv(2, N, D)
    layer = Nystrom(n_landmarks, n_iter=n_iter)
    for head in range(2):
        expected = nystrom_matrix(
            q[head], k[head], n_landmarks=n_landmarks, scale=D**-0.5, n_iter=n_iter
        )
        assert_close(layer.matrix(q, k)[head].numpy(), expected, atol=1e-12, rtol=0)
        assert_close(layer(q, k, v)[head].numpy(), expected @ v[head].numpy(), atol=1e-12, rtol=0)


def test_more_landmarks_than_tokens_cost_nothing():
    q = tokens(2, 5, D).requires_grad_()
    assert max(saved_sizes(lambda: Nystrom(10_000)(q, q, q))) <= 2 * 5 * 5


@pytest.mark.parametrize("n_landmarks", [N, 3 * N])
def test_is_softmax_attention_where_every_token_is_a_landmark(n_landmarks):
    q, k, v = qkv(2, 3, N, D)
    assert_close(Nystrom(n_landmarks)(q, k, v), Softmax()(q, k, v))
    hidden = torch.arange(N) % 3 == 1
    for few in (N - int(hidden.sum()), n_landmarks):
        found, expected = (
            o(q, k, v, mask=~hidden[None])[..., ~hidden, :] for o in (Nystrom(few), Softmax())
        )
        assert_close(found, expected)


@pytest.mark.parametrize("n_landmarks", [3, 5, 8])
def test_hidden_tokens_are_as_if_absent(n_landmarks):
    """Wherever they stand, whatever they hold, and whatever others of the batch hide."""
    layer, (q, k, v) = Nystrom(n_landmarks), qkv(2, 3, N, D)
    hidden = torch.zeros(2, 1, 1, N, dtype=torch.bool)
    hidden[0, ..., [0, 4, 5, 10]] = hidden[1, ..., [2]] = True
    held = [x.masked_fill(hidden.mT, value) for x, value in ((q, 1e9), (k, 7.0), (v, -3.0))]
    found = layer(*held, mask=~hidden)
    matrix = layer.matrix(*held[:2], mask=~hidden)
    assert not matrix[hidden.expand(matrix.shape)].any()
    for batch in range(2):
        seen = ~hidden[batch, 0, 0]
        alone = layer(*(x[batch][..., seen, :] for x in (q, k, v)))
        assert_close(found[batch][..., seen, :], alone)
    nothing = layer(q, k, v, mask=torch.zeros(1, N, dtype=torch.bool))
    assert not nothing.any()


@pytest.mark.parametrize("hidden", [None, 3])
def test_gradients_are_those_of_finite_differences(hidden):
    mask = None if hidden is None else (torch.arange(6) != hidden)[None]
    layer, inputs = Nystrom(3), [x.requires_grad_() for x in qkv(1, 6, 2)]

    def attend(*inputs):
        return layer(*inputs, mask=mask)

    assert torch.autograd.gradcheck(attend, inputs)
    assert torch.autograd.gradgradcheck(attend, inputs, fast_mode=True)


def test_keeps_the_digits_of_float32_where_the_pseudo_inverse_is_large():
    """Products in float32 would lose those that Z enlarges."""
    q, k, v = (x.float() for x in qkv(2, 64, 8))
    layer = Nystrom(16, n_iter=20)
    found, exact = layer(q, k, v), layer(*(x.double() for x in (q, k, v)))
    assert found.dtype == torch.float32
    scale = exact.abs().max()
    assert (found - exact).abs().max() <= 4 * torch.finfo(torch.float32).eps * scale


def test_memory_is_linear_in_the_number_of_tokens():
    sizes = []
    for n in (512, 2048):
        q = torch.randn(1, n, 4, requires_grad=True)
        sizes.append(sum(saved_sizes(lambda q=q: Nystrom(8)(q, q, q))))
    assert sizes[1] < 4.2 * sizes[0]


def test_better_with_more_landmarks_on_smooth_tokens():
    """On tokens along a curve the error of the quadrature falls with the number of landmarks."""
    angles = torch.linspace(0, 3, 60, dtype=torch.float64)
    q = 2 * torch.stack([angles.cos(), angles.sin()], dim=1)
    exact = Softmax().matrix(q, q)
    errors = [(Nystrom(m, n_iter=40).matrix(q, q) - exact).norm() for m in (2, 4, 8)]
    assert errors[0] > 4 * errors[1] > 16 * errors[2]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"is_causal": True}, "Nystrom: does not support is_causal=True"),
        ({"mask": torch.ones(N, N, dtype=torch.bool).tril()}, "may only hide whole keys"),
        ({"mask": torch.full((1, N), 0.5, dtype=torch.float64)}, "masks may only hide keys"),
    ],
)
def test_masks_that_it_cannot_serve_are_refused(given, message):
    q = tokens(2, N, D)
    with pytest.raises(ValueError, match=message):
        Nystrom(3)(q, q, q, **given)


def test_other_queries_than_keys_and_a_language_model_are_refused():
    q = tokens(2, N, D)
    with pytest.raises(ValueError, match="needs as many queries as keys, got 4 and 11"):
        Nystrom(3)(q[:, :4], q, q)
    with pytest.raises(ValueError, match="n_landmarks: must be"):
        Nystrom(0)
    with pytest.raises(ValueError, match="n_iter: must be"):
        Nystrom(3, n_iter=-1)
    with pytest.raises(ValueError, match="causal"):
        LanguageModel(7, 12, 1, 3, 9, operator="nystrom")


def test_a_vision_transformer_takes_it_and_corrections_say_what_is_left():
    model = VisionTransformer(12, 2, 1, 5, 12, 2, 3, operator="nystrom")
    model(torch.rand(2, 1, 12, 12)).sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())
    with pytest.warns(UserWarning, match="Nystrom is not row stochastic"):
        AttnScale(Nystrom(4))


def test_length_need_not_be_a_multiple_of_the_number_of_landmarks():
    q, k, _ = qkv(2, N, D)
    segments = [np.arange(N) * 4 // N == s for s in range(4)]
    of_q, of_k = (torch.stack([x[:, s].mean(dim=1) for s in segments], dim=1) for x in (q, k))
    F, A, B = ((a @ b.mT / D**0.5).softmax(dim=-1) for a, b in ((q, of_k), (of_q, of_k), (of_q, k)))
    assert_close(Nystrom(4, n_iter=40).matrix(q, k), F @ torch.linalg.inv(A) @ B)
