"""Bilateral attention, and the bias that stores its position term."""

import copy
import math
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from ..attention import (
    Attention,
    Call,
    Context,
    Correction,
    Operator,
    Positive,
    SoftmaxSmoother,
    fused_attention,
)
from .gaussian import gaussian_attention
from .logits import add_bias, expand_features, gaussian_logits, of_queries, split_features


class Biased(Correction):
    """The base operator with a constant bias added to its logits: ``softmax(logits + b)``.

    Use it to store a term that is the same in each call, such as the position term of a trained
    `Bilateral`, or relative positions b_ij. The bias has n_queries x n_keys numbers a head, which
    fixes the number of tokens; the base keeps its fused form.

    Parameters
    ----------
    base : Operator
        Must take additive masks.
    bias : Tensor broadcastable to (..., heads, n_queries, n_keys)
        Of full size in its last two dimensions. It is a constant without a gradient, as the fused
        kernel computes no gradient of a bias.

    Raises
    ------
    ValueError
        If `base` takes no additive masks, or the bias does not fit the tokens.

    References
    ----------
    EQUATIONS FF-7, IF-21, IF-30.

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled import Biased, Softmax
    >>> q = torch.randn(1, 2, 5, 8)
    >>> nearby = -torch.tensor([[abs(i - j) for j in range(5)] for i in range(5)]) * 100.0
    >>> torch.allclose(Biased(Softmax(), nearby)(q, q, q), q, atol=1e-5)
    True
    """

    bias: Tensor

    def __init__(self, base: Operator, bias: Tensor) -> None:
        super().__init__(base)
        if not base.additive_masks:
            raise ValueError(
                "base: must take additive masks, so that a bias can be added to its logits, got "
                f"{type(base).__name__}"
            )
        if not bias.is_floating_point() or bias.ndim < 2:
            raise ValueError(
                "bias: must be floating point (..., n_queries, n_keys), got "
                f"{bias.dtype} {tuple(bias.shape)}"
            )
        self.register_buffer("bias", bias.detach())

    def attend(self, call: Call) -> Tensor:
        return self._add_stored_bias(call).output_of(self.base)

    def coefficients(self, call: Call) -> Tensor:
        return self._add_stored_bias(call).matrix_of(self.base)

    def _add_stored_bias(self, call: Call) -> Call:
        """Return the call with the bias added to its mask."""
        q, k = call.q, call.k
        if self.bias.shape[-2:] != (q.shape[-2], k.shape[-2]):
            raise ValueError(
                f"bias: is for {self.bias.shape[-2]} queries and {self.bias.shape[-1]} keys, got "
                f"{q.shape[-2]} queries and {k.shape[-2]} keys"
            )
        return call._replace(mask=add_bias(call.mask, self.bias))

    def extra_repr(self) -> str:
        return f"bias of shape {tuple(self.bias.shape)}"


class Bilateral(SoftmaxSmoother):
    """Bilateral self-attention: tokens that are alike and near attend to each other.

    ::

        dot products   l_ij = p_i Wq Wk^T p_j^T / hp^2 + q_i . k_j / hy^2
        distances      l_ij = -|p_i Wq - p_j Wk|^2 / (2 hp^2) - |q_i - k_j|^2 / (2 hy^2)

    and ``A = softmax(l)``, as one fused attention on concatenated features. Positions are kept
    apart from the tokens and pass through the same projections Wq and Wk, which the shell
    `Attention` applies. With fewer queries than keys, the queries are the last tokens. At the
    default bandwidths the first form has the logits of attention on ``x = y + p`` without the two
    cross terms.

    With distances, and positions and tokens themselves as queries, keys and values, it is the
    bilateral filter; IF-13 writes its ``h^2`` for ``2 h^2`` here (errata E0-b, E0-q). The forms
    coincide where all keys and all positions have equal norms.

    Positions should have the scale of sinusoidal ones, ``|p|^2 = dim / 2``; much smaller ones leave
    the position term without effect. Models that hold the operator leave tokens without positions.

    Parameters
    ----------
    position_bandwidth : float, optional
        hp > 0. None is ``head_dim ** 0.25``. Infinity leaves the term out and needs no positions:
        nonlocal self-attention, which is plain attention at the default token bandwidth. Models add
        no positions to its tokens either: a model of such layers alone does not see the order of
        its tokens, unless it is made with ``add_positions=True``.
    token_bandwidth : float, optional
        hy > 0. None is ``head_dim ** 0.25``.
    distances : bool, default=False
        Compare by distances instead of dot products.
    num_heads : int, optional
        One pair of bandwidths a head instead of one for all.
    learnable : bool, default=False
        Train the bandwidths (their logarithms), which must then be given.

    Raises
    ------
    ValueError
        If a bandwidth is not positive, or missing where `learnable` or `num_heads` need it, or the
        context has no projected positions, or they do not fit queries and keys.

    References
    ----------
    Tomasi and Manduchi (1998); "Revisiting Transformers with Insights from Image Filtering", eq. 13
    to 21; EQUATIONS IF-13, IF-14, IF-19, IF-21, FF-5, FF-6.

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled import Attention, Bilateral, Context
    >>> layer = Attention(16, 4, operator=Bilateral())
    >>> x, positions = torch.randn(2, 10, 16), torch.randn(10, 16)
    >>> layer(x, x, x, need_weights=False, context=Context(positions=positions))[0].shape
    torch.Size([2, 10, 16])
    """

    positions_apart = True

    def __init__(
        self,
        position_bandwidth: float | None = None,
        token_bandwidth: float | None = None,
        *,
        distances: bool = False,
        num_heads: int | None = None,
        learnable: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()

        def bandwidth(value: float | None, name: str) -> Positive | None:
            if value is None and (learnable or num_heads is not None):
                raise ValueError(f"{name}: must be given to be learnable or one a head")
            if value is None:
                return None
            return Positive(
                value,
                name=name,
                num_heads=num_heads,
                learnable=learnable,
                device=device,
                dtype=dtype,
            )

        self.uses_positions = position_bandwidth != math.inf
        self.position_bandwidth = (
            bandwidth(position_bandwidth, "position_bandwidth") if self.uses_positions else None
        )
        self.token_bandwidth = bandwidth(token_bandwidth, "token_bandwidth")
        self.distances = distances
        self.needs = ("projected_positions",) if self.uses_positions else ()
        self.positional = "absolute" if self.uses_positions else None

    def bandwidth_for(self, bandwidth: Positive | None, q: Tensor) -> Tensor | float:
        """Return the bandwidth in use, given or by default, for queries like q."""
        if bandwidth is None:
            return q.shape[-1] ** 0.25
        return bandwidth().to(torch.promote_types(q.dtype, torch.float32))

    def attend(self, call: Call) -> Tensor:
        q, k, v, mask, is_causal, _ = call
        hy = self.bandwidth_for(self.token_bandwidth, q)
        hp = self.bandwidth_for(self.position_bandwidth, q)
        p_q, p_k = self._positions(call)
        if self.distances:
            hy, hp = (h.to(q.dtype) if isinstance(h, Tensor) else h for h in (hy, hp))
            bandwidth = hy
            if p_q is not None and p_k is not None:
                parts = zip((hy, hp), (q, p_q), strict=True)
                of_features = [h * x.new_ones(1, x.shape[-1]) for h, x in parts]
                bandwidth = torch.cat(of_features, dim=-1)
                q, k = torch.cat([q, p_q], dim=-1), torch.cat([k, p_k], dim=-1)
            return gaussian_attention(q, k, v, bandwidth=bandwidth, mask=mask, is_causal=is_causal)
        is_default = self.token_bandwidth is None and self.position_bandwidth is None
        scale = q.shape[-1] ** -0.5 if is_default else 1.0
        q, k = (q, k) if is_default else _divide(q, k, hy**2)
        if p_q is not None and p_k is not None:
            p_q, p_k = (p_q, p_k) if is_default else _divide(p_q, p_k, hp**2)
            q, k = torch.cat([q, p_q], dim=-1), torch.cat([k, p_k], dim=-1)
        return fused_attention(q, k, v, mask=mask, is_causal=is_causal, scale=scale)

    def logits(self, call: Call) -> Tensor:
        q, (p_q, p_k) = call.q, self._positions(call)
        tokens = self._position_term(q, call.k, self.bandwidth_for(self.token_bandwidth, q))
        if p_q is None or p_k is None:
            return tokens
        return tokens + self._position_term(
            p_q, p_k, self.bandwidth_for(self.position_bandwidth, q)
        )

    def _position_term(self, a: Tensor, b: Tensor, bandwidth: Tensor | float) -> Tensor:
        """Return the logits of one pair of features, by products or by distances."""
        if not self.distances:
            return a @ b.mT / bandwidth**2
        return gaussian_logits(a, b, bandwidth).to(a.dtype)

    def _positions(self, call: Call) -> tuple[Tensor | None, Tensor | None]:
        """Return the projected positions of queries and keys, expanded; None without them."""
        q, k, *_, context = call
        if not self.uses_positions or context is None or context.projected_positions is None:
            return None, None
        name = "context.projected_positions"
        p_q, p_k = context.projected_positions
        return expand_features(of_queries(p_q, q, k), q, name), expand_features(p_k, k, name)

    @torch.no_grad()
    def precompute(self, context: Context) -> Biased:
        """The operator at fixed positions, with its position term stored: for inference.

        It needs no context and half the width of features, but n_queries x n_keys numbers a head.

        Parameters
        ----------
        context : Context
            Holds the projected positions, as the context from `Attention.fill` does.

        Returns
        -------
        Biased
            Equal to this operator at these positions and its present bandwidths.

        Raises
        ------
        ValueError
            If the context has no projected positions.

        Examples
        --------
        >>> import torch
        >>> from twinsolve.unrolled import Bilateral, Context
        >>> q, p = torch.randn(1, 2, 5, 8), torch.randn(2, 5, 8)
        >>> context, operator = Context(projected_positions=(p, p)), Bilateral()
        >>> stored = operator.precompute(context)
        >>> torch.allclose(stored(q, q, q), operator(q, q, q, context=context), atol=1e-6)
        True
        """
        if not self.uses_positions or context.projected_positions is None:
            raise ValueError(
                "context: must hold projected positions, for an operator that uses them"
            )
        p_q, p_k = context.projected_positions
        bias = self._position_term(p_q, p_k, self.bandwidth_for(self.position_bandwidth, p_q))
        tokens_alone = copy.deepcopy(self)
        tokens_alone.uses_positions, tokens_alone.position_bandwidth = False, None
        tokens_alone.needs, tokens_alone.positional = (), None
        return Biased(tokens_alone, bias)

    def extra_repr(self) -> str:
        none = "head_dim ** 0.25"
        shown = [f"distances={self.distances}"]
        if self.position_bandwidth is None:
            shown.append(f"position_bandwidth={none if self.uses_positions else 'inf'}")
        if self.token_bandwidth is None:
            shown.append(f"token_bandwidth={none}")
        return ", ".join(shown)


def _divide(q: Tensor, k: Tensor, by: Tensor | float) -> tuple[Tensor, Tensor]:
    """Return features whose products are those of q and k over `by`, in 16 bits with more digits.

    A quotient of 16 bits would be off by as much as the queries themselves.
    """
    if q.dtype.itemsize >= 4:
        return q / by, k
    return split_features(q.float() / by, q.dtype, n_parts=2), torch.cat([k, k], dim=-1)


@torch.no_grad()
def store_positions(model: nn.Module, *inputs: Any, **arguments: Any) -> nn.Module:
    """A copy of a model for inference whose layers store their position terms.

    Positions do not depend on the inputs, so that in a trained model their part of the logits is
    constant. In each layer `Bilateral.precompute` replaces a `Bilateral` with positions; the layer
    then costs as much as softmax attention. Others stay as they are: operators inside corrections,
    and layers that run more than once or whose positions differ in a batch, as those of windows.

    Parameters
    ----------
    model : nn.Module
        Contains `Attention` layers. A copy runs once in eval mode, to see the positions that enter
        each layer.
    *inputs, **arguments
        The model is called with these. They fix the number of tokens.

    Returns
    -------
    nn.Module
        Its layers take only that number of tokens, and train no bandwidth of positions.

    References
    ----------
    "Revisiting Transformers with Insights from Image Filtering", Table V; EQUATIONS IF-21.

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled import VisionTransformer
    >>> from twinsolve.unrolled.kernel_smoothing import store_positions
    >>> model = VisionTransformer(8, 2, 1, 10, 32, 2, 4, operator="bilateral").eval()
    >>> images = torch.randn(3, 1, 8, 8)
    >>> torch.allclose(store_positions(model, images)(images), model(images), atol=1e-5)
    True
    """
    model = copy.deepcopy(model).eval()
    layers: list[Any] = [
        part
        for part in model.modules()
        if isinstance(part, Attention)
        and isinstance(part.operator, Bilateral)
        and part.operator.uses_positions
    ]
    seen: dict[Operator, list[Context]] = {}

    def keep_context(operator: Operator, _: Any, given: dict[str, Any]) -> None:
        seen.setdefault(operator, []).append(given["context"])

    with ExitStack() as hooks:
        for layer in layers:
            layer.operator = copy.deepcopy(layer.operator)  # layers may share one
            hook = layer.operator.register_forward_pre_hook(keep_context, with_kwargs=True)
            hooks.callback(hook.remove)
        model(*inputs, **arguments)
    for layer in layers:
        contexts = seen.get(layer.operator, [])
        if len(contexts) == 1:
            stored = layer.operator.precompute(contexts[0])
            if stored.bias.ndim == 3 or len(stored.bias) == 1:
                layer.operator = stored
    return model
