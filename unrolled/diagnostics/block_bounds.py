"""Both sides of the bounds on what a block does to its tokens, with the weights that it has."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..boosting import Residual
from ..models.blocks import Block, FeedForward, NoSkip
from ..spectral_filtering import LayerScale
from .measures import condition_number

# The largest slope of GELU, at sqrt(2).
GELU_SLOPE = 1.1290


@dataclass(frozen=True)
class BoundSides:
    """What was measured after a part of a block for each sequence, and its proved bounds.

    Attributes
    ----------
    name : str
        Name of the block in the model; empty if the model is the block.
    part : {"attention", "attention_skip", "feed_forward", "feed_forward_skip"}
        The branch alone, or the branch with its residual connection.
    measured, bound, sharp : Tensor of shape (batch,), float64
        ``measured <= sharp <= bound``; infinite where nothing is proved.
    """

    name: str
    part: str
    measured: Tensor
    bound: Tensor
    sharp: Tensor


@torch.no_grad()
def high_frequency_bounds(model: nn.Module, *inputs: Any, **arguments: Any) -> list[BoundSides]:
    """High frequencies after each part of each block, and their bounds by oversmoothing theorems.

    With ``HC X = X - 1 1^T X / N``, the tokens Y that enter the attention (after the norm), its H
    heads of matrices A_h, and N tokens ::

        attention          |HC[sum_h A_h Y W_h]| <= s sum_h |H A_h H|_2 |W_h|_2 |HC Y|    (sharp)
                                                 <= s H |W_v| |W_o| g(alpha) |HC Y|       (bound)
        attention_skip     |HC X'| <= |HC X| + the same
        feed_forward       |HC F(Y')| <= s 1.129 |W_1|_2 |W_2|_2 |HC Y'|
        feed_forward_skip  |HC X''| <= |HC X'| + the same

    with Frobenius norms of tokens, ``W_h = W_v^h W_o^h``, ``|W_v|`` and ``|W_o|`` the largest
    spectral norm over heads, ``g(alpha) = sqrt(N e^(2 alpha) / (e^(2 alpha) + N - 1))`` and alpha
    half the largest range of a row of logits; s is the largest factor of a `LayerScale`, else 1.
    Biases change no high frequency. The theorems have no norm in front of the branches; here Y and
    Y' are measured after this norm. All are upper bounds; 1.129 is the largest slope of GELU.

    Parameters
    ----------
    model : nn.Module
        A `Block`, or a model that contains some. It runs in its present mode, without gradients;
        dropout breaks the bounds.
    *inputs, **arguments
        The model is called with these.

    Returns
    -------
    list of BoundSides
        In the order of computation. Attention parts are left out if the operator is not row
        stochastic or the keys are not the queries, and feed-forward parts if they are not a
        `FeedForward`.

    Raises
    ------
    ValueError
        If the model contains no block, or a block has another residual connection or scale.

    References
    ----------
    Wang et al., "Anti-oversmoothing in deep vision transformers via the Fourier domain analysis"
    (2022), Theorem 3 and Propositions 4 to 6; EQUATIONS AO-6, AO-P4, AO-P5, AO-P6.

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled.models import Block
    >>> from twinsolve.unrolled.diagnostics import high_frequency_bounds
    >>> sides = high_frequency_bounds(Block(16, 4), torch.randn(2, 10, 16))
    >>> [side.part for side in sides]
    ['attention', 'attention_skip', 'feed_forward', 'feed_forward_skip']
    >>> all(bool((side.measured <= side.sharp).all()) for side in sides)
    True
    """
    sides = []
    for seen in _run_model(model, inputs, arguments):
        for part, x, y, before, factors in _list_branches(seen):
            branch = [f * _norm(_remove_mean(before)) for f in factors]
            skip = _norm(_remove_mean(x))
            measured = _norm(_remove_mean(y)), _norm(_remove_mean(seen.outputs[part]))
            sides.append(BoundSides(seen.name, part, measured[0], branch[0], branch[1]))
            if seen.skips[part]:
                bounds = branch[0] + skip, branch[1] + skip
                sides.append(BoundSides(seen.name, f"{part}_skip", measured[1], *bounds))
    return sides


@torch.no_grad()
def condition_bounds(model: nn.Module, *inputs: Any, **arguments: Any) -> list[BoundSides]:
    """Condition numbers after each part of each block, with its skip connection and without.

    On tokens X of full column rank a branch is a linear map, ``Y = M X`` with ``M = Y X^+``, and ::

        attention, feed_forward             kappa(Y) <= kappa(X) kappa(M)
        attention_skip, feed_forward_skip   kappa(X + Y) <= kappa(X) kappa(I + M)          (sharp)
                                                  <= kappa(X) (1 + |M|_2) / (1 - |M|_2)    (bound)

    where kappa of a map is that on the span of X, and the last line holds for ``|M|_2 < 1``. The
    identity keeps I + M far from singular where M is nearly so: why blocks need their skips.

    Parameters
    ----------
    model, *inputs, **arguments
        As in `high_frequency_bounds`, with any operator.

    Returns
    -------
    list of BoundSides
        In the order of computation. Bounds are infinite where X has no full column rank, as with
        fewer tokens than features. A branch after a norm without bias has no full column rank
        either: its kappa is infinite, and only the skip connection keeps that of the block finite.

    Raises
    ------
    ValueError
        If the model contains no block, or a block has another residual connection or scale.

    References
    ----------
    "Always skip attention" (2025), Propositions 4.1 and 4.2; EQUATIONS SK-4, SK-5, SK-7. Their M
    stands on the right of X, for linear attention without a norm.

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled.models import Block
    >>> from twinsolve.unrolled.diagnostics import condition_bounds
    >>> sides = condition_bounds(Block(8, 2), torch.randn(2, 20, 8))
    >>> all(bool((side.measured <= 1.000001 * side.sharp).all()) for side in sides)
    True
    """
    sides = []
    for seen in _run_model(model, inputs, arguments):
        for part, (x, y) in seen.residual_inputs.items():
            orthonormal, mapped, kappa = _fit_map(x, y)
            size = torch.linalg.matrix_norm(mapped, 2)
            sharp = kappa * condition_number(mapped)
            sides.append(BoundSides(seen.name, part, condition_number(y), sharp, sharp))
            if not seen.skips[part]:
                continue
            sharp = kappa * condition_number(orthonormal + mapped)
            bound = torch.where(size < 1, kappa * (1 + size) / (1 - size), torch.inf)
            measured = condition_number(seen.outputs[part])
            sides.append(BoundSides(seen.name, f"{part}_skip", measured, bound, sharp))
    return sides


class _BlockPass:
    """Inputs and outputs of the parts of a block in one pass, in float64."""

    def __init__(self, name: str, block: Block) -> None:
        self.name, self.block = name, block
        self.skips = {
            part: type(residual) is Residual
            for part, residual in (
                ("attention", block.attention_residual),
                ("feed_forward", getattr(block, "feed_forward_residual", None)),
            )
        }
        self.residual_inputs: dict[str, tuple[Tensor, Tensor]] = {}
        self.outputs: dict[str, Tensor] = {}
        self.values = self.matrix = self.fed = torch.zeros(())

    def hooks(self) -> Iterator[Any]:
        """Register hooks that note what passes through the block's parts; yield their handles."""
        block = self.block
        yield block.attention.register_forward_hook(self._note_attention, with_kwargs=True)
        yield block.attention.operator.register_forward_hook(self._note_operator, with_kwargs=True)
        yield block.attention_residual.register_forward_hook(self._note_residual("attention"))
        if block.feed_forward is not None:
            yield block.feed_forward.register_forward_hook(self._note_feed_forward)
            yield block.feed_forward_residual.register_forward_hook(
                self._note_residual("feed_forward")
            )

    def _note_attention(self, module: Any, inputs: Any, arguments: Any, output: Any) -> None:
        self.values = _add_batch(inputs[2])

    def _note_operator(self, module: Any, inputs: Any, arguments: Any, output: Any) -> None:
        q, k, _ = inputs
        if module.row_stochastic and module.linear_in_values:
            self.matrix = module.matrix(q, k, **arguments).double()

    def _note_feed_forward(self, module: Any, inputs: Any, output: Any) -> None:
        self.fed = _add_batch(inputs[0])

    def _note_residual(self, part: str) -> Any:
        def hook(module: Any, inputs: Any, output: Tensor) -> None:
            self.residual_inputs[part] = _add_batch(inputs[0]), _add_batch(inputs[1])
            self.outputs[part] = _add_batch(output)

        return hook


def _run_model(model: nn.Module, inputs: Any, arguments: Any) -> list[_BlockPass]:
    """Run the model once; return what was seen of each block, of those that ran."""
    blocks = [(n, m) for n, m in model.named_modules() if isinstance(m, Block)]
    if not blocks:
        raise ValueError(f"model: must be or contain a twinsolve Block, got {type(model).__name__}")
    for name, block in blocks:
        for part in ("attention", "feed_forward"):
            scale = getattr(block, f"{part}_scale", nn.Identity())
            residual = getattr(block, f"{part}_residual", Residual())
            if type(residual) not in (Residual, NoSkip) or type(scale) not in _SCALES:
                raise ValueError(
                    f"model: must have plain residual connections, scaled by LayerScale or not at "
                    f"all, got {type(residual).__name__} and {type(scale).__name__} in "
                    f"{name or 'the block'}"
                )
    all_seen = [_BlockPass(name, block) for name, block in blocks]
    with ExitStack() as stack, torch.no_grad():
        for seen in all_seen:
            for handle in seen.hooks():
                stack.callback(handle.remove)
        model(*inputs, **arguments)
    return [seen for seen in all_seen if seen.outputs]


_SCALES = (nn.Identity, LayerScale)


def _list_branches(
    seen: _BlockPass,
) -> Iterator[tuple[str, Tensor, Tensor, Tensor, tuple[Tensor, Tensor]]]:
    """Yield the part, the inputs x and y of its residual, its own input, and its two factors.

    The factors bound by how much a branch multiplies high frequencies: the theorem's, then a
    sharper.
    """
    block = seen.block
    if seen.matrix.ndim == 4 and seen.matrix.shape[-1] == seen.matrix.shape[-2]:
        scale, values = _find_largest_scale(block.attention_scale), seen.values
        factors = _bound_attention(block, seen.matrix)
        yield (
            "attention", *seen.residual_inputs["attention"], values,
            (scale * factors[0], scale * factors[1]),
        )  # fmt: skip
    if type(block.feed_forward) is FeedForward:
        network = block.feed_forward
        slope = GELU_SLOPE * _spectral_norm(network.fc1.weight) * _spectral_norm(network.fc2.weight)
        slope = slope * _find_largest_scale(block.feed_forward_scale)
        yield "feed_forward", *seen.residual_inputs["feed_forward"], seen.fed, (slope, slope)


def _bound_attention(block: Block, A: Tensor) -> tuple[Tensor, Tensor]:
    """Return the factor of Theorem 3 and a sharper one, by centred matrices, each (batch,)."""
    shell, n_tokens = block.attention, A.shape[-1]
    place = shell.projected.index("v") * shell.embed_dim
    rows = shell.in_proj_weight[place : place + shell.embed_dim].double()
    values = rows.unflatten(0, (shell.num_heads, -1))  # (heads, head_dim, dim)
    # (heads, dim, head_dim)
    out = shell.out_proj.weight.double().unflatten(1, (shell.num_heads, -1)).transpose(0, 1)
    gains = torch.linalg.matrix_norm(_remove_mean(_remove_mean(A).mT).mT, 2)
    sharp = (gains * torch.linalg.matrix_norm(out @ values, 2)).sum(dim=-1)
    if not shell.operator.nonnegative:
        return torch.full_like(sharp, torch.inf), sharp
    # e^(-2 alpha): the least entry of a row over its largest.
    inverse = (A.amin(dim=-1) / A.amax(dim=-1)).amin(dim=(-1, -2))
    gain = (n_tokens / (1 + (n_tokens - 1) * inverse)).sqrt()
    sizes = (torch.linalg.matrix_norm(weights, 2).max() for weights in (values, out))
    first, second = sizes
    return shell.num_heads * first * second * gain, sharp


def _find_largest_scale(scale: nn.Module) -> Tensor:
    """Return the largest factor of a LayerScale in size; 1 for other scales."""
    if isinstance(scale, LayerScale):
        return scale.gamma.detach().double().abs().max()
    return torch.ones((), dtype=torch.float64)


def _spectral_norm(weight: Tensor) -> Tensor:
    return torch.linalg.matrix_norm(weight.detach().double(), 2)


def _add_batch(x: Tensor) -> Tensor:
    """Return x in float64, detached, with all leading axes as one batch."""
    return x.detach().double().reshape(-1, *x.shape[-2:])


def _remove_mean(x: Tensor) -> Tensor:
    """Return ``HC X``: X minus its mean over the tokens."""
    return x - x.mean(dim=-2, keepdim=True)


def _norm(x: Tensor) -> Tensor:
    return torch.linalg.matrix_norm(x)


def _fit_map(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return U, M U and the condition number of x: M maps x to y, U spans the columns of x.

    The condition number is infinite where x has no full column rank; M has no meaning there.
    """
    if x.shape[-2] < x.shape[-1]:
        return x, y, torch.full(x.shape[:1], torch.inf, dtype=x.dtype, device=x.device)
    orthonormal, triangle = torch.linalg.qr(x)
    kappa = condition_number(x)
    full = kappa.isfinite()[..., None, None]
    unit = torch.eye(x.shape[-1], dtype=x.dtype, device=x.device)
    triangle = torch.where(full, triangle, unit)
    mapped = torch.linalg.solve_triangular(triangle, y, upper=True, left=False)
    return orthonormal, mapped, kappa
