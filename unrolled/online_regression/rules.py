"""What operators that learn at test time share: gates from the tokens, masks and directions."""

from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from ..attention import Call, Operator, boolean_mask, padding_mask, query_offset
from .inputs import packed_sequences

Forget = Literal["token", "feature"] | None
_LEAST = 1e-6  # of the squared norm of a row


class Rows(NamedTuple):
    """Queries, keys and values as a rule takes them, and what is known of each token.

    Gates are (..., tokens, width), and `visible`, where some tokens are hidden, (..., tokens, 1);
    gates, keys and values of those are 0.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    gates: dict[str, Tensor]
    visible: Tensor | None = None


class OnlineRule(Operator):
    """Base of the operators that write keys and values into a state, and read it with queries.

    Under a causal mask token t reads the state after token t. Without one every query reads the
    state after the last key. Hidden keys neither write nor forget. A mask of pairs may be
    causal, and hold packed sequences one after another: the first token of each forgets all. Rows
    of hidden tokens may be anything. Other masks are refused, as are all in compiled code, which
    cannot look at them. A subclass implements `run`, and names the gate of each token beside
    forgetting in `own_gate`. Its ``takes_packed`` says whether a `log_forget` of -inf in `run`
    leaves nothing of the tokens before.

    Parameters
    ----------
    forget : {None, "token", "feature"}
        Whether the state forgets: not, by one number for each token, or for each feature of a key.

    Raises
    ------
    ValueError
        If `forget` is none of these.
    """

    own_gate: str | None = None
    takes_packed = True
    positional = "relative"
    pair_masks = False

    def __init__(self, forget: Forget) -> None:
        super().__init__()
        if forget not in (None, "token", "feature"):
            raise ValueError(f"forget: must be None, 'token' or 'feature', got {forget!r}")
        self.forget = forget
        gates: dict[str, Literal["token", "feature"]] = {}
        if self.own_gate is not None:
            gates[self.own_gate] = "token"
        if forget is not None:
            gates["log_forget"] = forget
        self.gates = gates

    def run(self, x: Rows, state: Any = None) -> tuple[Tensor, Any]:
        """Return the outputs and the last state of a causal sequence; None starts from zeros."""
        raise NotImplementedError

    def learn(self, x: Rows) -> Any:
        """Return the state after the last key."""
        return self.run(x._replace(q=x.k))[1]

    def read(self, q: Tensor, state: Any) -> Tensor:
        """Return the outputs of queries that read one state."""
        out: Tensor = q @ state
        return out

    def open_gate(self, name: str, raw: Tensor) -> Tensor:
        """Return a gate from what the tokens give, which is 0 at first."""
        return raw.clamp(max=0)

    def prepare(self, x: Tensor) -> Tensor:
        """Return the queries or keys as the rule takes them, by default `nearly_unit`."""
        return nearly_unit(x)

    def attend(self, call: Call) -> Tensor:
        visible, begins, is_causal = self._read_mask(call)
        x = self._read(call, visible)
        if begins is not None:
            forget = x.gates.get("log_forget", x.k.new_zeros(*x.k.shape[:-1], 1))
            forget = torch.where(begins, -torch.inf, forget)
            x = x._replace(gates={**x.gates, "log_forget": forget})
        if not is_causal:
            return self.read(x.q, self.learn(x)).to(call.v.dtype)
        offset = query_offset(x.q, x.k)
        out, _ = self.run(x._replace(q=F.pad(x.q, (0, 0, offset, 0))))
        return out[..., offset:, :].to(call.v.dtype)

    def resume(self, call: Call, state: Any) -> tuple[Tensor, Any]:
        out, state = self.run(self._read(call), state)
        return out.to(call.v.dtype), state

    def _read_mask(self, call: Call) -> tuple[Tensor | None, Tensor | None, bool]:
        """Return which tokens are visible, which begin a sequence, and whether rows are causal."""
        if call.mask is None:
            return None, None, call.is_causal
        n_keys, name = call.k.shape[-2], type(self).__name__
        if call.q.shape[-2] == call.mask.shape[-2] == n_keys > 1:
            pairs = boolean_mask(call.mask, n_keys, name)
            packed = packed_sequences(pairs.tril() if call.is_causal else pairs)
            if packed is not None and (self.takes_packed or packed[1] is None):
                return *packed, True
        return padding_mask(call.mask, n_keys, name).mT, None, call.is_causal

    def _read(self, call: Call, visible: Tensor | None = None) -> Rows:
        """Return the sequence of a call, in float32 at least."""
        wide = torch.promote_types(call.v.dtype, torch.float32)
        q, k, v = (x.to(wide) for x in (call.q, call.k, call.v))
        if visible is not None:  # rows of hidden tokens may see hidden keys, which are then given
            k, v = (torch.where(visible, x, 0) for x in (k, v))
        q, k = self.prepare(q), self.prepare(k)
        return Rows(q, k, v, self._open_gates(call, k, visible), visible)

    def coefficients(self, call: Call) -> Tensor:
        values = torch.eye(call.k.shape[-2], dtype=call.q.dtype, device=call.q.device)
        return self.attend(call._replace(v=values.expand(*call.k.shape[:-1], -1)))

    def _open_gates(self, call: Call, k: Tensor, visible: Tensor | None) -> dict[str, Tensor]:
        """Return the gates of all keys; those that are hidden do nothing."""
        widths = self.gate_widths(k.shape[-1])
        given = None if call.context is None else call.context.gates
        if given is None:
            given = k.new_zeros(()).expand(*k.shape[:-1], sum(widths.values()))
        parts = given.to(k.dtype).expand(*k.shape[:-1], -1).split(list(widths.values()), dim=-1)
        gates = {name: self.open_gate(name, x) for name, x in zip(widths, parts, strict=True)}
        if visible is None:
            return gates
        return {name: torch.where(visible, x, 0) for name, x in gates.items()}

    def extra_repr(self) -> str:
        return f"forget={self.forget!r}"


def nearly_unit(x: Tensor) -> Tensor:
    """Divide rows by ``sqrt(|x|^2 + 1e-6)``, whose gradient at zero is finite."""
    return x * (x.square().sum(dim=-1, keepdim=True) + _LEAST).rsqrt()
