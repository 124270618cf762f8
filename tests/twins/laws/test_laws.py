"""Each law holds for an operator written plainly, and is seen to fail once for a broken one."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from twinsolve.twins.laws import LAWS, Measurement, Subject, draw_inputs, trials, worst
from twinsolve.twins.laws.subject import as_array
from twinsolve.unrolled import Context, Operator
from twinsolve.unrolled.attention import Positive, combine_masks, masked_softmax
from twinsolve.unrolled.block_size import block_size


class Plain(Operator):
    """Softmax of scaled products and of first values: each step is a method to break."""

    row_stochastic = True
    nonnegative = True
    additive_masks = True

    def __init__(self):
        super().__init__()
        self.scale = Positive(0.7, num_heads=3, learnable=True, dtype=torch.float64)
        with torch.no_grad():
            self.scale.log += torch.tensor([0.0, 0.2, 0.4])[:, None, None]

    def see(self, call):
        return call

    def logits(self, call):
        scale = self.scale().to(call.q.dtype)
        return scale * call.q @ call.k.mT + self.shift(call)

    def shift(self, call):
        """Of values from the context: an amount for each key."""
        first = call.context.first_values.to(call.q.dtype)
        return first.mean(dim=-1)[..., None, :].expand(*call.q.shape[:-1], -1)

    def weigh(self, call):
        return masked_softmax(self.logits(call), call.pairs())

    def attend(self, call):
        call = self.see(call)
        return self.weigh(call).to(call.v.dtype) @ call.v

    def coefficients(self, call):
        return self.weigh(call)


class Nearest(Plain):
    """The value of the key of the largest logit."""

    def weigh(self, call):
        logits = masked_softmax(self.logits(call), call.pairs())
        return nn.functional.one_hot(logits.argmax(dim=-1), logits.shape[-1]).to(logits)


def weigh(layer, logits):
    if isinstance(layer, Nearest):
        return np.eye(logits.shape[-1])[logits.argmax(axis=-1)]
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def transform(layer, out):
    return out**2 / 20 if isinstance(layer, Squared) else out


def solve(layer, inputs, context, masks, rows):
    """The output once more, in NumPy; all rows, also where a few are asked for."""
    q, k, v = (as_array(x) for x in inputs)
    scale = as_array(layer.scale())
    logits = scale * q @ np.swapaxes(k, -1, -2)
    logits = logits + as_array(context.first_values).mean(axis=-1)[..., None, :]
    if masks.bias is not None:
        logits = logits + masks.bias
    if masks.visible is None:
        return transform(layer, weigh(layer, logits) @ v)
    seen = np.broadcast_to(masks.visible, logits.shape)
    blank = ~seen.any(axis=-1, keepdims=True)
    weights = weigh(layer, np.where(seen | blank, logits, -np.inf))
    return transform(layer, np.where(blank, 0, weights) @ v)


def first_values(inputs):
    return Context(first_values=torch.sin(inputs[1][..., :2]))


def subject_of(layer):
    return Subject(
        layer, draw_inputs("tokens", np.random.default_rng(0), same=False), declared=layer,
        reference=solve, make_context=first_values,
        twice={"backward": "right", "torch.func": "right"},
    )  # fmt: skip


NAMES = {each.__name__.replace("_", " ") for each in LAWS}


def passes(layer, law_name, detail, dtype):
    """Whether a trial passes; one that raises does not."""
    found = {(x.law, x.detail, x.dtype): x for x in trials(subject_of(layer))}
    try:
        return found[law_name, detail, dtype].measure().holds
    except (RuntimeError, ValueError, IndexError):
        return False


def mask_changed(change):
    return lambda self, call: call._replace(mask=None if call.mask is None else change(call.mask))


def diagonal(shift, *, from_start=False):
    """Causal masks whose diagonal lies elsewhere."""

    def see(self, call):
        n_queries, n_keys = call.q.shape[-2], call.k.shape[-2]
        if not call.is_causal:
            return call
        offset = shift if from_start else n_keys - n_queries + shift
        seen = torch.ones(n_queries, n_keys, dtype=torch.bool).tril(offset)
        return call._replace(mask=combine_masks(call.mask, seen), is_causal=False)

    return see


def changed(**changes):
    """Another call, by what is done to some of its parts."""
    return lambda self, call: call._replace(
        **{name: change(getattr(call, name)) for name, change in changes.items()}
    )


def scaled(change):
    """Another scale."""
    return lambda self, call: change(self.scale()) * call.q @ call.k.mT + self.shift(call)


def logits_in(dtype):
    return lambda self, call: Plain.logits(self, call).to(dtype).to(call.q.dtype)


def weights_changed(change):
    return lambda self, call: change(Plain.weigh(self, call))


def values_changed(change):
    return lambda self, call: change(self.weigh(call) @ call.v, call)


def wide(out, call):
    return out.float()


def times_keys(out, call):
    return out * call.k.shape[-2]


def of_four_axes(out, call):
    return out * (out.ndim < 5)


def without_mask(self, call):
    return self.weigh(call._replace(mask=None, is_causal=False))


def other_keys_if_few(self, call):
    few = call.k.shape[-2] < call.k.shape[-1]
    return call._replace(k=call.k.flip(-2)) if few else call


def blocks_from_the_start(self, call):
    """Every block of queries is taken for the first."""
    if not call.is_causal or call.q.shape[-2] <= 128:
        return self.weigh(call) @ call.v
    last = call.k.shape[-2] - call.q.shape[-2] + 128
    parts = (call._replace(q=q, k=call.k[..., :last, :]) for q in call.q.split(128, dim=-2))
    return torch.cat([self.weigh(part) @ call.v[..., :last, :] for part in parts], dim=-2)


def first_blocks(self, call):
    blocks = [self.weigh(call._replace(q=q)) @ call.v for q in call.q.split(block_size(100), -2)]
    return torch.cat([*blocks[:6], *(0 * x for x in blocks[6:])], dim=-2)


def distances(self, call):
    """Counted in the dtype of the queries."""
    n_queries, n_keys = call.q.shape[-2], call.k.shape[-2]
    places = torch.arange(n_keys, dtype=call.q.dtype)
    return (places - places[n_keys - n_queries :, None]).expand(*call.q.shape[:-1], -1)


class Once(torch.autograd.Function):
    """x ** 2 / 20, whose derivative knows no derivative."""

    @staticmethod
    def forward(x):
        return x.square() / 20

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.saved_tensors[0].detach() / 10


class Squared(Plain):
    @staticmethod
    def square(x):
        return x.square() / 20

    def attend(self, call):
        return self.square(Plain.attend(self, call))


def lowered(self, q, k, v, *, mask=None, is_causal=False, context=None):
    return torch.softmax(self.scale().to(q.dtype) * q @ k.mT, dim=-1) @ v


def refuses_nothing(self, q, k, v=None, **given):
    pass


def leaning(A):
    """Some are negative, and rows sum to one."""
    slope = torch.linspace(-1, 1, A.shape[-1]).to(A)
    return A + slope - slope.mean()


def rounded_if_narrow(A):
    return A if A.dtype == torch.float64 else A.bfloat16().to(A.dtype)


def lowest_number(self, call):
    """A row that sees nothing takes the mean of what is hidden."""
    pairs = call.pairs()
    if pairs is None or pairs.dtype != torch.bool:
        return Plain.weigh(self, call)
    logits = self.logits(call)
    return torch.softmax(logits.masked_fill(~pairs, torch.finfo(logits.dtype).min), dim=-1)


def centred(self, call):
    """Keys less the mean of all."""
    return Plain.logits(self, call._replace(k=call.k - call.k.mean(dim=-2, keepdim=True)))


def norms_by_products(self, call):
    """Squared distances by products, which cancel far from the origin."""
    q, k = call.q, call.k
    norms = [x.square().sum(dim=-1, keepdim=True) for x in (q, k)]
    return self.scale().to(q.dtype) * (2 * q @ k.mT - norms[0] - norms[1].mT) / 2


def from_one_centre(self, call):
    """Distances by products from the first key, which may be far from others."""
    centre = call.k[..., :1, :]
    return norms_by_products(self, call._replace(q=call.q - centre, k=call.k - centre))


def norms_by_differences(self, call):
    differences = call.q[..., :, None, :] - call.k[..., None, :, :]
    return -self.scale().to(call.q.dtype) * differences.square().sum(dim=-1) / 2


class OfDifferences(Plain):
    logits = norms_by_differences


class Placed(Plain):
    positional = "relative"


def lowered_by_autocast(self, q, k, v, **given):
    v = v.float() if torch.is_autocast_enabled("cpu") else v
    return Operator.forward(self, q, k, v.to(q.dtype), **given)


def at_least(k):
    """Keys of a size of 0.1 at least."""
    return k / k.abs().amax().clamp(max=0.1) * 0.1


def small_without_gradient(q):
    return torch.where(q.abs() < 0.1, q.detach(), q)


def as_many_heads_as_keys(self, q, k, v, **given):
    return Operator.forward(self, q, k, v, **given)[..., : k.shape[-3], :, :]


def ones_without_keys(self, q, k, v, **given):
    out = Operator.forward(self, q, k, v, **given)
    return out if k.shape[-2] else out + 1


def of_each_key(mask):
    return mask * torch.linspace(1, 1.1, mask.shape[-1]).to(mask)


def takes_fewer_bytes(self, q, k, v, *, mask=None, **given):
    """Reads a mask of fewer bytes than the queries as another one."""
    if mask is not None and 1 < mask.itemsize < q.itemsize:
        mask = mask.flip(-1)
    return Operator.forward(self, q, k, v, mask=mask, **given)


def refuses_wider_masks(self, q, k, v=None, *, mask, **given):
    if mask is not None and mask.itemsize > q.itemsize:
        raise ValueError


# A law, what it finds, and what is wrong with the operator.
FAULTS = [
    ("output", "causal", {"see": diagonal(1)}),
    ("output", "pairs", {"see": mask_changed(lambda m: m.mT)}),
    ("output", "mask per head", {"see": mask_changed(lambda m: m if m.ndim < 3 else m[:1])}),
    ("output", "additive bias", {"see": mask_changed(lambda m: m > -torch.inf)}),
    ("output", "additive mask", {"see": mask_changed(lambda m: m.clamp(min=-1))}),
    ("output", "no mask", {"logits": scaled(lambda s: s[:1])}),
    ("last tokens", "4, causal", {"see": diagonal(0, from_start=True)}),
    ("matrix", "causal, pairs", {"coefficients": without_mask}),
    ("forward", "causal, pairs", {"coefficients": without_mask}),
    ("sizes", "narrow", {"see": other_keys_if_few}),
    ("sizes", "large, fewer queries", {"attend": blocks_from_the_start}),
    ("blocks", "no mask", {"attend": first_blocks}),
    ("jump", "", {"base": Nearest, "logits": logits_in(torch.float32)}),
    ("dtypes", "no mask", {"dtype": "float32", "logits": logits_in(torch.bfloat16)}),
    ("mask dtypes", "", {"forward": takes_fewer_bytes}),
    ("mask dtypes", "", {"dtype": "bfloat16", "check_inputs": refuses_wider_masks}),
    (
        "constant bias",
        "",
        {"dtype": "bfloat16", "see": mask_changed(of_each_key)},
    ),
    ("mask gradient", "", {"see": mask_changed(torch.detach)}),
    ("mask forms", "3 x 1 x 20", {"see": mask_changed(lambda m: m if m.shape[-2] > 1 else m[:1])}),
    ("many tokens", "", {"dtype": "bfloat16", "shift": distances}),
    ("gradient", "q", {"see": changed(q=torch.detach)}),
    ("gradient", "v, causal, pairs", {"see": changed(v=torch.detach)}),
    ("gradient", "parameters", {"logits": scaled(torch.detach)}),
    ("gradient", "context", {"shift": lambda self, call: Plain.shift(self, call).detach()}),
    ("second derivative", "by torch.func", {"base": Squared, "square": Once.apply}),
    ("second derivative", "by backward, causal, pairs", {"base": Squared, "square": Once.apply}),
    ("reads", "", {"reads": ("q", "k")}),
    ("keeps dtype", "", {"dtype": "bfloat16", "attend": values_changed(wide)}),
    ("autocast", "", {"dtype": "float32", "forward": lowered}),
    ("autocast", "", {"forward": lowered_by_autocast}),
    ("autocast", "mixed", {"forward": lowered}),
    ("many tokens", "8192 keys", {"base": Placed, "dtype": "bfloat16", "shift": distances}),
    ("magnitudes", "small", {"see": changed(k=at_least)}),
    ("magnitudes", "large", {"see": changed(k=lambda k: k.clamp(max=50.0))}),
    ("magnitudes", "small, gradient", {"see": changed(q=small_without_gradient)}),
    (
        "offset",
        "padding right",
        {"base": OfDifferences, "dtype": "float32", "logits": norms_by_products},
    ),
    (
        "offset",
        "two sides, no mask",
        {"base": OfDifferences, "dtype": "float32", "logits": from_one_centre},
    ),
    ("shift", "tokens", {"base": OfDifferences, "dtype": "float32", "logits": norms_by_products}),
    ("shift", "values", {"dtype": "float32", "weigh": weights_changed(rounded_if_narrow)}),
    ("refused", "is_causal with more queries than keys", {"check_inputs": refuses_nothing}),
    ("refused", "mask of integers", {"check_inputs": refuses_nothing}),
    ("refused", "is_causal", {"causal": False, "check_inputs": refuses_nothing}),
    ("refused", "mask of pairs", {"pair_masks": False, "check_inputs": refuses_nothing}),
    ("refused", "finite bias", {"additive_masks": False, "check_inputs": refuses_nothing}),
    ("refused", "fewer queries", {"square_only": True, "check_inputs": refuses_nothing}),
    ("weights", "no mask", {"weigh": weights_changed(lambda A: 0.9 * A)}),
    ("weights", "causal", {"weigh": weights_changed(leaning)}),
    ("single token", "", {"weigh": weights_changed(lambda A: 0.9 * A)}),
    ("causality", "first 5 tokens", {"attend": values_changed(times_keys)}),
    ("causality", "as a mask", {"see": changed(is_causal=lambda given: False)}),
    ("absent", "", {"attend": values_changed(times_keys)}),
    ("leaks", "causal", {"dtype": "float32", "logits": centred}),
    ("far tokens", "causal", {"dtype": "float32", "logits": centred}),
    ("padding of nan", "padding", {"present": lambda self, x, mask: x}),
    ("empty rows", "", {"weigh": lowest_number}),
    ("batch", "", {"see": mask_changed(lambda m: m if m.ndim < 4 else m[:1])}),
    ("leading axes", "five axes", {"attend": values_changed(of_four_axes)}),
    ("leading axes", "keys of one head", {"forward": as_many_heads_as_keys}),
    ("nothing", "no keys", {"forward": ones_without_keys}),
]


@pytest.mark.parametrize(("law_name", "detail", "fault"), FAULTS)
def test_a_law_fails_for_a_broken_operator(law_name, detail, fault):
    base, dtype = fault.get("base", Plain), fault.get("dtype", "float64")
    broken = type("Broken", (base,), {k: v for k, v in fault.items() if k not in ("base", "dtype")})
    excluded = law_name == "refused"  # by what the broken one declares
    assert excluded or passes(base(), law_name, detail, dtype)
    assert not passes(broken(), law_name, detail, dtype)


def test_every_law_is_seen_to_fail():
    assert {law_name for law_name, *_ in FAULTS} == NAMES


def test_every_law_holds_for_a_plain_operator():
    subject = subject_of(Plain())
    found = list(trials(subject))
    for trial in found:
        assert trial.measure().holds, trial.name
    keys = [(trial.name, trial.dtype) for trial in found]
    assert len(set(keys)) == len(keys) > 100
    assert not {trial.law for trial in found} - NAMES


def test_findings_are_the_same_whatever_was_measured_before():
    subject = subject_of(Plain())
    before = copy.deepcopy(subject.inputs)
    in_turn = [trial.measure() for trial in trials(subject)]
    assert all(torch.equal(*pair) for pair in zip(before, subject.inputs, strict=True))
    backwards = [trial.measure() for trial in reversed(list(trials(subject_of(Plain()))))]
    assert in_turn == backwards[::-1]
    other = trials(replace(subject_of(Plain()), seed=(1,)))
    moved = [a != trial.measure() for a, trial in zip(in_turn, other, strict=True)]
    assert sum(moved) > 40


def test_a_second_derivative_that_must_be_refused_is_not():
    subject = replace(subject_of(Plain()), twice={"backward": "refused", "torch.func": "refused"})
    [of_law] = [each for each in LAWS if each.__name__ == "second_derivative"]
    assert [trial.measure().holds for trial in of_law(subject)] == [False, False]


def test_a_brief_subject_has_what_is_hardest_alone():
    names = [trial.name for trial in trials(replace(subject_of(Plain()), brief=True))]
    assert names == [
        "output, no mask", "output, causal, pairs", "matrix, causal, pairs", "blocks, no mask",
        "gradient, q, causal, pairs", "gradient, parameters, causal, pairs",
    ]  # fmt: skip


def test_layers_that_declare_nothing_have_the_laws_that_they_can_be_given():
    subject = replace(subject_of(Plain()), declared=None)
    found = {trial.law for trial in trials(subject)}
    assert found == {
        "output", "sizes", "blocks", "jump", "dtypes", "gradient", "second derivative", "batch",
        "shift",
    }  # fmt: skip


def test_without_a_reference_nothing_is_compared_with_one():
    subject = replace(subject_of(Plain()), reference=None)
    found = {trial.law for trial in trials(subject)}
    assert NAMES - found == {"output", "matrix", "jump", "offset"}  # products move far away


def test_the_worst_is_the_one_furthest_beyond_its_tolerance():
    small, large = Measurement(1e-3, 1e-2), Measurement(1e-4, 1e-6)
    nan, exact = Measurement(float("nan"), 1.0), Measurement(0.0, 0.0)
    assert worst([small, large, exact]) is large
    assert worst([small, nan]) is nan
    assert worst([exact, Measurement(1e-9, 0.0), large]).deviation == 1e-9
