"""Every operator on a GPU: the numbers of the CPU, and its laws."""

import copy
import warnings
from dataclasses import replace

import pytest
import torch
from torch.func import functional_call
from torch.testing import assert_close

from twinsolve import audit
from twinsolve.twins.laws import trials
from twinsolve.twins.laws.draws import masks_of
from twinsolve.twins.laws.masks import NO_MASKS
from twinsolve.twins.laws.subject import call_layer, map_tensors
from twinsolve.unrolled import ALiBi, CrissCross, Local, VisionTransformer, operator_names

from .draws import tokens
from .operator_cases import OPERATORS, subject_of

if not torch.cuda.is_available():
    pytest.skip("there is no such device", allow_module_level=True)
# The first product of a thread that computes gradients finds no context.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS"),
    pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores"),
]
NAMES = pytest.mark.parametrize("name", OPERATORS, ids=lambda name: name.replace(" ", "-"))


def on_gpu(_, x):
    return x.to("cuda") if isinstance(x, torch.Tensor) else x


def call_on_gpu(layer, *inputs, context=None, **masks):
    """The layer on the GPU; gradients reach inputs and parameters on the CPU."""
    own = {name: x.to("cuda") for name, x in layer.state_dict(keep_vars=True).items()}
    given = {name: on_gpu(name, x) for name, x in masks.items()}
    given["context"] = context and map_tensors(context, on_gpu)
    out = functional_call(layer, own, tuple(x.to("cuda") for x in inputs), given)
    assert out.device.type == "cuda"
    return out.cpu()


def outputs_and_gradients(subject, masks):
    inputs = tuple(x.clone().requires_grad_() for x in subject.inputs)
    out = subject.on(inputs).run(masks)
    leaves = [*inputs, *subject.layer.parameters()]
    return out, *torch.autograd.grad(
        out.sin().sum(), leaves, allow_unused=True, materialize_grads=True
    )


@NAMES
def test_outputs_and_gradients_are_those_of_the_cpu(name):
    subject = subject_of(name)
    for masks in (NO_MASKS, *masks_of(subject)):
        there, here = (
            outputs_and_gradients(replace(subject, apply=apply), masks)
            for apply in (call_on_gpu, call_layer)
        )
        for found, expected in zip(there, here, strict=True):
            # Some gradients are zero, up to rounding.
            atol = 1e-10 * max(1.0, float(expected.detach().abs().max()))
            assert_close(found, expected, atol=atol, rtol=0)


@NAMES
def test_laws_hold(name):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*(are not proved|was not reached)")
        for trial in trials(replace(subject_of(name), apply=call_on_gpu)):
            found = trial.measure()
            assert found.holds, f"{trial.name} in {trial.dtype}: {found}"


@pytest.mark.parametrize("name", operator_names())
def test_models_compute_the_same(name):
    torch.manual_seed(0)
    model = VisionTransformer(8, 2, 1, 5, 12, 2, 3, operator=name).double().eval()
    images = torch.randn(2, 1, 8, 8, dtype=torch.float64)
    found, expected = copy.deepcopy(model).to("cuda")(images.to("cuda")).cpu(), model(images)
    assert_close(found, expected, atol=1e-10 * float(expected.detach().abs().max()), rtol=0)
    model = model.float().to("cuda")
    with torch.autocast("cuda", torch.bfloat16):
        low = model(images.float().to("cuda"))
    low.float().square().sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())
    assert (low.cpu().double() - expected).abs().max() < 0.1 * expected.abs().max()


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize(
    "layer", [ALiBi(2, slopes=[0.1, 0.01]), Local(3, width=34), CrissCross(34)]
)
def test_compiled_windows_and_biases_are_flex_attention(layer, is_causal):
    from torch._inductor.compile_fx import compile_fx  # a second that collecting takes elsewhere

    q, k, v = inputs = [
        tokens(1, 2, n, 32, seed=seed).to("cuda", torch.bfloat16).requires_grad_()
        for seed, n in enumerate((1024, 1156, 1156))
    ]
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph.code)
        return compile_fx(graph, inputs)

    torch.compiler.reset()
    layer = layer.to("cuda")
    compiled = torch.compile(layer, backend=backend, fullgraph=True)
    out = compiled(q, k, v, is_causal=is_causal)
    explicit = layer.matrix(q.double(), k.double(), is_causal=is_causal) @ v.double()
    has_own_form = is_causal and isinstance(layer, ALiBi)
    assert ("flex_attention" in graphs[0]) == (not has_own_form)
    found, expected = (
        (x, *torch.autograd.grad(x.double().sin().sum(), inputs)) for x in (out, explicit)
    )
    for a, b in zip(found, expected, strict=True):
        assert_close(a.double(), b.double(), atol=0.02 * float(b.detach().abs().max()), rtol=0)


def test_audit_gives_the_verdicts_of_the_cpu_and_a_script_for_the_gpu():
    here, there = (audit("mamba", device=device) for device in ("cpu", "cuda"))
    assert [row.verdict for row in there.findings] == [row.verdict for row in here.findings]
    assert all("network = network.to('cuda')" in row.details["script"] for row in there.broken)
