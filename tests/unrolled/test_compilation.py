"""Operators by name: compiled, exported, and trained in parallel."""

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch.nn.parallel import DistributedDataParallel
from torch.testing import assert_close

from twinsolve.unrolled import SparseCoding, VisionTransformer, make_operator, operator_names

from .operator_calls import Called, tokens

BATCH, HEADS, DIM = 2, 3, 2
# More than one block of queries in the last: those compiled before serve it.
LENGTHS = (28, 42, 300)


@pytest.fixture(params=operator_names())
def operator(request):
    torch.manual_seed(0)
    return make_operator(request.param, num_heads=HEADS, head_dim=DIM).double()


def qkv(n_tokens, batch=BATCH):
    shape = (batch, HEADS, n_tokens, DIM)
    return tuple(tokens(*shape, seed=s).requires_grad_() for s in range(3))


class Causal(Called):
    def forward(self, q, k, v):
        return super().forward(q, k, v, is_causal=True)


def outputs_and_gradients(layer, inputs):
    out = layer(*inputs)
    return out, *torch.autograd.grad(
        out.sin().sum(), inputs, allow_unused=True, materialize_grads=True
    )


def compiles_twice(layer, backend):
    """Once for the first length and once for any other, with the eager layer's numbers."""
    torch.compiler.reset()
    counter = CompileCounterWithBackend(backend)
    compiled = torch.compile(layer, backend=counter, fullgraph=True)
    for n in LENGTHS:
        inputs = qkv(n)
        pairs = zip(
            outputs_and_gradients(compiled, inputs),
            outputs_and_gradients(layer, inputs),
            strict=True,
        )
        for found, expected in pairs:
            assert_close(found, expected, atol=1e-11 * float(expected.detach().abs().max()), rtol=0)
    assert counter.frame_count <= 2


@pytest.mark.parametrize("operator", ["bilateral", "neutreno", "sparse_coding"], indirect=True)
def test_one_program_serves_all_lengths(operator):
    """Of three ways to attend; the slow test below has them all."""
    compiles_twice(Called(operator), "eager")


class Padded(Called):
    def forward(self, q, k, v):
        mask = torch.arange(k.shape[-2]) < k.shape[-2] - 3
        return super().forward(q, k, v, mask=mask[None])


def test_one_program_serves_all_lengths_with_padding():
    """The centre of distances is that of visible keys alone."""
    operator = make_operator("gaussian", num_heads=HEADS, head_dim=DIM).double()
    compiles_twice(Padded(operator), "eager")
    exports(Padded(operator))


@pytest.mark.slow
@pytest.mark.parametrize("make", [Called, Causal])
def test_one_program_of_inductor_serves_all_lengths(operator, make):
    if make is Called or operator.causal:
        compiles_twice(make(operator), "inductor")


@pytest.mark.slow
@pytest.mark.parametrize("make", [Called, Causal])
def test_programs_of_inductor_are_as_exact_in_16_bits(operator, make):
    """They leave out casts to bfloat16 and back, by which some layers keep digits."""
    if make is Causal and not operator.causal:
        return
    inputs = [x.detach().bfloat16().requires_grad_() for x in qkv(LENGTHS[-1])]
    wide = [x.detach().double().requires_grad_() for x in inputs]
    exact = outputs_and_gradients(make(operator), wide)
    layer = make(operator.bfloat16())
    torch.compiler.reset()
    compiled = torch.compile(layer, fullgraph=True)
    results = (outputs_and_gradients(f, inputs) for f in (compiled, layer))
    # Gradients of sparse codes jump where rounding makes a code zero.
    n_judged = 1 if isinstance(operator, SparseCoding) else None
    for found, eager, expected in list(zip(*results, exact, strict=True))[:n_judged]:
        size = float(expected.detach().abs().max())
        own = float((eager - expected).detach().abs().max())
        assert_close(found.double(), expected, atol=2 * own + 0.01 * size, rtol=0)


def exports(layer, shortest=17, lengths=LENGTHS):
    axes = {0: torch.export.Dim("batch"), 2: torch.export.Dim("tokens", min=shortest)}
    program = torch.export.export(layer, qkv(LENGTHS[0]), dynamic_shapes=(axes,) * 3).module()
    for n, batch in zip(lengths, (2, 3, 1), strict=True):
        inputs = qkv(n, batch)
        expected = layer(*inputs)
        atol = 1e-12 * float(expected.detach().abs().max())
        assert_close(program(*inputs), expected, atol=atol, rtol=0)


CHOOSING = ["locally_linear", "top_k", "nystrom", "local"]
# Exported below, for fewer tokens too, or with gates in `test_online_regression`.
ELSEWHERE = {
    *CHOOSING, "delta_rule", "gated_delta_rule", "gated_linear", "heavy_ball", "mini_batch",
    "proximal_point",
}  # fmt: skip


@pytest.mark.parametrize(
    "operator",
    [
        pytest.param(name, marks=[pytest.mark.slow] * (name in ELSEWHERE))
        for name in operator_names()
    ],
    indirect=True,
)
def test_exports_for_any_batch_and_number_of_tokens(operator):
    exports(Causal(operator) if operator.causal else Called(operator))


class Matrix(Called):
    def forward(self, q, k, v):
        return self.operator.matrix(q, k)


FEW = 2, (300, 3, 9)


def compiles_for_fewer_keys(layer, backend):
    torch.compiler.reset()
    compiled = torch.compile(layer, backend=backend, dynamic=True)
    for n in (28, 3, 9):
        inputs = qkv(n)
        pairs = zip(*(outputs_and_gradients(f, inputs) for f in (compiled, layer)), strict=True)
        for found, expected in pairs:
            atol = 1e-11 * float(expected.detach().abs().max())
            assert_close(found, expected, atol=atol, rtol=0)


@pytest.mark.parametrize("operator", CHOOSING, indirect=True)
def test_one_program_serves_fewer_keys_than_are_chosen(operator):
    """Causal rows have the fewest; the slow test below has every way to call them."""
    exports(Matrix(operator), *FEW)
    layer = Causal(operator) if operator.causal else Called(operator)
    exports(layer, *FEW)
    compiles_for_fewer_keys(layer, "aot_eager" if operator.causal else "eager")


@pytest.mark.slow
@pytest.mark.parametrize("operator", CHOOSING, indirect=True)
@pytest.mark.parametrize("make", [Called, Matrix])
def test_one_program_of_every_call_serves_fewer_keys(operator, make):
    exports(make(operator), *FEW)
    compiles_for_fewer_keys(make(operator), "aot_eager")


@pytest.mark.slow
@pytest.mark.parametrize("name", operator_names())
def test_trains_in_distributed_data_parallel(name):
    """Which waits for the gradient of every parameter, and says so in the next step."""
    process_group = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=process_group, rank=0, world_size=1)
    try:
        torch.manual_seed(0)
        model = VisionTransformer(8, 2, 1, 5, 12, 2, HEADS, operator=name)
        model = DistributedDataParallel(model)
        for _ in range(3):
            model(torch.randn(2, 1, 8, 8)).square().sum().backward()
    finally:
        torch.distributed.destroy_process_group()
