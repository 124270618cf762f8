"""The audit finds a planted fault of every kind, and what is known of other people's networks."""

import contextlib
import functools
import io
import warnings
from functools import partialmethod

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from twinsolve import audit
from twinsolve.twins.audit import LAWS, Convention, draw_weights

from .test_functions import LAWS as OF_FUNCTIONS
from .test_functions import adapt_delta

INPUTS = torch.randn(2, 21, 6, generator=torch.Generator().manual_seed(0))


class Square(torch.autograd.Function):
    """The square, whose backward pass forgets that it depends on the input."""

    @staticmethod
    def forward(ctx, x):
        ctx.x = x.detach()
        return x**2

    @staticmethod
    def backward(ctx, gradient):
        return 2 * ctx.x * gradient


class Recurrence(nn.Module):
    """A gated recurrence over the tokens that the mask shows, with a fault by its name."""

    def __init__(self, fault: str = "") -> None:
        super().__init__()
        self.fault = fault
        torch.manual_seed(0)
        self.gate, self.value = nn.Linear(6, 6), nn.Linear(6, 6)
        self.kept = torch.zeros(2, 6)

    def forward(self, x: Tensor, mask: Tensor | None = None, state: Tensor | None = None):
        fault, n = self.fault, x.shape[1]
        if fault == "arguments":
            x.mul_(1.5)
        if fault == "later tokens":
            x = x + x.mean(1, keepdim=True)
        gate, value = self.gate(x).sigmoid(), self.value(x)
        if fault == "gradients":
            gate = gate.detach()
        if fault == "gradients under strong decay":
            gate = torch.where(gate < 0.01, gate.detach(), gate)
        if fault == "finite gradients under strong decay":
            gate = torch.where(gate < 0.01, (gate - gate).sqrt(), gate)
        if fault == "second derivatives":
            value = value + Square.apply(value)
        seen = torch.ones(x.shape[:2]) if mask is None else mask
        if fault == "right padding":
            gate = gate * (1 + (seen[:, -1:, None] == 0))
        if fault == "left padding":
            gate = gate * (1 + (seen[:, :1, None] == 0))
        if fault == "content of padding" or (fault == "decoding of left padded" and state is None):
            seen = torch.ones_like(seen)
        first = fault == "pieces of left padded" and n > 1
        seen = (seen[:, :n] if first else seen[:, -n:])[..., None].to(x.dtype)
        hidden = torch.zeros_like(value[:, 0]) if state is None else state
        if fault == "state of the caller" and state is not None:
            state.mul_(0.9)
        if fault == "gradients in pieces":
            hidden = hidden.detach()
        if fault == "padding in later pieces" and state is not None:
            seen = torch.ones_like(seen)
        if fault == "gradients with padding" and mask is not None:
            gate = gate.detach()
        if fault in ("decoding", "copied cache") and state is not None:
            hidden = 0.5 * hidden if fault == "decoding" else self.kept.to(x)
        if fault == "prefill in pieces" and n > 1:
            hidden = torch.zeros_like(hidden)
        if fault == "decoding after prefill" and n == 1 and state is not None:
            hidden = hidden * (1 + (state.abs().sum() > 3))
        outputs = []
        for t in range(n):
            step = gate[:, t] * hidden + value[:, t]
            hidden = seen[:, t] * step + (1 - seen[:, t]) * hidden
            if fault == "long inputs" and x.dtype == torch.float32:
                hidden = hidden.bfloat16().float()
            outputs.append(hidden)
        self.kept = hidden.detach()
        return self._spoil(torch.stack(outputs, 1)), hidden

    def _spoil(self, output: Tensor) -> Tensor:
        if self.fault == "determinism":
            return output + torch.rand_like(output)
        if self.fault == "rows of a batch":
            return output - output.mean(0)
        if self.fault == "shorter inputs":
            return output / output.shape[1]
        if self.fault == "training mode" and self.training:
            return 1.1 * output
        if self.fault == "half precision" and output.dtype == torch.bfloat16:
            return 1.5 * output
        return output


class Unknown(nn.Module):
    """A network whose state has a name of its own."""

    def forward(self, x, past=None):
        return x, x[:, -1]


class Saturated(nn.Module):
    """A network whose slopes are less than what a difference of outputs can show."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(6))

    def forward(self, x):
        return 1 + torch.exp(self.weight * x - 50)


OF_RECURRENCES = (
    "determinism", "arguments", "rows of a batch", "later tokens", "shorter inputs", "decoding",
    "decoding after prefill", "prefill in pieces", "left padding", "right padding",
    "content of padding", "decoding of left padded", "pieces of left padded", "copied cache",
    "state of the caller",
    "training mode", "half precision", "gradients", "gradients in pieces", "second derivatives",
    "long inputs", "padding in later pieces", "gradients with padding",
    "finite gradients under strong decay", "gradients under strong decay",
)  # fmt: skip


def test_right_recurrence_breaks_nothing():
    report = audit(Recurrence(), INPUTS)
    assert report, report
    held = {row.law for row in report.findings if row.verdict == "holds"}
    assert held == {*OF_RECURRENCES, "right paddings that differ"}


@pytest.mark.parametrize("fault", OF_RECURRENCES)
def test_planted_fault_breaks_its_law(fault):
    report = audit(Recurrence(fault), INPUTS, laws=(fault,))
    assert not report
    (row,) = report.findings
    assert row.verdict == "broken"
    assert row.error > row.tolerance


@pytest.mark.parametrize(
    ("network", "inputs"),
    [
        (nn.GRU(6, 6, batch_first=True), 1e5 * INPUTS + 100),
        (Saturated(), INPUTS),
        (nn.LSTM(6, 6, batch_first=True).bfloat16(), INPUTS.bfloat16()),
        (nn.GRU(6, 6, batch_first=True).double(), INPUTS.double().repeat(2, 1, 1)),
        (nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(21)), INPUTS),
    ],
    ids=["large", "saturated", "bfloat16", "float64", "batch norm"],
)
def test_right_networks_of_torch_break_nothing(network, inputs):
    report = audit(network, inputs)
    assert report, report


class Decoder(nn.Module):
    """A layer of torch with the usual mask, which is float32 whatever the layer is turned to."""

    def __init__(self, how: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, dropout=0.0)
        self.how, self.in_proj, self.mask = how, nn.Linear(16, 48), self.make_mask(48)

    def make_mask(self, n: int) -> Tensor:
        return nn.Transformer.generate_square_subsequent_mask(n)

    def forward(self, x: Tensor) -> Tensor:
        n = x.shape[1]
        if self.how in ("held", "made"):
            mask = self.make_mask(n) if self.how == "made" else self.mask[:n, :n]
            return self.layer(x, src_mask=mask)
        q, k, v = self.in_proj(x).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
        mask = (self.make_mask(n),) if self.how == "by place" else ()
        named = {} if mask else {"attn_mask": self.make_mask(n)}
        out = nn.functional.scaled_dot_product_attention(q, k, v, *mask, **named)
        return out.transpose(1, 2).flatten(2)


@pytest.mark.parametrize("how", ["held", "made", "by place", "by name"])
def test_decoder_is_not_blamed_for_how_a_kernel_reads_its_mask(how):
    report = audit(Decoder(how), torch.randn(2, 21, 16), causal=True)
    assert report
    by_law = {row.law: row for row in report.findings}
    assert by_law["gradients"].error < 1e-5
    assert by_law["later tokens"].tolerance < 1e-4  # float32 is near float64


def test_output_of_nan_is_broken():
    assert not audit(lambda x: x * torch.nan, INPUTS, laws=("determinism",))


def test_weights_bite_at_both_ends_of_gates_and_leave_what_is_frozen():
    network = nn.Module()
    network.A_log = nn.Parameter(torch.full((200,), 9.0))
    network.weight = nn.Parameter(torch.zeros(50, 400))
    network.sines = nn.Parameter(torch.ones(4), requires_grad=False)
    draw_weights(network)
    moved, kept = network.A_log[::2], network.A_log[1::2]
    assert abs(moved.mean()) < 0.2
    assert 0.4 < moved.std() < 0.6
    assert (kept == 9).all()
    assert abs(network.weight.std() - 400**-0.5) < 0.01 * 400**-0.5
    assert (network.sines == 1).all()


def test_script_calls_the_network_as_the_convention_says():
    names = Convention("state", "mask", "at", mask_hides=True, first_position=1)

    class Positioned(Recurrence):
        def forward(self, x, mask=None, at=None, state=None):
            mask = None if mask is None else (~mask).float()
            output, state = super().forward(x, mask, state)
            return (output if at is None else at[..., None] * output), state

    (row,) = audit(Positioned(), INPUTS, convention=names, laws=("left padding",)).findings
    assert row.verdict == "broken"
    assert "'mask': None if mask is None else mask == 0" in row.details["script"]
    assert "'at': None if positions is None else positions + 1" in row.details["script"]


def test_mask_of_booleans_that_show_is_data():
    class Boolean(Recurrence):
        def forward(self, x, mask=None, state=None):
            assert mask is None or mask.dtype == torch.bool
            return super().forward(x, None if mask is None else mask.float(), state)

    laws = ("left padding", "right padding", "content of padding")
    report = audit(
        Boolean(), INPUTS, convention=Convention(mask="mask", mask_shows=True), laws=laws
    )
    assert [row.verdict for row in report.findings] == ["holds"] * 3


def test_report_prints_and_becomes_a_table():
    report = audit(Recurrence("rows of a batch"), INPUTS, laws=("rows of a batch", "later tokens"))
    assert [row.law for row in report.broken] == ["rows of a batch"]
    assert list(report.to_frame().verdict) == ["broken", "holds"]
    assert str(report).startswith(
        "Recurrence: 1 holds, 1 broken\n  rows of a batch: broken, error "
    )


def test_own_weights_are_left_alone():
    network = Recurrence()
    before = network.gate.weight.clone()
    audit(network, INPUTS, laws=("rows of a batch",))
    assert torch.equal(network.gate.weight, before)
    assert network.training


def test_error_of_a_network_is_a_refusal():
    class Alone(nn.Module):
        def forward(self, x):
            if len(x) == 1:
                raise ValueError("takes no single row")
            return x

    report = audit(Alone(), INPUTS, laws=("rows of a batch",))
    assert report
    assert report.findings[0].verdict == "refused"
    assert report.findings[0].why == "ValueError: takes no single row"


def test_function_without_state_is_causal_only_by_promise():
    rows = audit(lambda x: x - x.mean(1, keepdim=True), INPUTS).findings
    assert {row.law: row.verdict for row in rows}["later tokens"] == "not judged"
    (row,) = audit(
        lambda x: x - x.mean(1, keepdim=True), INPUTS, causal=True, laws=("later tokens",)
    ).findings
    assert row.verdict == "broken"


@pytest.mark.parametrize(
    ("network", "given", "message"),
    [
        ("nosuch", {}, "has no architecture 'nosuch'"),
        ("nosuch:net", {}, "cannot find 'nosuch:net'"),
        (Recurrence(), {}, "give inputs="),
        (Unknown(), {"inputs": INPUTS}, "takes no argument that is known as a state"),
        (Recurrence(), {"inputs": INPUTS[:1]}, "must have two rows or more"),
        (Recurrence(), {"inputs": INPUTS[:, :11]}, "must have 12 tokens or more, got 11"),
        (lambda x: {"y": x}, {"inputs": INPUTS}, "TypeError: the output, dict, is no tensor"),
        (lambda x: x.nothing, {"inputs": INPUTS}, "cannot be called with inputs alone: Attrib"),
        (Recurrence(), {"laws": ("no law",)}, "no law 'no law'; there are: determinism"),
        (Recurrence(), {"device": "nowhere"}, "there is no device 'nowhere'"),
    ],
)
def test_mistakes_get_clear_errors(network, given, message):
    with pytest.raises(ValueError, match=message):
        audit(network, **given)


transformers = pytest.importorskip("transformers")
PINNED = pytest.mark.skipif(transformers.__version__ != "5.24.0", reason="faults of this version")

KNOWN = {
    "rwkv": ("decoding", "generation", "left padding"),
    "minimax": ("decoding", "decoding of left padded", "reordered cache"),
    "jamba": ("prefill in pieces",),
    "mamba": ("prefill in pieces", "padding in later pieces", "generation from cache"),
    "zamba2": ("decoding with positions", "decoding after prefill"),
    "gpt_neo": ("static cache",),
    "bamba": ("decoding", "decoding after prefill without positions"),
    "mamba2": ("generation from cache",),
    "bart": ("left padding", "generation of left padded"),
    "roberta": ("generation",),
    "camembert": ("generation",),  # its tokens agree, their scores do not
    "moshi": ("decoding with positions",),
    "reformer": ("generation of left padded",),
    "NystromformerModel": ("content of padding",),
    "ConvBertModel": ("right padding",),
    "inkling_text": ("static cache",),  # the counter of the cache moves under the network
    "FSMTForConditionalGeneration": ("later tokens",),
}


@PINNED
@pytest.mark.parametrize("name", KNOWN)
def test_known_faults_of_transformers_are_found(name):
    report = audit(name, laws=KNOWN[name])
    assert [row.law for row in report.broken] == [x.name for x in LAWS if x.name in KNOWN[name]]
    for row in report.broken:
        assert_is_short(row)


SOUND = (
    "gpt2", "llama", "mixtral", "BertModel", "ViTModel", "qwen3_next", "falcon_h1",
    "T5ForConditionalGeneration", "gemma3_text", "LlavaForConditionalGeneration",
)  # fmt: skip
STATES = ("qwen3_next", "falcon_h1")  # which go on where their attention parts packed texts
NO_DERIVATIVES = ("falcon_h1", "gemma3_text", "LlavaForConditionalGeneration")  # as of others above


@functools.cache
def audit_once(name):
    laws = tuple(law.name for law in LAWS if not law.grad) if name in NO_DERIVATIVES else ()
    return audit(name, laws=laws)


@PINNED
@pytest.mark.parametrize("name", SOUND)
def test_sound_families_break_nothing(name):
    report = audit_once(name)
    assert [row.law for row in report.broken] == ["packed texts"] * (name in STATES), report
    assert sum(row.verdict == "holds" for row in report.findings) >= 8


@PINNED
def test_no_law_tolerates_a_hundred_times_what_sound_networks_need():
    """The worst of all, and rounding that any may have: the last digit of float32, or of sums."""
    torch.manual_seed(0)
    reports = [
        *map(audit_once, SOUND),
        audit(nn.GRU(6, 6, 2, batch_first=True), INPUTS),
        audit("BartForConditionalGeneration", laws=("content of source padding",)),
        audit(Recurrence(), INPUTS),
        audit(adapt_delta(), torch.randn(2, 21, adapt_delta().width)),
    ]
    rows = [row for report in reports for row in report.findings if row.tolerance]
    exact = {law.name for law in LAWS if law.exact}
    needed = {}
    for row in rows:
        noise = row.error + (1e-10 if row.law in exact else 1.2e-7)
        needed[row.law] = max(needed.get(row.law, 0), noise / row.tolerance)
    assert {law: share for law, share in needed.items() if share < 0.01} == {}
    near = [row for row in rows if row.error > row.tolerance / 2]
    assert {row.law for row in near} <= {"packed texts"}, near
    assert len(needed) > 30


@PINNED
@pytest.mark.parametrize(
    ("name", "law", "verdict"),
    [
        ("RoFormerModel", "left padding", "holds"),  # rotates by a table that takes no gradient
        ("MPNetModel", "left padding", "holds"),  # first position 2, whatever the padding id
        ("mamba", "decoding of left padded", "holds"),  # the mask is that of the call
        ("mistral", "decoding of right padded", "not judged"),  # its window counts padding
        ("qwen3_next", "decoding of right padded", "not judged"),  # its states take it in
        ("qwen3", "decoding of right padded", "holds"),
        ("gpt_neo", "decoding of right padded", "not judged"),  # a window, and all keys
        ("mamba", "packed texts", "not judged"),  # takes no positions
        ("opt", "packed texts", "not judged"),  # takes them as features of tokens
        ("llama", "packed texts", "holds"),
        ("LongformerModel", "gradients", "not judged"),  # NaN in float64 alone
        ("T5EncoderModel", "second derivatives", "not judged"),  # kinks, and float32 inside
    ],
)
def test_sound_network_is_not_accused(name, law, verdict):
    (row,) = audit(name, laws=(law,)).findings
    assert row.verdict == verdict, row


def test_wrong_head_is_named(monkeypatch):
    from transformers.models.llama.modeling_llama import ALL_ATTENTION_FUNCTIONS as KNOWN_ONES

    right = KNOWN_ONES["sdpa"]

    def wrong(module, query, *args, **given):
        output, weights = right(module, query, *args, **given)
        if module.layer_idx == 1 and query.shape[2] == 1:
            output[:, :, 2] *= 1.1
        return output, weights

    monkeypatch.setitem(KNOWN_ONES._global_mapping, "sdpa", wrong)
    (row,) = audit("llama", laws=("decoding after prefill",)).findings
    assert row.where == "token 10, layer 1, head 2"


def test_tiny_networks_predict_more_than_their_last_token():
    from twinsolve.twins.audit.architectures import find_architecture

    network = find_architecture("gpt2").build()
    assert network.lm_head.weight is not network.transformer.wte.weight
    assert find_architecture("gemma2").settings["attn_logit_softcapping"] == 2
    assert len(set(find_architecture("gemma3_text").settings["layer_types"])) == 2


def test_folder_is_audited_at_its_own_weights(tmp_path):
    from twinsolve.twins.audit.architectures import find_architecture

    network = find_architecture("gpt2").build()
    network.save_pretrained(tmp_path)
    (row,) = audit(str(tmp_path), laws=("rows of a batch",), weights="own").findings
    assert row.verdict == "holds"
    assert row.error < 1e-5


def test_folder_without_architecture_is_refused(tmp_path):
    transformers.GPT2Config().save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="names no architecture"):
        audit(str(tmp_path))


def assert_is_short(row):
    assert row.details["script"].count("\n") <= 60, row.law


def run_script(row):
    """The error that the program of a broken law prints."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec(compile(row.details["script"], "script.py", "exec"), {})
    return float(printed.getvalue().split()[-1])


def _drop_always(self, x):
    return torch.dropout(x, self.p, True)


def _tile(x, n):
    return x.repeat(1, n, 1, 1)


def _swap(self, update, keys, values, *args, **given):
    return update(self, values, keys, *args, **given)


def _scale(function):
    def scaled(module, *args, **given):
        output, weights = function(module, *args, **given)
        return 1.01 * output, weights

    return scaled


def _shift_by_chunk(function):
    def shifted(*args, chunk_size, **given):
        output, state = function(*args, chunk_size=chunk_size, **given)
        return output + 0.01 * chunk_size, state

    return shifted


def _sort_masks_of_steps(function):
    """Takes padding to be on the left, wherever it is, for single tokens."""

    def sort(*, inputs_embeds, attention_mask, **given):
        if attention_mask is not None and inputs_embeds.shape[1] == 1:
            attention_mask = attention_mask.sort(1).values
        return function(inputs_embeds=inputs_embeds, attention_mask=attention_mask, **given)

    return sort


def _keep_first_text(forward):
    """Reads the first text of each size, whatever the encoder gives later."""

    def read(self, *args, key_value_states=None, **given):
        if key_value_states is not None:
            first = self.__dict__.setdefault("first", {})
            key_value_states = first.setdefault(key_value_states.shape, key_value_states)
        return forward(self, *args, key_value_states=key_value_states, **given)

    return read


OF_SOURCES = (
    "padded source", "decoding from padded source", "generation from padded source",
    "content of source padding", "sources by turns",
)  # fmt: skip


OF_TRANSFORMERS = (
    "dropout in eval", "cropped cache", "without cache", "grouped heads",
    "attention implementations", "chunk sizes", "flex attention", "decoding of right padded",
    *OF_SOURCES,
)  # fmt: skip


def plant(monkeypatch, law):
    """Plant a fault in transformers that breaks this law; return the architecture that has it."""
    from transformers import cache_utils
    from transformers.models.bart import modeling_bart
    from transformers.models.llama import modeling_llama
    from transformers.models.mamba2 import modeling_mamba2

    if law == "dropout in eval":
        monkeypatch.setattr(nn.Dropout, "forward", _drop_always)
        return "gpt2"
    if law in OF_SOURCES:
        attention = modeling_bart.BartAttention
        if law == "sources by turns":
            monkeypatch.setattr(attention, "forward", _keep_first_text(attention.forward))
        else:
            monkeypatch.setattr(modeling_bart, "create_bidirectional_mask", lambda **given: None)
        return "BartForConditionalGeneration"
    if law == "decoding of right padded":
        sort = _sort_masks_of_steps(modeling_llama.create_causal_mask)
        monkeypatch.setattr(modeling_llama, "create_causal_mask", sort)
    if law == "cropped cache":
        monkeypatch.setattr(cache_utils.DynamicCache, "crop", lambda self, n: None)
    if law == "without cache":
        update = cache_utils.DynamicLayer.update
        swapped = partialmethod(_swap, update)
        monkeypatch.setattr(cache_utils.DynamicLayer, "update", swapped)
    if law == "grouped heads":
        monkeypatch.setattr(modeling_llama, "repeat_kv", _tile)
        monkeypatch.setattr(modeling_llama.LlamaPreTrainedModel, "_supports_sdpa", False)
    if law in ("attention implementations", "flex attention"):
        known = modeling_llama.ALL_ATTENTION_FUNCTIONS
        name = "sdpa" if law == "attention implementations" else "flex_attention"
        monkeypatch.setitem(known._global_mapping, name, _scale(known[name]))
    if law == "chunk sizes":
        scan = modeling_mamba2.mamba2_chunk_scan
        monkeypatch.setattr(modeling_mamba2, "mamba2_chunk_scan", _shift_by_chunk(scan))
        return "mamba2"
    return "llama"


@pytest.mark.parametrize("law", OF_TRANSFORMERS)
def test_fault_planted_in_transformers_breaks_its_law(monkeypatch, law):
    name = plant(monkeypatch, law)
    (row,) = audit(name, laws=(law,)).broken
    assert row.law == law
    assert_is_short(row)
    np.testing.assert_allclose(run_script(row), row.error, rtol=1e-3)


def test_every_law_is_broken_by_a_fault_above():
    planted = {*OF_RECURRENCES, *OF_TRANSFORMERS, *OF_FUNCTIONS}
    planted |= {"packed texts", "left paddings that differ", "right paddings that differ"}  # misses
    planted |= {law for laws in KNOWN.values() for law in laws}
    assert planted == {law.name for law in LAWS}


@PINNED
@pytest.mark.parametrize(
    ("name", "law"),
    [("mamba", "prefill in pieces"), ("minimax", "decoding of left padded"),
     ("rwkv", "generation"), ("recurrent_gemma", "prefill in pieces"), ("roberta", "generation"),
     ("YosoModel", "second derivatives")],
)  # fmt: skip
def test_script_shows_the_error_of_the_report(name, law):
    (row,) = audit(name, laws=(law,)).findings
    assert "twinsolve" not in row.details["script"]
    assert_is_short(row)
    np.testing.assert_allclose(run_script(row), row.error, rtol=1e-3)


def test_convention_of_an_own_network_is_data():
    class Renamed(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Recurrence()

        def forward(self, x, past=None, *, ready=False):
            assert ready
            return self.inner(x, state=past)

    names = Convention(cache="past", asks=("ready",))
    report = audit(Renamed(), INPUTS, convention=names)
    assert report, report
    assert "decoding" in {row.law for row in report.findings if row.verdict == "holds"}
