"""Faults and sound layers of the kinds that an audit takes for one another."""

import pytest
import torch
from torch import Tensor, nn

from twinsolve import audit
from twinsolve.twins.audit import Convention

INPUTS = torch.randn(2, 21, 8, generator=torch.Generator().manual_seed(0))


def verdicts(network, *laws, **given):
    """Verdicts by law, of a network at its own weights."""
    report = audit(network, INPUTS, laws=laws, weights="own", **given)
    return {row.law: row.verdict for row in report.findings}


class Attention(nn.Module):
    """Causal attention over cached keys, with a mask that is true or one where a key is seen."""

    window = 99
    keeps_texts_apart = False

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.qkv = nn.Linear(8, 24)

    def see(self, x: Tensor, mask: Tensor | None, n: int) -> Tensor:
        query, key = torch.arange(n)[n - x.shape[1] :, None], torch.arange(n)
        seen = (key <= query) & (key > query - self.window)
        return seen if mask is None else seen & (mask[:, None, :n] != 0)

    def forward(self, x, mask=None, positions=None, state=None):
        q, k, v = self.qkv(x).chunk(3, -1)
        if state is not None:
            k, v = torch.cat([state[0], k], 1), torch.cat([state[1], v], 1)
        seen = self.see(x, mask, k.shape[1])
        if positions is not None and state is None and self.keeps_texts_apart:
            text = (positions.diff(dim=1, prepend=positions[:, :1] - 1) != 1).cumsum(1)
            seen = seen & self.is_same(text[:, :, None], text[:, None])
        logits = (q @ k.mT / 8**0.5).masked_fill(~seen, -1e9)
        return logits.softmax(-1) @ v, (k, v)

    def is_same(self, one, other):
        return one == other


class Window(Attention):
    window = 6


class NewPiecesUnmasked(Attention):
    """The mask is read in the first piece; later pieces get what it said of that."""

    def see(self, x, mask, n):
        if mask is not None and n > x.shape[1]:
            mask = mask.clone()
            mask[:, n - x.shape[1] :] = 1
        return super().see(x, mask, n)


@pytest.mark.parametrize(
    ("network", "verdict"),
    [(Attention(), "holds"), (Window(), "holds"), (NewPiecesUnmasked(), "broken")],
    ids=lambda x: x if isinstance(x, str) else type(x).__name__,
)
def test_padding_that_begins_in_a_later_piece(network, verdict):
    law = "padding in later pieces"
    assert verdicts(network, law) == {law: verdict}


def test_window_of_slots_is_no_fault_of_right_padding():
    law = "decoding of right padded"
    assert verdicts(Window(), law) == {law: "not judged"}
    assert verdicts(Attention(), law) == {law: "holds"}


class Apart(Attention):
    keeps_texts_apart = True


class ApartFromFirst(Apart):
    """Only the first text is told from the others."""

    def is_same(self, one, other):
        return (one > 0) == (other > 0)


class ApartButShifted(Apart):
    """Every token also reads the one before, of whichever text."""

    def forward(self, x, mask=None, positions=None, state=None):
        return super().forward(
            x + x.roll(1, 1) * (torch.arange(x.shape[1]) > 0)[:, None], mask, positions
        )


class Embedded(Attention):
    """Positions are features of tokens; its texts are one, or kept apart."""

    def __init__(self, *, apart: bool = False) -> None:
        super().__init__()
        self.keeps_texts_apart = apart
        self.table = nn.Embedding(24, 8)

    def forward(self, x, mask=None, positions=None, state=None):
        start = 0 if state is None else state[0].shape[1]
        at = start + torch.arange(x.shape[1]) if positions is None else positions
        return super().forward(x + self.table(at), mask, positions, state)


class Scaled(Attention):
    """Outputs feel their own positions alone."""

    def forward(self, x, mask=None, positions=None, state=None):
        output, state = super().forward(x, mask, None, state)
        return output if positions is None else output * (1 + positions[..., None]), state


class Rotated(Attention):
    """Logits fall with distance, of whichever text."""

    def forward(self, x, mask=None, positions=None):
        q, k, v = self.qkv(x).chunk(3, -1)
        at = torch.arange(x.shape[1])[None] if positions is None else positions
        distance = (at[:, :, None] - at[:, None]).abs()
        logits = (q @ k.mT / 8**0.5 - 0.1 * distance).masked_fill(
            ~self.see(x, mask, x.shape[1]), -1e9
        )
        return logits.softmax(-1) @ v


class Hybrid(Attention):
    """Attention keeps texts apart beside, before or after a state, which goes on or starts anew."""

    def __init__(self, place: str, *, by_zeros: bool = False, resets: bool = False) -> None:
        super().__init__()
        self.place, self.by_zeros, self.resets = place, by_zeros, resets

    def forward(self, x, mask=None, positions=None):
        at = torch.arange(x.shape[1]).expand(x.shape[:2]) if positions is None else positions
        first = at == 0 if self.by_zeros else at.diff(dim=1, prepend=at[:, :1] - 1) != 1
        x = self.remember(x, first) if self.place == "before" else x
        q, k, v = self.qkv(x).chunk(3, -1)
        text = first.cumsum(1)
        seen = self.see(x, mask, x.shape[1]) & (text[:, :, None] == text[:, None])
        output = (q @ k.mT).masked_fill(~seen, -1e9).softmax(-1) @ v
        output = output + self.remember(x, first) if self.place == "beside" else output
        return self.remember(output, first) if self.place == "after" else output

    def remember(self, x, first):
        state, states = torch.zeros_like(x[:, 0]), []
        for t in range(x.shape[1]):
            kept = 1 - first[:, t, None].to(x) if self.resets else 1
            state = 0.7 * kept * state + x[:, t]
            states.append(state)
        return torch.stack(states, 1)


HYBRIDS = [
    (Hybrid(place, by_zeros=by_zeros, resets=resets), "holds" if resets else "broken")
    for place in ("before", "beside", "after")
    for by_zeros in (True, False)
    for resets in (True, False)
]


@pytest.mark.parametrize(
    ("network", "verdict"),
    [(Attention(), "not judged"), (Window(), "not judged"), (Apart(), "holds"),
     (Embedded(), "not judged"), (Embedded(apart=True), "holds"), (Scaled(), "not judged"),
     (Rotated(), "not judged"), *HYBRIDS,
     (ApartFromFirst(), "broken"), (ApartButShifted(), "broken")],
    ids=lambda x: x if isinstance(x, str) else type(x).__name__,
)  # fmt: skip
def test_texts_that_positions_part(network, verdict):
    (row,) = audit(network, INPUTS, laws=("packed texts",), weights="own", causal=True).findings
    assert row.verdict == verdict
    assert verdict != "not judged" or row.why == "needs positions that part texts"


class Chosen(nn.Module):
    """Causal attention over a fixed number of the keys with the largest scores."""

    def __init__(self, seed: int, *, whole: bool, largest: bool = True) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.qkv, self.score, self.whole = nn.Linear(8, 24), nn.Linear(8, 1), whole
        self.largest = largest

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        n = x.shape[1]
        seen = torch.ones(n, n).tril() > 0
        scores = self.score(k)[..., 0][:, None] * (1 if self.largest else -1)
        among = scores.expand(-1, n, -1) if self.whole else scores.masked_fill(~seen, -1e9)
        rank = among.argsort(-1, descending=True).argsort(-1)
        kept = seen & (rank < 12) | torch.eye(n).bool()
        return (q @ k.mT).masked_fill(~kept, -1e9).softmax(-1) @ v


@pytest.mark.parametrize("largest", [True, False])
def test_choice_among_all_keys_is_seen_at_every_draw(largest):
    laws = ("later tokens", "shorter inputs")
    for seed in range(5):
        found = verdicts(Chosen(seed, whole=True, largest=largest), *laws, causal=True)
        assert found["later tokens"] == "broken", seed
        found = verdicts(Chosen(seed, whole=False, largest=largest), *laws, causal=True)
        assert set(found.values()) == {"holds"}, seed


def test_error_of_one_length_hides_no_fault_of_another():
    def divide(x):
        if x.shape[1] < 3:
            raise ValueError("too short")
        return x / x.shape[1]

    def keep(x):
        if x.shape[1] < 3:
            raise ValueError("too short")
        return 2 * x

    assert verdicts(divide, "shorter inputs", causal=True) == {"shorter inputs": "broken"}
    assert verdicts(keep, "shorter inputs", causal=True) == {"shorter inputs": "refused"}


def test_error_for_one_row_hides_no_fault_of_a_batch():
    class Batches(Attention):
        def forward(self, x, mask=None):
            if mask is not None and len(x) == 1:
                raise ValueError("takes no mask of one row")
            return super().forward(x)[0]

    assert verdicts(Batches(), "left padding") == {"left padding": "broken"}


MIXED = {
    "the first row's": lambda x: x[:1].expand_as(x),
    "another row's": lambda x: x.roll(1, 0),
    "the largest": lambda x: x.amax(dim=0, keepdim=True).expand_as(x),
    "the smallest": lambda x: x.amin(dim=0, keepdim=True).expand_as(x),
    "the smaller of two": lambda x: x.minimum(x[:1]),
    "the larger of two": lambda x: x.maximum(x[:1]),
}


class Mixed(nn.Module):
    """Attention to tokens and positions, which mixes masks or positions of its rows."""

    def __init__(self, mask=lambda x: x, positions=lambda x: x) -> None:
        super().__init__()
        self.mask, self.positions, self.inner = mask, positions, Attention()

    def forward(self, x, mask=None, positions=None):
        mask = torch.ones(x.shape[:2]) if mask is None else self.mask(mask)
        if positions is None:
            positions = torch.arange(x.shape[1]).expand(x.shape[:2])
        waves = torch.arange(8) * self.positions(positions)[..., None] / 8
        return self.inner(x + waves.cos(), mask)[0]


@pytest.mark.parametrize("mix", MIXED)
def test_masks_and_positions_of_other_rows(mix):
    """Where all rows have the same padding nothing is seen of this."""
    same = ("left padding", "right padding")
    differ = ("left paddings that differ", "right paddings that differ")
    assert set(verdicts(Mixed(), *same, *differ).values()) == {"holds"}
    for network in (Mixed(mask=MIXED[mix]), Mixed(positions=MIXED[mix])):
        assert set(verdicts(network, *same).values()) == {"holds"}
        assert verdicts(network, *differ)[differ[0]] == "broken"


class TorchAttention(nn.Module):
    """Causal attention of torch, which computes weights or not."""

    def __init__(self, *, weights: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner, self.weights = nn.MultiheadAttention(8, 2, batch_first=True), weights

    def forward(self, x, key_padding_mask=None):
        later = torch.ones(x.shape[1], x.shape[1]).triu(1) > 0
        given = {"attn_mask": later, "key_padding_mask": key_padding_mask}
        return self.inner(x, x, x, need_weights=self.weights, **given)[0]


def test_padding_that_spoils_gradients_alone():
    law = "gradients with padding"
    found = verdicts(TorchAttention(weights=True), "left padding", law)
    assert found == {"left padding": "holds", law: "broken"}
    assert verdicts(Attention(), law) == {law: "holds"}


class Chunk(nn.Module):
    """Linear attention in one chunk; gates close where their bias is low, or where it is high."""

    def __init__(self, closes, masks_first):
        super().__init__()
        torch.manual_seed(0)
        self.qkv, self.gate = nn.Linear(8, 24), nn.Linear(8, 1)
        self.sign, self.masks_first = {"high": 1, "low": -1}[closes], masks_first

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        total = -nn.functional.softplus(self.sign * self.gate(x)).cumsum(1)
        later = total - total.mT
        return (q @ k.mT * (later.tril() if self.masks_first else later).exp()).tril() @ v


@pytest.mark.parametrize("closes", ["high", "low"])
@pytest.mark.parametrize(("masks_first", "verdict"), [(True, "holds"), (False, "broken")])
def test_exponentials_that_overflow_where_gates_close_at_either_end(closes, masks_first, verdict):
    law = "finite gradients under strong decay"
    found = verdicts(Chunk(closes, masks_first), "gradients", law)
    assert found == {"gradients": "holds", law: verdict}


class Gate(nn.Module):
    """A product of two maps, whose gradient is short by a factor."""

    def __init__(self, share: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.gate, self.value, self.share = nn.Linear(8, 8), nn.Linear(8, 8), share

    def forward(self, x):
        gate = self.gate(x).sigmoid()
        return (self.share * gate + (1 - self.share) * gate.detach()) * self.value(x)


class SingleInside(Gate):
    """The gate within two norms that compute in float32, whatever the network is turned to."""

    def norm(self, x):
        y = x.float()
        return (y * (y.square().mean(-1, keepdim=True) + 1e-6).rsqrt()).to(x.dtype)

    def forward(self, x):
        return self.norm(super().forward(self.norm(x)))


@pytest.mark.parametrize("kind", [Gate, SingleInside])
@pytest.mark.parametrize("share", [1, 0.9, 0.99, 0.999])
def test_gradient_is_held_to_the_noise_of_differences(kind, share):
    (row,) = audit(kind(share), INPUTS, laws=("gradients",), weights="own").findings
    assert row.verdict == ("holds" if share == 1 else "broken"), row
    assert row.tolerance < (3e-4 if kind is SingleInside else 2e-8)
    assert row.why.endswith("smaller errors are not seen")


class Random(nn.Module):
    """Draws random numbers in eval mode: hashes, or a dropout that is left on; and a fault."""

    def __init__(self, *, dropout: float = 0.0, hashes: int = 0, fault: str = "") -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner, self.fault = Attention(), fault
        self.dropout, self.hashes = dropout, hashes

    def forward(self, x, mask=None, state=None):
        if self.fault == "later tokens":
            x = x + x.mean(1, keepdim=True)
        if self.hashes:
            x = x + (x @ torch.randn(8, self.hashes)).argmax(-1, keepdim=True)
        output, state = self.inner(torch.dropout(x, self.dropout, True), mask, None, state)
        return output, state


@pytest.mark.parametrize("fault", ["", "later tokens"])
@pytest.mark.parametrize("kind", [{"dropout": 0.1}, {"hashes": 4}], ids=["dropout", "hashes"])
def test_random_numbers_break_one_law_and_hide_no_other(kind, fault):
    broken = [law for law, x in verdicts(Random(**kind, fault=fault)).items() if x == "broken"]
    assert broken[0] == "determinism"
    assert ("later tokens" in broken[1:]) == bool(fault), broken
    assert fault or len(broken) == 1, broken


@pytest.mark.parametrize("hides", [True, False])
@pytest.mark.parametrize("ignored", [True, False])
def test_masks_of_booleans_are_tried_both_ways(hides, ignored):
    class Boolean(Attention):
        def forward(self, x, mask=None):
            if mask is not None:
                assert mask.dtype == torch.bool
                mask = (mask != hides) | ignored
            return super().forward(x, mask)[0]

    laws = ("left padding", "content of padding")
    found = verdicts(Boolean(), *laws)
    assert set(found.values()) == {"broken" if ignored else "holds"}, found
    told = Convention(mask="mask", mask_hides=hides, mask_shows=not hides)
    assert verdicts(Boolean(), *laws, convention=told) == found


class Codebook(nn.Module):
    """The nearest of 16 codes, which is chosen anew in each dtype."""

    def __init__(self, by: float) -> None:
        super().__init__()
        self.map, self.codes, self.by = nn.Linear(8, 8), nn.Parameter(torch.randn(16, 8)), by

    def forward(self, x):
        nearest = (self.map(x)[..., None, :] - self.codes).square().sum(-1).argmin(-1)
        output = self.codes[nearest]
        return output * self.by if x.dtype == torch.bfloat16 else output


class TopFour(Codebook):
    """Attention to the four keys of the largest logits."""

    def forward(self, x):
        logits = self.map(x) @ x.mT
        fourth = logits.topk(4, -1).values[..., -1:]
        output = logits.masked_fill(logits < fourth, -torch.inf).softmax(-1) @ x
        return output * self.by if x.dtype == torch.bfloat16 else output


@pytest.mark.parametrize("kind", [Codebook, TopFour])
def test_choices_near_a_tie_are_no_errors_of_half_precision(kind):
    for seed in range(6):
        for by in (1.0, 1.3):
            torch.manual_seed(seed)
            (verdict,) = verdicts(kind(by), "half precision").values()
            assert verdict == ("holds" if by == 1 else "broken"), seed


def test_long_inputs_may_stray_four_times_as_far_as_short_ones():
    torch.manual_seed(0)
    (row,) = audit(nn.GRU(8, 8, batch_first=True), INPUTS, laws=("long inputs",)).findings
    assert row.verdict == "holds"
    assert row.tolerance <= 2e-4
    assert row.why.startswith("4 x 30 x rounding")


class Largest(nn.Module):
    """The largest number so far of each feature, whose slope jumps where two are equal."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner = nn.Linear(8, 8)

    def forward(self, x):
        return self.inner(x).cummax(1).values


def test_tokens_of_more_than_a_chunk_do_not_tie():
    laws = ("gradients", "gradients under strong decay")
    assert verdicts(Largest(), *laws, causal=True) == dict.fromkeys(laws, "holds")


class Lowered(Attention):
    """Values are rounded to another dtype."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype

    def forward(self, x, mask=None, positions=None, state=None):
        output, state = super().forward(x, mask, positions, state)
        return x + output.to(self.dtype).to(x.dtype), state


@pytest.mark.parametrize("law", ["gradients", "second derivatives", "gradients under strong decay"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_small_differences_cannot_judge_half_precision_inside(law, dtype):
    assert verdicts(Lowered(dtype), law) == {law: "not judged"}
    assert verdicts(Lowered(torch.float32), law) != {law: "broken"}
