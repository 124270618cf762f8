"""naive_recurrent_comba: closed gates.

Where a forget gate is exactly 0, output and states are still those of the recurrence. Error: 2.5e-01.
"""


import torch
import torch.nn.functional as F
from torch import nn


def list_arrays(network, output, state):
    """The output, and the states as (batch, heads, keys, values), in float64."""
    states = () if state is None else state if isinstance(state, tuple) else (state,)
    return [output.double(), *((x.mT if network.transposed else x).double() for x in states)]


def recur(network, inputs, state):
    """The output and the last states of the literal recurrence, in float64."""
    x = {name: value.double() for name, value in network.quantities(inputs).items()}
    x['q'] = network.scale * x['q']
    names, states = ([*network.states.values()], list_arrays(network, inputs, state)[1:])
    x.update({f'initial_{name}': value for name, value in zip(names, states, strict=False)})
    found = network.recurrence(x)
    return [found['out'].transpose(1, 2).flatten(2), *(found[f'last_{name}'] for name in names)]


def join(arrays):
    """Arrays as rows of one tensor (batch, rows, features)."""
    rows = [x if x.ndim == 3 else x.transpose(1, 2).flatten(2) for x in arrays]
    width = max((x.shape[-1] for x in rows))
    return torch.cat([F.pad(x, (0, width - x.shape[-1])) for x in rows], 1)


def follow(model, inputs):
    """Outputs and last states of 67 tokens and of those after them, and what the recurrence has."""
    network = model.network
    pairs = []
    state = None
    for part in (inputs.repeat(1, 67 // inputs.shape[1] + 1, 1)[:, :67], inputs):
        expected = recur(network, part, state)
        output, state = model(part, cache=state)
        arrays = zip(list_arrays(network, output, state), expected, strict=True)
        pairs += [(x / y.abs().max(), y / y.abs().max()) for x, y in arrays]
    return (join([x for x, _ in pairs]), join([y for _, y in pairs]))


def closed_gates(model, inputs):
    """Where a forget gate is exactly 0, output and states are still those of the recurrence."""
    network = model.network
    closed = inputs.clone()
    closed[:, inputs.shape[1] // 2, network.parts['forget']] = -torch.inf
    return follow(model, closed)


class Model:
    def __init__(self, network):
        self.network = network

    def of(self, network):
        return Model(network)

    def __call__(self, inputs, *, cache=None, mask=None, positions=None, grad=False):
        given = {}
        if cache is not None:
            given["state"] = cache
        with torch.set_grad_enabled(grad):
            output = self.network(inputs, **given)
        return output if isinstance(output, tuple) else (output, None)


from fla.ops.comba.naive import naive_recurrent_comba


class Adapter(nn.Module):
    """A function of queries, keys, values and gates, on features that hold them side by side."""
    wide = ('q', 'k', 'v', 'p', 'probe', 'metric')
    gates = ('beta', 'delta', 'forget', 'metric', 'step', 'momentum', 'decay')

    def __init__(self, function, arguments, *, states='', recurrence=None, scale=1.0, transposed=False, heads_first=False, per_key=False, heads=4, dim=8, **options):
        super().__init__()
        self.function, self.recurrence, self.options = (function, recurrence, options)
        self.__name__ = getattr(function, '__name__', 'Adapter')
        self.arguments, self.states = (self._pairs(arguments), self._pairs(states))
        self.scale, self.transposed, self.heads_first = (scale, transposed, heads_first)
        self.heads, self.dim, self.parts = (heads, dim, {})
        self.width = 0
        words = ' '.join(self.arguments.values()).replace('-', '').split()
        known = dict.fromkeys(self.wide + self.gates)
        for name in dict.fromkeys((x for x in words if x not in ('log', 'lam'))):
            if name not in known:
                names = ', '.join(known)
                raise ValueError(f'arguments: must get {names} or lam, got {name!r}')
            each = dim if name in self.wide or (per_key and name == 'forget') else 1
            self.parts[name] = slice(self.width, self.width + heads * each)
            self.width += heads * each
        self.register_buffer('lam', torch.linspace(0.5, 2.0, dim).repeat(heads, 1))

    @staticmethod
    def _pairs(text):
        words = (part.partition('=') for part in text.split(',') if part.strip())
        return {name.strip(): (made or name).strip() for name, _, made in words}

    def quantities(self, x):
        """What features hold: (batch, heads, tokens, width), (batch, heads, tokens); the penalties."""
        found = {'lam': self.lam}
        for name, part in self.parts.items():
            value = x[..., part].unflatten(-1, (self.heads, -1)).transpose(1, 2)
            if name in ('k', 'p'):
                value = value / value.norm(dim=-1, keepdim=True)
            if name in self.gates:
                value = value.sigmoid()
            found[name] = value if value.shape[-1] > 1 else value[..., 0]
        return found

    def _make(self, words, x):
        """The product of the named quantities, or the logarithm of one."""
        first, *others = words.removeprefix('-').removeprefix('log ').split()
        made = x[first].log() if 'log ' in words else x[first]
        for name in others:
            made = (made if made.ndim == x[name].ndim else made[..., None]) * x[name]
        made = -made if words[0] == '-' else made
        return made if self.heads_first or words == 'lam' else made.transpose(1, 2)

    def forward(self, x, state=None):
        """Call the function."""
        made = self.quantities(x)
        given = {name: self._make(words, made) for name, words in self.arguments.items()}
        if state is not None:
            given |= zip(self.states, state if isinstance(state, tuple) else (state,), strict=True)
        options = {n: y.to(x.device) if torch.is_tensor(y) else y for n, y in self.options.items()}
        found = self.function(**given, **options)
        output, *last = found if isinstance(found, tuple) else (found,)
        output = (output.transpose(1, 2) if self.heads_first else output).flatten(2)
        if not self.states:
            return output
        return (output, last[0] if len(self.states) == 1 else tuple(last[:len(self.states)]))


def _start(x, state, columns='v'):
    """Return the state before the first token, of the width of keys and of `columns`."""
    zeros = torch.zeros_like(x['k'][..., :1, :].mT @ x[columns][..., :1, :])
    return x.get(f'initial_{state}', zeros)


def _token(x, t, *names):
    """Return rows t, of shape (..., 1, width); numbers of a token have width 1."""
    wide = (x[name] if x[name].ndim == x['k'].ndim else x[name][..., None] for name in names)
    return [y[..., t:t + 1, :] for y in wide]


def _join(rows):
    return torch.cat(rows, dim=-2)


def step_comba(x):
    """Comba: the error is that of p, before the state forgets; p = a k is TR-3."""
    S, out = (_start(x, 'S'), [])
    for t in range(x['k'].shape[-2]):
        q, k, v, p, beta, a = _token(x, t, 'q', 'k', 'v', 'p', 'beta', 'forget')
        S = a.mT * S + beta * k.mT @ (v - p @ S)
        out.append(q @ S)
    return {'out': _join(out), 'last_S': S}


torch.manual_seed(0)
network = Adapter(naive_recurrent_comba, 'q, k, v, beta, g=log forget, p', recurrence=step_comba, states='initial_state=S', output_final_state=True, scale=0.3535533905932738)
inputs = torch.randn(2, 21, 136, generator=torch.Generator().manual_seed(1))


found, expected = closed_gates(Model(network), inputs)
if found.shape != expected.shape:
    print("shapes", tuple(found.shape), "and", tuple(expected.shape))
elif expected.is_floating_point():
    print("relative error", ((found - expected).abs().max() / expected.abs().max()).item())
else:
    print("share of entries that differ", (found != expected).double().mean().item())
