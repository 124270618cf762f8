"""Every operator holds its laws; what no law can say of one stands here."""

import copy
import inspect
import pickle
import warnings

import pytest
import torch
from torch.testing import assert_close

import twinsolve.unrolled as layers
from twinsolve.twins.laws import trials
from twinsolve.twins.laws.draws import masks_of
from twinsolve.twins.laws.masks import NO_MASKS
from twinsolve.twins.laws.subject import map_tensors
from twinsolve.unrolled import Attention, Gaussian, Operator, Softmax, SparseCoding
from twinsolve.unrolled.attention import SoftmaxSmoother
from twinsolve.unrolled.block_size import small_blocks

from .operator_calls import Called, qkv
from .operator_cases import OPERATORS, make, off_zero, subject_of

NAMES = pytest.mark.parametrize("name", OPERATORS, ids=lambda name: name.replace(" ", "-"))
# All others are held to the same laws by their twins.
WRAPPERS = [x for x in OPERATORS if hasattr(make(x), "base") and "solved" not in x]


def call(operator, q, k, v, **masks):
    return Called(operator)(q, k, v, **masks)


@pytest.mark.parametrize("name", WRAPPERS)
def test_laws_hold(name):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*(codes are not proved|was not reached)")
        for trial in trials(subject_of(name)):
            found = trial.measure()
            assert found.holds, f"{trial.name} in {trial.dtype}: {found}"


@NAMES
def test_parameters_reset_print_and_round_trip(name):
    """Parameters come back by `reset_parameters`, also after construction without memory."""
    operator = make(name)
    torch.manual_seed(0)
    operator.reset_parameters()
    initial = copy.deepcopy(operator.state_dict())
    with torch.no_grad():
        for parameter in operator.parameters():
            parameter.add_(0.3)
    changed, expected = pickle.loads(pickle.dumps(operator)), call(operator, *qkv())
    empty = copy.deepcopy(operator).to("meta").to_empty(device="cpu")
    for each in (operator, empty):
        torch.manual_seed(0)
        each.reset_parameters()
        for key, value in each.state_dict().items():
            assert_close(value, initial[key], atol=1e-12, rtol=0)
    operator.load_state_dict(changed.state_dict())
    assert_close(call(operator, *qkv()), expected, atol=0, rtol=0)
    assert repr(operator)


@NAMES
def test_shapes_without_values(name):
    """On the meta device, which also finds tensors that a layer makes elsewhere."""
    subject = subject_of(name)
    layer, context = copy.deepcopy(subject.layer).to("meta"), map_tensors(subject.context, on_meta)
    *_, hardest = masks_of(subject)
    for masks in (NO_MASKS, hardest):
        inputs = [on_meta("", x).requires_grad_() for x in subject.inputs]
        given = {name: on_meta(name, x) for name, x in masks.given.items()}
        if layer.data_dependent:
            with pytest.raises(RuntimeError, match="cannot run on the meta device, as"):
                layer(*inputs, context=context, **given)
            continue
        with small_blocks(8):
            out = layer(*inputs, context=context, **given)
            gradients = torch.autograd.grad(out.sum(), inputs, materialize_grads=True)
        assert out.is_meta
        assert out.shape == (*inputs[0].shape[:-1], inputs[2].shape[-1])
        assert [g.shape for g in gradients] == [x.shape for x in inputs]


def on_meta(_, x):
    return x.to("meta") if isinstance(x, torch.Tensor) else x


@pytest.mark.parametrize("name", [x for x in OPERATORS if make(x).data_dependent])
def test_what_depends_on_the_data_cannot_be_exported(name):
    """Others are exported by name in test_compilation.py."""
    with pytest.raises(RuntimeError, match="cannot be exported, as"):
        torch.export.export(Called(make(name)), qkv())


@pytest.mark.slow
@NAMES
def test_compiles_to_one_graph(name):
    torch.compiler.reset()  # after eight layers of a class it would give up
    operator = make(name)
    layer = Called(operator)
    compiled = torch.compile(layer, fullgraph=True)
    if operator.data_dependent:
        with pytest.raises(torch._dynamo.exc.Unsupported, match="depends on the data"):
            compiled(*qkv())
        return
    assert_close(compiled(*qkv()), layer(*qkv()), atol=1e-10, rtol=0)


def wrappers():
    """Every exported class that wraps an operator, with what it needs beside its base."""
    arguments = {"ReAttention": (3,), "Biased": (torch.zeros(4, 4),)}
    classes = [c for c in vars(layers).values() if isinstance(c, type)]
    of_base = [c for c in classes if "base" in inspect.signature(c.__init__).parameters]
    found = {c.__name__: lambda base, c=c: c(base, *arguments.get(c.__name__, ())) for c in of_base}
    return found | {"Attention": lambda base: Attention(6, 3, operator=base)}


@pytest.mark.parametrize("name", wrappers())
def test_wrapping_leaves_the_base_as_it_is(name):
    base = Gaussian(0.9, num_heads=3, learnable=True)
    if name == "Solved":
        base = SparseCoding(0.5, num_heads=3, learnable=True)
    off_zero(base)
    moved = copy.deepcopy(base.state_dict())
    wrapper = wrappers()[name](base)
    for key, value in base.state_dict().items():
        assert_close(value, moved[key], atol=0, rtol=0)
    wrapper.reset_parameters()
    assert any((base.state_dict()[key] != moved[key]).any() for key in moved)


def test_the_base_class_leaves_the_work_to_subclasses():
    with pytest.raises(NotImplementedError):
        Operator()(*qkv())
    with pytest.raises(NotImplementedError):
        Operator().matrix(*qkv()[:2])


@pytest.mark.parametrize("name", ["sparse coding", "locally linear"])
def test_the_lowest_number_hides_where_biases_mean_nothing(name):
    q, k, v = qkv()
    lowest = torch.zeros(9, 9).masked_fill(torch.eye(9, dtype=torch.bool), torch.finfo().min)
    found = make(name)(q, k, v, mask=lowest)
    assert_close(found, make(name)(q, k, v, mask=~torch.eye(9, dtype=torch.bool)))


def test_a_smoother_that_says_its_logits_alone_attends_by_their_softmax():
    class Scaled(SoftmaxSmoother):
        def logits(self, call):
            return call.q.shape[-1] ** -0.5 * call.q @ call.k.mT

    found, expected = (layer(*qkv(), is_causal=True) for layer in (Scaled(), Softmax()))
    assert_close(found, expected, rtol=0, atol=1e-14)  # sums of 9 weights of a softmax
