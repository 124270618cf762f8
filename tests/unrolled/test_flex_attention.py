"""Attention by FlexAttention: the numbers of the layers, and when it is taken."""

import pytest
import torch
from torch.testing import assert_close

from twinsolve.unrolled import ALiBi, Call, CrissCross, Local
from twinsolve.unrolled.attention import flex_serves, map_query_blocks

from .draws import OnGpu, tokens

LAYERS = {
    "window of a sequence": lambda: Local(3, scale=0.3),
    "window with class tokens": lambda: Local(1, width=5, n_class_tokens=1),
    "criss-cross": lambda: CrissCross(5, n_class_tokens=1),
    "alibi": lambda: ALiBi(3),
}


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("n_queries", [26, 17])
@torch.no_grad()  # it has no backward pass on the CPU
def test_the_numbers_are_those_of_blocks(monkeypatch, name, is_causal, n_queries):
    layer = LAYERS[name]().double()
    q, k, v = (tokens(2, 3, 26, 8, seed=seed) for seed in range(3))
    q = q[..., -n_queries:, :]
    expected = layer(q, k, v, is_causal=is_causal)
    for module in ("local", "alibi"):
        path = f"twinsolve.unrolled.kernel_smoothing.{module}"
        monkeypatch.setattr(f"{path}.flex_serves", lambda call: True)
        monkeypatch.setattr(f"{path}.map_query_blocks", None)
    assert_close(layer(q, k, v, is_causal=is_causal), expected, atol=1e-6, rtol=0)  # in float32


def test_it_is_taken_in_compiled_programs_where_it_is_faster(monkeypatch):
    x = torch.zeros(1, 2, 1024, 8, dtype=torch.bfloat16).as_subclass(OnGpu)
    assert not flex_serves(Call(x, x, x))
    monkeypatch.setattr("torch.compiler.is_dynamo_compiling", lambda: True)
    assert flex_serves(Call(x, x, x, is_causal=True))
    for other in (x[0], x[..., 1:, :], x.float(), x.as_subclass(torch.Tensor)):
        assert not flex_serves(Call(other, other, other))
    assert not flex_serves(Call(x, x, x, mask=x[0, 0, :, :1].mT))


@pytest.mark.parametrize(("n", "numbers", "sizes"), [
    (5000, None, [5000]), (9000, None, [3728, 3728, 1544]),
    (9000, 2**14, [4096, 4096, 808]), (600, 2**20, [256, 256, 88]),
])  # fmt: skip
def test_blocks_off_the_cpu_hold_as_many_numbers(n, numbers, sizes):
    found = []

    def block(rows, start):
        assert start == sum(found)
        found.append(rows.shape[-2])
        return rows

    map_query_blocks(block, torch.empty(1, 2, n, 8, device="meta"), numbers=numbers)
    assert found == sizes
