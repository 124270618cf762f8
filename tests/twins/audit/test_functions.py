"""Functions of q, k, v and gates: their equation, closed gates and residual, by planted faults."""

import re
from pathlib import Path

import pytest
import torch

from twinsolve import audit
from twinsolve.twins.audit import Adapter
from twinsolve.twins.audit.recurrences import (
    solve_ridge,
    step_comba,
    step_delta,
    sum_outer_products,
)

STRONG = "gradients of equation under strong decay"
LAWS = ("equation", "gradients of equation", STRONG, "closed gates", "residual")


def read(q, S):
    return (q[..., None, :] @ S)[..., 0, :]


def outer(x, y):
    return x[..., :, None] * y[..., None, :]


def delta(q, k, v, beta, g, start=None, fault=""):
    """A gated delta rule in (batch, tokens, heads, width) that stores values x keys."""
    S = 0 * outer(k[:, 0], v[:, 0]) if start is None else start.mT
    out = []
    for t in range(q.shape[1]):
        a = g[:, t].exp()[..., None, None]
        if fault == "transposed":
            S = S.mT
        before, S = S, a * S
        error = v[:, t] - read(k[:, t], before if fault == "order" else S)
        error = error.detach() if fault == "detached" else error
        S = S + outer(k[:, t], beta[:, t, :, None] * error)
        out.append(read(q[:, t], before if fault == "late" else S))
    return torch.stack(out, 1), (a * S if fault == "state" else S).mT


def in_chunks(q, k, v, g, masks_first=True):
    """Linear attention by quotients of gates: right, but for gates of 0."""
    total = g.cumsum(-1)
    later = total[..., :, None] - total[..., None, :]
    decay = (later.tril() if masks_first else later).exp()
    return (q @ k.mT * decay).tril() @ v


def ridge(q, k, v, beta, g, lamb, H=0.0, G=0.0, eps=0.0):
    """Mesa by conjugate gradients in (batch, tokens, heads, width), eps in its divisors."""
    out = []
    for t in range(q.shape[1]):
        a, weighted = g[:, t].exp()[..., None, None], beta[:, t, :, None] * k[:, t]
        H, G = a * H + outer(weighted, k[:, t]), a * G + outer(weighted, v[:, t])
        A = H + torch.diag_embed(lamb)
        x, r = torch.zeros_like(q[:, t]), q[:, t]
        p = r
        for _ in range(12):
            step, rho = read(p, A), (r * r).sum(-1, keepdim=True)
            alpha = rho / ((p * step).sum(-1, keepdim=True) + eps).clamp(min=1e-30)
            x, r = x + alpha * p, r - alpha * step
            p = r + (r * r).sum(-1, keepdim=True) / (rho + eps).clamp(min=1e-30) * p
        out.append(read(x, G))
    return torch.stack(out, 1), H, G


def adapt_delta(**options):
    arguments = "q, k, v, beta, g=log forget"
    return Adapter(
        delta, arguments, states="start=S", transposed=True, recurrence=step_delta, **options
    )


def adapt_ridge(eps):
    arguments = "q, k, v, beta, g=log forget, lamb=lam"
    return Adapter(ridge, arguments, states="H=H, G=G", recurrence=solve_ridge, eps=eps)


def broken_laws(adapter, laws=LAWS):
    inputs = torch.randn(2, 21, adapter.width, generator=torch.Generator().manual_seed(0))
    report = audit(adapter, inputs, laws=laws)
    assert not [row for row in report.findings if row.verdict == "refused"], report
    return {row.law: row for row in report.findings if row.verdict == "broken"}


def test_right_functions_hold_every_law():
    assert broken_laws(adapt_delta(), ()) == {}
    assert broken_laws(adapt_ridge(0.0)) == {}


@pytest.mark.parametrize("fault", ["order", "late", "state", "transposed"])
def test_function_that_is_not_its_recurrence_breaks_the_equation(fault):
    row = broken_laws(adapt_delta(fault=fault))["equation"]
    assert row.error > 0.01
    assert row.where == {"order": "token 1", "late": "token 0", "transposed": "token 1",
                         "state": "token 67"}[fault]  # fmt: skip


def test_function_whose_gradient_is_another_breaks_that_of_the_equation_alone():
    assert set(broken_laws(adapt_delta(fault="detached"))) == {"gradients of equation", STRONG}


def test_wrong_orientation_and_scale_of_the_adapter_are_seen():
    wrong = adapt_delta(scale=0.5)
    assert broken_laws(wrong)["equation"].error == pytest.approx(1, rel=1e-3)
    wrong = adapt_delta()
    wrong.transposed = False
    assert broken_laws(wrong)["equation"].where == "token 67"


@pytest.mark.parametrize(("masks_first", "others"), [(True, set()), (False, {STRONG})])
def test_form_in_chunks_breaks_where_gates_close(masks_first, others):
    adapter = Adapter(
        in_chunks,
        "q, k, v, g=log forget",
        heads_first=True,
        recurrence=sum_outer_products,
        masks_first=masks_first,
    )
    assert set(broken_laws(adapter)) == {"closed gates"} | others


def test_system_that_is_not_solved_breaks_the_residual():
    rows = broken_laws(adapt_ridge(1e-2))
    assert {"equation", "residual"} <= set(rows)
    assert rows["residual"].error > 1e-3


MADE = {
    "log forget": lambda x: x["forget"].log(),
    "forget k": lambda x: x["forget"] * x["k"],
    "-beta k": lambda x: -x["beta"][..., None] * x["k"],
}


@pytest.mark.parametrize("words", MADE)
def test_argument_gets_what_its_words_say(words):
    given = []
    adapter = Adapter(lambda x: given.append(x) or x, f"x={words}", heads_first=True, per_key=True)
    features = torch.randn(2, 21, adapter.width)
    adapter(features)
    assert torch.equal(given[0], MADE[words](adapter.quantities(features)))


def test_comba_is_the_gated_delta_rule_where_p_is_the_key_that_forgot():
    adapter = Adapter(lambda **x: x["q"], "q, k, v, beta, forget")
    x = adapter.quantities(torch.randn(2, 9, adapter.width).double())
    found = step_comba(x | {"p": x["forget"][..., None] * x["k"]})
    for name, expected in step_delta(x).items():
        torch.testing.assert_close(found[name], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("fault", ["", "ignored", "added"])
def test_mask_of_a_function_of_queries_keys_and_values_is_held(fault):
    def attend(q, k, v, mask=None):
        scores = q @ k.mT
        if mask is not None and fault != "ignored":
            scores = scores + mask if fault else scores.masked_fill(~mask, -torch.inf)
        return scores.softmax(-1) @ v

    broken = broken_laws(Adapter(attend, "q, k, v, mask", heads_first=True), ())
    of_masks = {"left padding", "right padding", "right paddings that differ", "content of padding"}
    assert set(broken) == (of_masks if fault else set())


def test_one_argument_may_take_a_tuple_of_states():
    def add_last_and_sum(q, past=None):
        last, total = (0 * q[:, :1],) * 2 if past is None else past
        sums = total + q.cumsum(1)
        return sums + torch.cat([last, q[:, :-1]], 1), (q[:, -1:], sums[:, -1:])

    adapter = Adapter(add_last_and_sum, "q", states="past")
    report = audit(adapter, torch.randn(2, 21, adapter.width), laws=("decoding", "copied cache"))
    assert [row.verdict for row in report.findings] == ["holds", "holds"], report


def test_fault_of_decoding_does_not_accuse_the_cache():
    def add(q, past=None):
        sums = (0 * q[:, :1] if past is None else past) + q.cumsum(1)
        return sums if past is None else 1.1 * sums, sums[:, -1:]

    adapter = Adapter(add, "q", states="past")
    laws = ("decoding", "copied cache", "state of the caller")
    assert set(broken_laws(adapter, laws)) == {"decoding"}


def test_unknown_quantity_is_told():
    with pytest.raises(
        ValueError, match=r"arguments: must get q, k, v, .*, lam or mask, got 'gate'"
    ):
        Adapter(in_chunks, "q, k, v, g=log gate")


def test_inputs_of_the_caller_are_not_changed_by_a_faulty_function():
    def scale(q):
        q *= 2
        return 1 * q

    adapter = Adapter(scale, "q")
    inputs = torch.ones(2, 21, adapter.width)
    assert not audit(adapter, inputs, laws=("determinism",))
    assert (inputs == 1).all()


def test_the_code_of_the_page_runs():
    page = (Path(__file__).parents[3] / "docs/audit.md").read_text()
    exec("\n".join(re.findall(r"```python\n(.*?)```", page, re.DOTALL)), {"__name__": "page"})
