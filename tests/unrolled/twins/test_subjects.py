"""The layer of every twin under its laws: the part of `twinsolve check` on drawn inputs."""

import numpy as np
import pytest
import torch
from torch import nn

from twinsolve.solvers import smoother_matrix
from twinsolve.unrolled import Gaussian
from twinsolve.unrolled.attention import Positive
from twinsolve.unrolled.twins import Identity, Twin, catalogue, findings_of, register, unregister
from twinsolve.unrolled.twins.subjects import make_subject

TWINS = {twin.name: twin for twin in catalogue()}


def test_every_layer_agrees_with_its_solver_under_every_law(twin):
    for finding in findings_of(twin):
        found = finding.measure()
        assert found.passed, f"{finding.name} in {finding.dtype}: {found}"


def test_every_setting_of_every_layer_is_judged_once():
    """Where another twin speaks for a layer, its options alone have findings."""
    found = {name: {x.name for x in findings_of(twin)} for name, twin in TWINS.items()}
    names = {name for name in found if "output, no mask" in found[name]}
    assert {TWINS[name].layer for name in names} == {twin.layer for twin in TWINS.values()}
    for name, twin in TWINS.items():
        options = {x.partition(": ")[0] for x in found[name] if ": " in x}
        assert options == set(twin.options)
        assert name in names or len(found[name]) <= 2 * len(options)
    assert {"sparse-coding-iterates", "neutreno-attention", "low-rank-attention"} <= names
    assert not {"sparse-coding-limit", "neutreno-iterates", "low-rank-optimality"} & names


@pytest.mark.parametrize("name", ["gaussian-attention", "alibi", "learned-coding-recursion"])
def test_parameters_differ_from_head_to_head(name):
    layer = make_subject(TWINS[name], np.random.default_rng(0)).layer
    for parameter in layer.parameters():
        assert len(parameter) == 3
        assert len(parameter.unique()) == parameter.numel()


def test_each_twin_of_a_users_layer_has_all_findings():
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
        found = [{finding.name for finding in findings_of(twin)} for twin in twins]
    finally:
        for twin in twins:
            unregister(twin.name)
    assert found[0] == found[1]
    assert {"output, no mask", "output, padding", "matrix, causal, pairs"} <= found[1]


def test_a_users_layer_of_any_kind_has_the_laws_that_it_can_be_given():
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
        found = {(x.name, x.dtype): x.measure().passed for x in findings_of(mine)}
    finally:
        unregister("mine")
    names = {name for name, dtype in found if dtype == "float64"}
    assert names >= {
        "output, no mask", "batch", "sizes, narrow", "sizes, large", "gradient, k",
        "gradient, parameters",
    }  # fmt: skip
    assert not any("causal" in name for name in names)
    assert all(passed for (_, dtype), passed in found.items() if dtype != "bfloat16")


def test_a_fault_of_a_default_spares_findings_of_options_that_give_another(monkeypatch):
    monkeypatch.setattr(
        "twinsolve.unrolled.kernel_smoothing.alibi.alibi_slopes", lambda n: [0.1] * n
    )
    found = {x.name: x.measure().passed for x in findings_of(TWINS["alibi"])}
    failed = {name for name, passed in found.items() if not passed}
    assert "default: output, no mask" in failed
    assert "default: matrix, causal, pairs" in failed
    assert not any(name.startswith("given-slopes") for name in failed)
