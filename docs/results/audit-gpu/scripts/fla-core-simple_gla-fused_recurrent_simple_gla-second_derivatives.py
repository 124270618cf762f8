"""fused_recurrent_simple_gla: second derivatives.

The derivative of the gradient agrees with differences of the gradient, or is refused. Error: 9.0e-01.
"""


import copy
import importlib
import os
import sys

import torch
import torch.nn.functional as F
from torch import nn


def cast(inputs, dtype):
    """Inputs in another dtype, but for ids."""
    return inputs.to(dtype) if inputs.is_floating_point() else inputs


def convert(model, dtype):
    """The model of a copy of the network in another dtype."""
    other = model.of(copy.deepcopy(model.network).to(dtype))
    return other if model.source is None else other.reading(cast(model.source, dtype), None)


def variables(network, inputs):
    """What a network has gradients by: its weights, and inputs that are no ids."""
    weights = [p for p in network.parameters() if p.requires_grad]
    if not inputs.is_floating_point():
        return (weights, inputs)
    inputs = inputs.clone().requires_grad_()
    return ([*weights, inputs], inputs)


def has_gradient(model, inputs, dtype):
    """Whether the gradient in this dtype is finite."""
    exact = convert(model, dtype)
    weights, inputs = variables(exact.network, cast(inputs, dtype))
    output = exact(inputs, grad=True)[0]
    slopes = torch.autograd.grad(output.sum(), weights, allow_unused=True)
    return all((bool(s.isfinite().all()) for s in slopes if s is not None))


class NotApplicable(Exception):
    """Raised by a law that a network turns out not to promise."""


def run_in_float64(model, inputs):
    """The model in float64, unless it has a gradient in float32 alone."""
    exact, single = (torch.float64, torch.float32)
    if not has_gradient(model, inputs, exact) and has_gradient(model, inputs, single):
        raise NotApplicable('its gradient is finite in float32 and not in float64')
    return convert(model, exact)


def differ(evaluate, weights, slopes):
    """Derivatives along three random directions: of the slopes, and the nearest of differences."""
    draw, pairs, settled = (torch.Generator(weights[0].device).manual_seed(1), [], True)
    for _ in range(3):
        along = [torch.randn(p.shape, generator=draw).double() for p in weights]
        along = [direction / direction.norm() for direction in along]
        products = [(a * s).sum() for a, s in zip(along, slopes, strict=True) if s is not None]
        found, differences = (torch.stack(products).sum(), [])
        for size in (0.001, 0.0001, 1e-05, 1e-06):
            values = []
            for steps in (1, -2, 1):
                with torch.no_grad():
                    for p, direction in zip(weights, along, strict=True):
                        p.add_(direction, alpha=steps * size)
                values.append(evaluate().detach())
            differences.append((values[0] - values[1]) / (2 * size))
        nearest = [abs(slope.item() - found.item()) for slope in differences]
        pairs.append((found, differences[nearest.index(min(nearest))]))
        sizes = torch.stack(differences)
        settled &= bool((sizes.diff().abs() <= 0.1 * sizes[1:].abs()).any())
    found, expected = (torch.stack([x for x, _ in pairs]), torch.stack([y for _, y in pairs]))
    if max(found.abs().max(), expected.abs().max()) <= 1e-09 * values[-1].abs():
        raise NotApplicable('the output does not move')
    if not settled and (found - expected).abs().max() > 0.03 * expected.abs().max():
        raise NotApplicable('differences of no size settle')
    return (found, expected)


def second_derivatives(model, inputs):
    """The derivative of the gradient agrees with differences of the gradient, or is refused."""
    exact = run_in_float64(model, inputs)
    weights, inputs = variables(exact.network, cast(inputs, torch.float64))
    draw = torch.Generator(inputs.device).manual_seed(0)
    upstream = torch.randn(exact(inputs)[0].shape, generator=draw).double()
    along = [torch.randn(p.shape, generator=draw).double() for p in weights]

    def slope(grad=False):
        loss = (exact(inputs, grad=True)[0].square() * upstream).sum()
        slopes = torch.autograd.grad(loss, weights, allow_unused=True, create_graph=grad)
        products = [(s * a).sum() for s, a in zip(slopes, along, strict=True) if s is not None]
        return torch.stack(products).sum()
    bends = torch.autograd.grad(slope(grad=True), weights, allow_unused=True)
    return differ(slope, weights, bends)


class Model:
    def __init__(self, network):
        self.network = network

    def of(self, network):
        return Model(network)

    source, source_of = None, lambda self, inputs: {}

    def __call__(self, inputs, *, cache=None, mask=None, positions=None, grad=False):
        given = {}
        if cache is not None:
            given["state"] = cache
        with torch.set_grad_enabled(grad):
            output = self.network(inputs, **given)
        return output if isinstance(output, tuple) else (output, None)


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


def choose_backend():
    """Tell triton, before it is imported, to interpret kernels if there is no GPU, and no TF32."""
    os.environ['TRITON_INTERPRET'] = '0' if torch.cuda.is_available() else '1'
    os.environ.setdefault('TRITON_F32_DEFAULT', 'ieee')


class Index(int):
    """The index of a loop, which kernels cast."""

    def to(self, dtype):
        return int(self)


def count(*bounds):
    """`range`, for loops of kernels."""
    return map(Index, range(*map(int, bounds)))


def load_kernel(place):
    """Load a function of fla.ops; without a GPU its kernels run in Triton's interpreter."""
    choose_backend()
    module, _, name = place.partition(':')
    function = getattr(importlib.import_module(module), name)
    if torch.cuda.is_available():
        return function
    from triton.runtime.autotuner import Autotuner
    for loaded in [x for key, x in sys.modules.items() if key.startswith('fla.ops')]:
        vars(loaded)['range'] = count
        for kernel in list(vars(loaded).values()):
            while hasattr(kernel, 'fn'):
                if isinstance(kernel, Autotuner):
                    del kernel.configs[1:]
                kernel = kernel.fn
    return function


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


def sum_outer_products(x):
    """TR-1."""
    x = {'forget': torch.ones_like(x['k'])} | x
    S, out = (_start(x, 'S'), [])
    for t in range(x['k'].shape[-2]):
        q, k, v, a = _token(x, t, 'q', 'k', 'v', 'forget')
        S = a.mT * S + k.mT @ v
        out.append(q @ S)
    return {'out': _join(out), 'last_S': S}


torch.manual_seed(0)
network = Adapter(load_kernel('fla.ops.simple_gla:fused_recurrent_simple_gla'), 'q, k, v, g=log forget', recurrence=sum_outer_products, states='initial_state=S', output_final_state=True, scale=0.125, heads=2, dim=64)
inputs = torch.randn(2, 21, 386, generator=torch.Generator().manual_seed(1))
network = network.to('cuda')
inputs = inputs.to('cuda')
torch.set_default_device('cuda')


found, expected = second_derivatives(Model(network), inputs)
if found.shape != expected.shape:
    print("shapes", tuple(found.shape), "and", tuple(expected.shape))
elif expected.is_floating_point():
    print("relative error", ((found - expected).abs().max() / expected.abs().max()).item())
else:
    print("share of entries that differ", (found != expected).double().mean().item())
