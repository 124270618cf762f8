import numpy as np
import pytest
import torch
from torch import nn

import twinsolve.unrolled.conditioning as conditioning
import twinsolve.unrolled.kernel_smoothing.kernel as kernel
import twinsolve.unrolled.kernel_smoothing.linear as linear
import twinsolve.unrolled.kernel_smoothing.logits as logits
import twinsolve.unrolled.kernel_smoothing.softmax as softmax
from twinsolve.solvers import smoother_matrix
from twinsolve.unrolled import Call, Gaussian, Neutreno, Ridge, Softmax, Solved, SparseCoding, TopK
from twinsolve.unrolled.attention import Operator, Positive, combine_masks, is_transformed
from twinsolve.unrolled.self_expression.low_rank_attention import _Filter
from twinsolve.unrolled.twins import Identity, Twin, cases_of, catalogue, register, unregister
from twinsolve.unrolled.twins.subjects import make_subject

TWINS = {twin.name: twin for twin in catalogue()}


def measured(twin, name, dtype="float64"):
    [case] = [c for c in cases_of(twin) if (c.name, c.dtype) == (name, dtype)]
    return case.measure()


def test_every_layer_agrees_with_its_solver_in_every_case(twin):
    for case in cases_of(twin):
        found = case.measure()
        assert found.passed, f"{case.name} in {case.dtype}: {found}"


def test_every_setting_of_every_layer_has_its_cases_once():
    """Whole models have no cases; twins of settings that another speaks for have their options'."""
    whole = {name for name, twin in TWINS.items() if twin.inputs == "model"}
    cases = {name: {case.name for case in cases_of(twin)} for name, twin in TWINS.items()}
    assert not any(cases[name] for name in whole)
    assert all(cases[name] for name in TWINS.keys() - whole if TWINS[name].options)
    names = {name for name in cases if "heads" in cases[name]}
    layers = {twin.layer for name, twin in TWINS.items() if name not in whole}
    assert {TWINS[name].layer for name in names} == layers
    assert {"sparse-coding-iterates", "neutreno-safe-attention", "low-rank-attention"} <= names
    assert not {"sparse-coding-limit", "neutreno-safe-iterates", "low-rank-optimality"} & names


def test_a_case_is_the_same_whatever_was_measured_before():
    twin = TWINS["gaussian-attention"]
    in_turn = {(c.name, c.dtype): c.measure() for c in cases_of(twin)}
    assert len(in_turn) == len(list(cases_of(twin)))
    backwards = {(c.name, c.dtype): c.measure() for c in reversed(list(cases_of(twin)))}
    assert in_turn == backwards
    other = {(c.name, c.dtype): c.measure() for c in cases_of(twin, seed=1)}
    # No error, or that of a last digit may be the same by chance.
    seen = [key for key in in_turn if in_turn[key].deviation > 1e-15]
    assert len(seen) > 15
    assert all(other[key] != in_turn[key] for key in seen)


@pytest.mark.parametrize("name", ["gaussian-attention", "alibi", "learned-coding-recursion"])
def test_parameters_differ_from_head_to_head(name):
    layer = make_subject(TWINS[name], np.random.default_rng(0)).layer
    for parameter in layer.parameters():
        assert len(parameter) == 3
        assert len(parameter.unique()) == parameter.numel()


def test_each_twin_of_a_users_layer_has_all_cases():
    class Own(Gaussian):
        pass

    def solved(layer, call):
        return smoother_matrix(call.q, call.k, bandwidth=float(layer.bandwidth())) @ call.v

    twins = [
        Twin(
            name=name, family="mine", relation=Identity(), source="my notes", layer=Own,
            build=lambda q, k, v: Own(1.0), solve=solve,
        )
        for name, solve in (
            ("first of mine", solved),
            ("second of mine", lambda layer, call: solved(layer, call) * (len(call.q) > 1)),
        )
    ]  # fmt: skip
    try:
        for twin in twins:
            register(twin)
        cases = [{case.name for case in cases_of(twin)} for twin in twins]
    finally:
        for twin in twins:
            unregister(twin.name)
    assert cases[0] == cases[1]
    assert {"heads", "padding", "causal"} <= cases[1]


def test_a_users_layer_of_any_kind_has_the_cases_that_it_can_be_given():
    class Mine(nn.Module):
        def __init__(self):
            super().__init__()
            self.width = Positive(1.5, learnable=True, dtype=torch.float64)

        def forward(self, q, k, v):
            return torch.softmax(-((q[..., None, :] - k[..., None, :, :]) ** 2).sum(-1)
                                 / (2 * self.width().to(q.dtype) ** 2), dim=-1) @ v  # fmt: skip

    mine = Twin(
        name="mine", family="mine", relation=Identity(), equation="-", source="-", layer=Mine,
        build=lambda q, k, v: Mine(),
        solve=lambda layer, call: (
            smoother_matrix(call.q, call.k, bandwidth=layer.width().item()) @ call.v
        ),
    )  # fmt: skip
    register(mine)
    try:
        found = {(c.name, c.dtype): c.measure().passed for c in cases_of(mine)}
    finally:
        unregister("mine")
    names = {name for name, dtype in found if dtype == "float64"}
    assert names >= {"heads", "batch", "narrow", "large", "gradient k", "gradient parameters"}
    assert "causal" not in names
    assert all(passed for (_, dtype), passed in found.items() if dtype != "bfloat16")


def attend_of(layer, change):
    """The operator is given another call."""
    attend = layer.attend
    return lambda patch: patch.setattr(
        layer, "attend", lambda self, call: attend(self, change(call))
    )


def shifted(shift, *, from_start=False):
    """Causal masks whose diagonal lies elsewhere."""

    def change(call):
        n_queries, n_keys = call.q.shape[-2], call.k.shape[-2]
        if not call.is_causal:
            return call
        offset = shift if from_start else n_keys - n_queries + shift
        seen = torch.ones(n_queries, n_keys, dtype=torch.bool).tril(offset)
        return call._replace(mask=combine_masks(call.mask, seen), is_causal=False)

    return change


def with_mask(change_mask):
    def change(call):
        return call._replace(mask=None if call.mask is None else change_mask(call.mask))

    return change


def without_mask_if_causal(call):
    return call._replace(mask=None if call.is_causal else call.mask)


def detached(name):
    return lambda call: call._replace(**{name: getattr(call, name).detach()})


def of_first_head(patch):
    value = Positive.forward
    patch.setattr(Positive, "forward", lambda self: (x := value(self))[: 1 if x.ndim else None])


def constant_parameters(patch):
    value = Positive.forward
    patch.setattr(Positive, "forward", lambda self: value(self).detach())


def matrix_of(layer, change):
    def plant(patch):
        method = layer.coefficients
        patch.setattr(layer, "coefficients", lambda self, call: change(method, self, call))

    return plant


def logits_of_few_digits(self, call):
    """As float8 products would give them."""
    q, k, v = call[:3]
    logits = (self.scale * (q @ k.mT)).to(torch.float8_e4m3fn).to(q.dtype)
    return torch.softmax(logits, dim=-1) @ v


def in_bfloat16(self, call, attend=Softmax.attend):
    low = (x.bfloat16() for x in call[:3])
    return attend(self, Call(*low, *call[3:])).to(call.q.dtype)


def blocks_from_the_start(function, q):
    """Every block is told that it is the first one."""
    return torch.cat([function(rows, 0) for rows in q.split(256, dim=-2)], dim=-2)


def chunks_apart(attention):
    """Chunks of many tokens that know nothing of those before."""

    def call(q, k, v, *, is_causal):
        if not is_causal or q.shape[-2] <= 128:
            return attention(q, k, v, is_causal=is_causal)
        k, v = k[..., -q.shape[-2] :, :], v[..., -q.shape[-2] :, :]
        parts = zip(*(x.split(128, dim=-2) for x in (q, k, v)), strict=True)
        return torch.cat([attention(*part, is_causal=True) for part in parts], dim=-2)

    return call


def detached_context(call):
    first = call.context.first_values.detach()
    return call._replace(context=call.context._replace(first_values=first))


def squared_if_transformed(q, k, distances=logits.distances):
    found = distances(q, k)
    return found.square() if is_transformed() else found


def products_in_bfloat16(self, call):
    q, k, v = call[:3]
    return self.scale * q @ (k.mT @ v)


def nothing_refused(self, q, k, v=None, **given):
    return None


def first_of_batch(call):
    return call if call.mask is None or call.mask.ndim < 4 else call._replace(mask=call.mask[:1])


def narrow_only(patch):
    method = Ridge._coefficients

    def flipped(self, call):
        narrow = call.k.shape[-2] < call.k.shape[-1]
        return method(self, call._replace(k=call.k.flip(-2)) if narrow else call)

    patch.setattr(Ridge, "_coefficients", flipped)


def of_first_queries(method, self, call):
    seen = torch.ones(call.q.shape[-2], call.k.shape[-2], dtype=torch.bool).tril()
    return method(self, Call(*call[:3], seen))


FAULTS = {
    "sees one key too many": ("softmax-attention", "causal", attend_of(Softmax, shifted(1))),
    "sees one key too few": ("softmax-attention", "causal", attend_of(Softmax, shifted(-1))),
    "causal ignored": ("softmax-attention", "causal", attend_of(Softmax, shifted(99))),
    "mask dropped": ("softmax-attention", "pairs", attend_of(Softmax, with_mask(lambda m: None))),
    "padding reaches the sums as 0 times NaN": (
        "softmax-attention",
        "padding of NaN",
        lambda patch: patch.setattr(Softmax, "present", lambda self, x, mask: x),
    ),
    "padding dropped": (
        "top-k",
        "padding",
        attend_of(TopK, with_mask(lambda m: None)),
    ),
    "padding dropped with is_causal": (
        "softmax-attention",
        "causal, padding",
        attend_of(Softmax, without_mask_if_causal),
    ),
    "mask transposed": (
        "softmax-attention",
        "pairs",
        attend_of(Softmax, with_mask(lambda m: m.mT)),
    ),
    "mask of head 0 for all": (
        "softmax-attention",
        "mask per head",
        attend_of(Softmax, with_mask(lambda m: m if m.ndim < 3 else m[:1])),
    ),
    "mask of the first in the batch for all": (
        "softmax-attention",
        "batch",
        attend_of(Softmax, first_of_batch),
    ),
    "-inf not read": (
        "softmax-attention",
        "additive mask",
        attend_of(Softmax, with_mask(lambda m: m if m.dtype == torch.bool else m.clamp(-1, 1))),
    ),
    "bias taken for a mask": (
        "gaussian-attention",
        "additive bias",
        attend_of(Gaussian, with_mask(lambda m: m > -torch.inf)),
    ),
    "parameter of head 0 for all": ("gaussian-attention", "heads", of_first_head),
    "weight of head 0 for all": ("neutreno-attention", "heads", of_first_head),
    "queries taken for the first tokens": (
        "softmax-attention",
        "fewer queries, causal",
        attend_of(Softmax, shifted(0, from_start=True)),
    ),
    "matrix transposed": (
        "sparse-coding-iterates",
        "matrix",
        matrix_of(SparseCoding, lambda method, *args: method(*args).mT),
    ),
    "matrix without its mask": (
        "gaussian-attention",
        "matrix, causal, pairs",
        matrix_of(Gaussian, lambda method, self, call: method(self, Call(*call[:3]))),
    ),
    "matrix of the first queries": (
        "gaussian-attention",
        "matrix, fewer queries, causal",
        matrix_of(Gaussian, of_first_queries),
    ),
    "matrix without the pull": (
        "neutreno-attention",
        "matrix",
        matrix_of(Neutreno, lambda method, self, call: call.matrix_of(self.base)),
    ),
    "matrix of the base": (
        "neutreno-solved",
        "matrix",
        matrix_of(Solved, lambda method, self, call: call.matrix_of(self.base)),
    ),
    "no gradient of q": ("softmax-attention", "gradient q", attend_of(Softmax, detached("q"))),
    "no gradient of k": ("softmax-attention", "gradient k", attend_of(Softmax, detached("k"))),
    "no gradient of v under masks": (
        "softmax-attention",
        "gradient v, causal, pairs",
        attend_of(Softmax, detached("v")),
    ),
    "no gradient of parameters": (
        "gaussian-attention",
        "gradient parameters",
        constant_parameters,
    ),
    "no gradient of first values": (
        "neutreno-attention",
        "gradient context",
        attend_of(Neutreno, detached_context),
    ),
    "no second derivative of pairs": (
        "low-rank-attention",
        "second derivative by backward, mask per head",
        lambda patch: patch.setattr(
            _Filter,
            "second_differences",
            lambda self: torch.zeros(*self.w.shape, *self.w.shape[-1:] * 2),
        ),
    ),
    "second derivative by transforms of another function": (
        "laplace-kernel",
        "second derivative by torch.func",
        lambda patch: patch.setattr(kernel, "distances", squared_if_transformed),
    ),
    "second derivative not refused": (
        "token-graying-svd",
        "refused: second derivative by backward",
        lambda patch: patch.setattr(conditioning, "once_in", lambda gradient, *_: gradient),
    ),
    "few tokens wrong": ("ridge-attention", "narrow", narrow_only),
    "blocks misplaced": (
        "top-k",
        "large, masked",
        lambda patch: patch.setattr(softmax, "map_query_blocks", blocks_from_the_start),
    ),
    "chunks forgotten": (
        "linear-attention",
        "large, fewer queries",
        lambda patch: patch.setattr(
            linear, "linear_attention", chunks_apart(linear.linear_attention)
        ),
    ),
    "is_causal not refused": (
        "ridge-attention",
        "refused: is_causal",
        lambda patch: patch.setattr(Operator, "check_inputs", nothing_refused),
    ),
    "fewer queries not refused": (
        "ridge-attention-zero-diagonal",
        "refused: fewer queries",
        lambda patch: patch.setattr(Operator, "check_inputs", nothing_refused),
    ),
    "logits to a few digits": (
        "softmax-attention",
        "heads",
        lambda patch: patch.setattr(Softmax, "attend", logits_of_few_digits),
        "bfloat16",
    ),
    "products rounded between": (
        "linear-attention",
        "heads",
        lambda patch: patch.setattr(linear.Linear, "attend", products_in_bfloat16),
        "bfloat16",
    ),
    "computed in bfloat16": (
        "softmax-attention",
        "heads",
        lambda patch: patch.setattr(Softmax, "attend", in_bfloat16),
        "float32",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_case_meant_for_it_catches_a_planted_fault(fault, monkeypatch):
    twin, name, plant, *dtype = FAULTS[fault]
    assert measured(TWINS[twin], name, *dtype).passed
    plant(monkeypatch)
    assert not measured(TWINS[twin], name, *dtype).passed
