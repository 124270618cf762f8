"""Functions of queries, keys, values and gates as networks: how one is called is data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Adapter(nn.Module):
    """A function of queries, keys, values and gates, on features that hold them side by side.

    Parameters
    ----------
    function : callable
        It returns its output, or a tuple of the output and its last states.
    arguments : str
        Its arguments, and what each gets where that has another name, such as
        ``"q, k, v, beta, g=log forget"``. There are ``q``, ``k``, ``v``, ``p``, ``probe``; the
        gates ``beta``, ``delta``, ``forget``, ``metric``, ``step``, ``momentum``, ``decay``; and
        ``lam``, the penalties of a ridge. ``k`` and ``p`` have norm 1, gates lie in (0, 1). ``log``
        takes a logarithm, several names are multiplied, and a minus sign changes the sign. ``mask``
        is true where a key is seen, of shape (batch, 1, 1, tokens), and left out where there is
        none: ``"query=q, key=k, value=v, attn_mask=mask"``.
    states : str, default=""
        The arguments of the states before the first token, and the names that the recurrence has
        for them, such as ``"initial_state=S"``. The function must return the last ones in this
        order; one argument may take a tuple. By default it keeps no state, and whatever it returns
        beside its output is left out.
    recurrence : callable, optional
        One of `twinsolve.twins.audit.recurrences`, or a function like them: what the law
        "equation" holds the output and the last states to.
    scale : float, default=1.0
        What the function multiplies queries by of its own accord.
    transposed : bool, default=False
        Whether states have shape (batch, heads, values, keys), not (batch, heads, keys, values).
    heads_first : bool, default=False
        Whether tensors have shape (batch, heads, tokens, width), not (batch, tokens, heads, width).
    per_key : bool, default=False
        Whether there is a forget gate for each feature of a key, not one for a token.
    heads, dim : int, default=4, 8
        Number of heads, and width of queries, keys and values.
    **options : Any
        Further arguments of the function.

    Raises
    ------
    ValueError
        If `arguments` name what there is not.

    Examples
    --------
    >>> import torch
    >>> from twinsolve import audit
    >>> from twinsolve.twins.audit import Adapter
    >>> from twinsolve.twins.audit.recurrences import sum_outer_products
    >>> def running_sum(q, k, v):
    ...     return (q @ k.mT).tril(-1) @ v  # leaves out the token itself
    >>> adapter = Adapter(running_sum, "q, k, v", recurrence=sum_outer_products, heads_first=True)
    >>> report = audit(adapter, torch.randn(2, 21, adapter.width), laws=("equation",))
    >>> report.findings[0].verdict
    'broken'
    """

    wide = ("q", "k", "v", "p", "probe", "metric")
    as_is = ("lam", "mask")
    gates = ("beta", "delta", "forget", "metric", "step", "momentum", "decay")

    def __init__(
        self,
        function: Callable[..., Any],
        arguments: str,
        *,
        states: str = "",
        recurrence: Callable[[dict[str, Tensor]], dict[str, Tensor]] | None = None,
        scale: float = 1.0,
        transposed: bool = False,
        heads_first: bool = False,
        per_key: bool = False,
        heads: int = 4,
        dim: int = 8,
        **options: Any,
    ) -> None:
        super().__init__()
        self.function, self.recurrence, self.options = function, recurrence, options
        self.__name__ = getattr(function, "__name__", "Adapter")
        self.arguments, self.states = self._pairs(arguments), self._pairs(states)
        self.scale, self.transposed, self.heads_first = scale, transposed, heads_first
        self.heads, self.dim, self.parts = heads, dim, {}
        self.width = 0
        words = " ".join(self.arguments.values()).replace("-", "").split()
        allowed = dict.fromkeys(self.wide + self.gates)
        for name in dict.fromkeys(x for x in words if x not in ("log", "lam", "mask")):
            if name not in allowed:
                names = ", ".join(allowed)
                raise ValueError(f"arguments: must get {names}, lam or mask, got {name!r}")
            width = dim if name in self.wide or (per_key and name == "forget") else 1
            self.parts[name] = slice(self.width, self.width + heads * width)
            self.width += heads * width
        self.lam: Tensor
        self.register_buffer("lam", torch.linspace(0.5, 2.0, dim).repeat(heads, 1))

    @staticmethod
    def _pairs(text: str) -> dict[str, str]:
        """Parse "a=b, c" to {"a": "b", "c": "c"}."""
        parts = (part.partition("=") for part in text.split(",") if part.strip())
        return {name.strip(): (value or name).strip() for name, _, value in parts}

    def quantities(self, x: Tensor) -> dict[str, Tensor]:
        """Split features into (batch, heads, tokens, width) or (batch, heads, tokens), by name.

        Parameters
        ----------
        x : Tensor of shape (batch, tokens, width)
        """
        quantities = {"lam": self.lam}
        for name, part in self.parts.items():
            value = x[..., part].unflatten(-1, (self.heads, -1)).transpose(1, 2)
            if name in ("k", "p"):
                value = F.normalize(value, dim=-1)  # of padding with zeros, zeros
            if name in self.gates:
                value = value.sigmoid()
            quantities[name] = value if value.shape[-1] > 1 else value[..., 0]
        return quantities

    def _make(self, expression: str, x: dict[str, Tensor]) -> Tensor:
        """Evaluate an expression of `arguments`: a name, or "-", "log" or a product of names."""
        first, *factors = expression.removeprefix("-").removeprefix("log ").split()
        product = x[first].log() if "log " in expression else x[first]
        for name in factors:
            product = (product if product.ndim == x[name].ndim else product[..., None]) * x[name]
        product = -product if expression[0] == "-" else product
        return product if self.heads_first or expression in self.as_is else product.transpose(1, 2)

    def forward(self, x: Tensor, state: Any = None, mask: Tensor | None = None) -> Any:
        """Call the function.

        Parameters
        ----------
        x : Tensor of shape (batch, tokens, width)
        state : Tensor or tuple of Tensor, optional
            The last states of earlier tokens.
        mask : Tensor of shape (batch, tokens), optional
            Not zero where a token is seen.

        Returns
        -------
        Tensor of shape (batch, tokens, heads * dim), or a pair of it and the last states
        """
        quantities = self.quantities(x)
        if mask is not None:
            quantities["mask"] = (mask != 0)[:, None, None, :]
        arguments = {
            name: self._make(words, quantities)
            for name, words in self.arguments.items()
            if words != "mask" or mask is not None
        }
        if state is not None:
            arguments |= zip(self.states, (state,) if len(self.states) == 1 else state, strict=True)
        options = {n: y.to(x.device) if torch.is_tensor(y) else y for n, y in self.options.items()}
        returned = self.function(**arguments, **options)
        output, *last = returned if isinstance(returned, tuple) else (returned,)
        output = (output.transpose(1, 2) if self.heads_first else output).flatten(2)
        if not self.states:
            return output
        return output, last[0] if len(self.states) == 1 else tuple(last[: len(self.states)])
