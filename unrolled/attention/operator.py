"""The protocol of operators on (q, k, v), and of corrections that wrap them."""

from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple, Self

import torch
from torch import Tensor, nn

from .call import Call
from .context import Context
from .inputs import (
    check_context,
    check_gates,
    check_mask,
    check_mask_shape,
    check_tokens,
    common_batch,
    of_common_batch,
)
from .masks import drop_hidden, masked_softmax, query_offset, read_mask
from .parameters import Positive
from .precision import of_one_dtype, without_autocast


class Laws(NamedTuple):
    """The laws of an operator, as it declares them; see `Operator`."""

    row_stochastic: bool
    nonnegative: bool
    linear_in_values: bool
    square_only: bool
    causal: bool
    positional: Literal["relative", "absolute"] | None
    pair_masks: bool
    additive_masks: bool
    data_dependent: bool
    needs: tuple[str, ...]
    reads: tuple[str, ...]


class Operator(nn.Module):
    """Base of the operators on (q, k, v): what a layer does between its projections.

    A subclass implements `attend` and `coefficients`, which take a `Call`, and declares its laws,
    which tests and corrections read. `forward` and `matrix` refuse what the laws exclude, and make
    the call.

    Attributes
    ----------
    row_stochastic : bool
        Rows of the matrix sum to one (where at least one key is visible).
    nonnegative : bool
        Entries of the matrix are nonnegative.
    linear_in_values : bool
        The output is ``matrix(q, k) @ v``.
    of_first_values : bool
        The output is ``matrix(q, k) @ context.first_values`` instead, whatever v is; no correction
        wraps it.
    square_only : bool
        Needs as many queries as keys.
    causal : bool
        ``is_causal=True`` is supported; otherwise it is refused.
    positional : {None, "relative", "absolute"}
        What a row depends on of the positions of tokens: nothing, their distances from its own
        token, or their places. Query i then stands at token ``n_keys - n_queries + i``.
    pair_masks : bool
        Masks may differ from query to query; otherwise they may only hide whole keys.
    additive_masks : bool
        A finite bias in the mask adds to the logits; otherwise it is refused.
    data_dependent : bool
        How much is computed depends on the data: export and full-graph compilation are refused.
    max_length : int, optional
        The largest number of keys; any number if None, the default.
    cheap_matrix : bool
        Up to a few hundred tokens, building the matrix costs about as much as `forward`.
    needs : tuple of str
        Fields of `Context` that are read.
    row_needs : tuple of str
        Those of `needs` of which a row reads nothing but its own token's.
    outputs_kept : int, optional
        How many outputs of each earlier token a causal row reads, beside keys and values: 0 unless
        `square_only`. None says that all rows must be computed at once.
    reads : tuple of {"q", "k", "v"}
        Those of them that the output depends on; a shell projects no others.
    gates : mapping of str to {"token", "feature"}
        Numbers that the tokens give beside q, k and v, one for each token or one for each feature
        of its key; the shell projects to them, from weights of zero.
    query_gates : mapping of str to {"token", "feature"}
        The same for numbers that the tokens of the queries give.
    positions_apart : bool
        The operator takes positions as separate features, so that models do not add them to its
        tokens. By default True if `needs` names positions.
    made_with : tuple of (tuple, dict)
        Arguments of the constructor, from which `save_huggingface` stores the operator.
    """

    made_with: tuple[tuple[Any, ...], dict[str, Any]]

    row_stochastic: bool = False
    nonnegative: bool = False
    linear_in_values: bool = True
    of_first_values: bool = False
    square_only: bool = False
    causal: bool = True
    positional: Literal["relative", "absolute"] | None = None
    pair_masks: bool = True
    additive_masks: bool = False
    data_dependent: bool = False
    max_length: int | None = None
    cheap_matrix: bool = False
    needs: tuple[str, ...] = ()
    row_needs: tuple[str, ...] = ()
    reads: tuple[str, ...] = ("q", "k", "v")
    gates: Mapping[str, Literal["token", "feature"]] = {}
    query_gates: Mapping[str, Literal["token", "feature"]] = {}

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        operator = super().__new__(cls)
        operator.made_with = args, kwargs
        return operator

    @property
    def laws(self) -> Laws:
        """All declared laws, as one object."""
        return Laws(*(getattr(self, name) for name in Laws._fields))

    @property
    def positions_apart(self) -> bool:
        return bool({"positions", "projected_positions"}.intersection(self.needs))

    @property
    def outputs_kept(self) -> int | None:
        return None if self.square_only else 0

    def gate_widths(self, head_dim: int) -> dict[str, int]:
        """The number of features of each gate, for keys of this width."""
        return _widths(self.gates, head_dim)

    def query_gate_widths(self, head_dim: int) -> dict[str, int]:
        """The number of features of each of the queries' gates, for queries of this width."""
        return _widths(self.query_gates, head_dim)

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        mask: Tensor | None = None,
        is_causal: bool = False,
        context: Context | None = None,
        kept: list[Tensor] | None = None,
    ) -> Tensor:
        """Attend with every query.

        Hidden keys are as if absent. A key that no query sees (padding) may hold anything, and so
        may its value: NaN and infinity reach no output and no gradient either. A key that some
        queries see must be finite, and its value too (0 times NaN is NaN, as in
        ``scaled_dot_product_attention``); however large, it moves the rows that do not see it no
        further than by rounding. Masks hide keys: every query must be finite.

        Autocast changes nothing inside: what is computed in float32 or float64 stays so. The dtype
        is that of the inputs, which projections around the operator may have lowered. The leading
        axes of q, k, v and mask are broadcast against each other.

        Parameters
        ----------
        q : Tensor of shape (..., n_queries, d)
        k : Tensor of shape (..., n_keys, d)
        v : Tensor of shape (..., n_keys, e)
            All of one dtype and device; leading axes broadcast.
        mask : Tensor broadcastable to (..., n_queries, n_keys), optional
            As in ``scaled_dot_product_attention``, boolean or of any floating dtype, which need not
            be that of q; the lowest number of its dtype hides as -inf does, and a row without
            visible keys gives zeros.
        is_causal : bool, default=False
            Query i sees the keys 0 to ``n_keys - n_queries + i``: the queries are the last tokens,
            as in decoding with a cache. With a mask, both apply.
        context : Context, optional
            Holds what `needs` names.
        kept : list of Tensor, optional
            For causal rows that are computed by turns: the queries are the last tokens, and the
            list holds `outputs_kept` outputs of the tokens before, each of shape (..., n_keys -
            n_queries, e). Empty before the first call. Those of the queries are added in place.
            What `row_needs` names has as many tokens as the queries.

        Returns
        -------
        Tensor of shape (..., n_queries, e)

        Raises
        ------
        ValueError
            If shapes, dtypes or devices do not fit, or the declared laws exclude the inputs.
        """
        self.check_inputs(q, k, v, mask=mask, is_causal=is_causal, context=context, kept=kept)
        q, k, v = of_common_batch(mask, *of_one_dtype(q, k, v))
        before = () if kept is None else self._read_kept(kept, q, v)
        with without_autocast(q):
            if 0 in (*q.shape, *k.shape, *v.shape):
                out = q @ k.mT @ v
                rows = (out,) * len(before)
            else:
                mask = None if mask is None else read_mask(mask, q)
                k, v = self.present(k, mask), self.present(v, mask)
                call = Call(q, k, v, mask, is_causal, context)
                if kept is None:
                    return self.attend(call)
                out, rows = self.attend_last(call, before)
        if kept is not None:
            kept[:] = [torch.cat(pair, dim=-2) for pair in zip(before, rows, strict=True)]
        return out

    def _read_kept(self, kept: list[Tensor], q: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        """Return what earlier calls kept; a ValueError says if it is not of the tokens before."""
        name, count = type(self).__name__, self.outputs_kept
        if count is None:
            raise ValueError(f"{name}: needs as many queries as keys, all in one call")
        shape = (*v.shape[:-2], v.shape[-2] - q.shape[-2], v.shape[-1])
        if not kept and shape[-2] == 0:
            return (v[..., :0, :],) * count
        if [(tuple(x.shape), x.dtype, x.device) for x in kept] != [
            (shape, v.dtype, v.device)
        ] * count:
            raise ValueError(
                f"kept: {name} needs {count} tensors of shape {shape} and {v.dtype} on {v.device}, "
                f"got {', '.join(f'{tuple(x.shape)} and {x.dtype}' for x in kept) or 'none'}"
            )
        return tuple(kept)

    def decode(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        state: Any = None,
        *,
        context: Context | None = None,
    ) -> tuple[Tensor, Any]:
        """Attend causally with the tokens that follow those of a state.

        The outputs of all tokens, however they are split over calls, are those of `forward` with
        ``is_causal=True``. The state holds the keys and values so far or, for an operator that
        learns at test time, what it learned from them, which does not grow.

        Parameters
        ----------
        q, k : Tensor of shape (..., tokens, d)
        v : Tensor of shape (..., tokens, e)
        state : optional
            What the call before returned; None for the first tokens.
        context : Context, optional
            Holds the gates of these tokens.

        Returns
        -------
        out : Tensor of shape (..., tokens, e)
        state
            For the next call.

        Raises
        ------
        ValueError
            If the operator cannot be causal, must compute all rows at once or reads more of a
            context than gates and `row_needs`, or the tokens do not fit each other or the state.
        """
        self.check_decodes()
        self.check_inputs(q, k, v, mask=None, is_causal=True, context=context)
        if q.shape[-2] != k.shape[-2]:
            raise ValueError(f"q: must have as many tokens as k, {k.shape[-2]}, got {q.shape[-2]}")
        q, k, v = of_common_batch(None, *of_one_dtype(q, k, v))
        with without_autocast(q):
            return self.resume(Call(q, k, v, is_causal=True, context=context), state)

    def check_decodes(self) -> None:
        """Raise a ValueError if the operator cannot go on from a state."""
        name, kind = type(self).__name__, "decoding from a state"
        if not self.causal:
            raise ValueError(f"{name}: does not support is_causal=True, which {kind} needs")
        if self.outputs_kept is None:
            raise ValueError(f"{name}: needs as many queries as keys, which {kind} does not give")
        if lost := [need for need in self.needs if need not in self.row_needs]:
            raise ValueError(f"{name}: needs {', '.join(lost)}, which {kind} does not keep")

    def resume(self, call: Call, state: Any) -> tuple[Tensor, Any]:
        """Compute `decode` for checked inputs, by default with all keys and values so far."""
        context = call.context or Context()
        gates = () if context.gates is None else (context.gates,)
        nothing = (call.v[..., :0, :],) * (self.outputs_kept or 0)
        tokens = k, v, *rest = _append(state, call.k, call.v, *gates, *nothing)
        if gates:
            context = context._replace(gates=rest[0])
        kept = list(rest[len(gates) :]) if self.square_only else None
        out = call._replace(k=k, v=v, context=context).output_of(self, kept)
        return out, (*tokens[: 2 + len(gates)], *(kept or ()))

    def matrix(
        self,
        q: Tensor,
        k: Tensor,
        *,
        mask: Tensor | None = None,
        is_causal: bool = False,
        context: Context | None = None,
    ) -> Tensor:
        """Return the explicit matrix of shape (..., n_queries, n_keys), in the dtype of q."""
        self.check_inputs(q, k, mask=mask, is_causal=is_causal, context=context)
        q, k = of_common_batch(mask, *of_one_dtype(q, k))
        with without_autocast(q):
            if 0 in (*q.shape, *k.shape):
                return q @ k.mT
            mask = None if mask is None else read_mask(mask, q)
            k = self.present(k, mask)
            A = self.coefficients(Call(q, k, k[..., :0], mask, is_causal, context))
            return A.to(q.dtype)

    def present(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Return the keys or values for `attend`, with zeros for those that no query sees."""
        return drop_hidden(x, mask)

    def attend(self, call: Call) -> Tensor:
        """Compute the output of `forward` for checked inputs, with at least one query and key."""
        raise NotImplementedError

    def attend_last(
        self, call: Call, kept: tuple[Tensor, ...]
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Compute the output of the last tokens, and what is to be `kept` of them."""
        return self.attend(call), ()

    def coefficients(self, call: Call) -> Tensor:
        """Compute the `matrix`, in any dtype, for checked inputs as in `attend`."""
        raise NotImplementedError

    def reset_parameters(self) -> None:
        """Return all parameters to their values at construction."""
        for part in self._parts():
            if isinstance(part, Operator | Positive):
                part.reset_parameters()

    def _parts(self) -> Iterator[nn.Module]:
        """Children of this module, and the modules in its lists."""
        for child in self.children():
            yield from child if isinstance(child, nn.ModuleList) else (child,)

    def check_inputs(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor | None = None,
        *,
        mask: Tensor | None,
        is_causal: bool,
        context: Context | None = None,
        kept: list[Tensor] | None = None,
    ) -> None:
        """Raise a ValueError if shapes do not fit, or the declared laws exclude the inputs."""
        name = type(self).__name__
        tensors = (q, k) if v is None else (q, k, v)
        check_tokens(**dict(zip("qkv", tensors, strict=False)))
        if self.square_only and kept is None and q.shape[-2] != k.shape[-2]:
            raise ValueError(
                f"{name}: needs as many queries as keys, got {q.shape[-2]} and {k.shape[-2]}"
            )
        if mask is not None:
            check_mask(mask, "mask", q)
            check_mask_shape(mask, *tensors)
        if is_causal and not self.causal:
            raise ValueError(f"{name}: does not support is_causal=True")
        if (is_causal or kept is not None) and k.shape[-2] > 0:
            query_offset(q, k)
        of_rows = () if kept is None else self.row_needs
        check_context(context, tuple(n for n in self.needs if n not in of_rows), k, name)
        check_context(context, of_rows, q, name)
        batch = common_batch(mask, *tensors)
        check_gates(context, "gates", self.gate_widths(k.shape[-1]), k, batch, name)
        check_gates(context, "query_gates", self.query_gate_widths(q.shape[-1]), q, batch, name)
        heads = (1, *batch)[-1]
        for part in self.modules():  # those of a base too, which may never see these heads itself
            if isinstance(part, Positive) and part.num_heads not in (None, heads):
                raise ValueError(f"num_heads: {name} has {part.num_heads}, but q has {heads}")


def _widths(gates: Mapping[str, Literal["token", "feature"]], head_dim: int) -> dict[str, int]:
    return {name: head_dim if of == "feature" else 1 for name, of in gates.items()}


def _append(state: Any, *tokens: Tensor) -> tuple[Tensor, ...]:
    """Return what a state keeps of the tokens before, followed by these."""
    if state is None:
        return tokens
    if not isinstance(state, tuple) or len(state) != len(tokens):
        raise ValueError(f"state: must be the {len(tokens)} tensors that the call before returned")
    for before, x in zip(state, tokens, strict=True):
        if not isinstance(before, Tensor):
            raise ValueError(f"state: must hold tensors, got {type(before).__name__}")
        shape = (*x.shape[:-2], before.shape[-2], x.shape[-1])
        if before.shape != shape or before.dtype != x.dtype or before.device != x.device:
            raise ValueError(
                f"state: must fit tokens of shape {tuple(x.shape)} and {x.dtype} on {x.device}, "
                f"got {tuple(before.shape)} and {before.dtype} on {before.device}"
            )
    return tuple(torch.cat(pair, dim=-2) for pair in zip(state, tokens, strict=True))


class SoftmaxSmoother(Operator):
    """Base of the operators whose matrix is a softmax of logits, taken in float32 at least.

    A subclass implements `logits` and, for speed, `attend` in a form that does not build them. By
    default `attend` multiplies the matrix with the values.
    """

    row_stochastic = True
    nonnegative = True
    additive_masks = True

    def logits(self, call: Call) -> Tensor:
        """Logits of shape (..., n_queries, n_keys), before any mask."""
        raise NotImplementedError

    def attend(self, call: Call) -> Tensor:
        A = self.coefficients(call)
        return (A @ call.v.to(A.dtype)).to(call.v.dtype)

    def coefficients(self, call: Call) -> Tensor:
        wide = torch.promote_types(call.q.dtype, torch.float32)
        logits = self.logits(call._replace(q=call.q.to(wide), k=call.k.to(wide)))
        return masked_softmax(logits, call.pairs()).to(call.q.dtype)


class Correction(Operator):
    """Base of the operators that wrap another one, `base`, and by default share its laws.

    Parameters
    ----------
    base : Operator

    Raises
    ------
    ValueError
        If `base` is no `Operator`, or acts on the first values alone.
    """

    def __init__(self, base: Operator) -> None:
        super().__init__()
        if not isinstance(base, Operator):
            raise ValueError(f"base: must be an Operator, such as Gaussian(), got {base!r}")
        if base.of_first_values:
            raise ValueError(
                "base: must act on the values that a correction hands it, got an operator that "
                f"acts on the first values alone, {base!r}"
            )
        self.base = base
        vars(self).update(base.laws._asdict())
        self.gates, self.query_gates = base.gates, base.query_gates
        self.max_length = base.max_length

    def present(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Return all keys or values: a row may read its own, and the base drops hidden ones."""
        return x

    @property
    def positions_apart(self) -> bool:
        return self.base.positions_apart
