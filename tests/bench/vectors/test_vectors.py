"""What is written is right, the same each time, and tells right kernels from wrong ones."""

import json
import re
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from twinsolve.bench.vectors import hold, write_vectors, writing
from twinsolve.bench.vectors.operators import operators
from twinsolve.bench.vectors.recurrences import recurrences
from twinsolve.solvers.online_regression import delta_rule
from twinsolve.twins import catalogue

GATED = "gated-delta-rule"
SYSTEMS = {
    "local-linear", "locally-linear-attention", "low-rank-attention", "low-rank-relative-penalty",
    "mesa", "neutreno-solved", "proximal-point", "ridge-attention",
    "ridge-attention-zero-diagonal", "ridge-relative-penalty",
}  # fmt: skip


@pytest.fixture(scope="module")
def subjects():
    return [*recurrences(), *operators()]


@pytest.fixture(scope="module")
def slope_errors():
    """Errors of slopes while `folder` is written."""
    return []


@pytest.fixture(scope="module")
def folder(tmp_path_factory, slope_errors):
    place, measure = tmp_path_factory.mktemp("vectors"), writing._slope_error
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            writing, "_slope_error", lambda *x: slope_errors.append(measure(*x)) or slope_errors[-1]
        )
        write_vectors(place)
    return place


def test_tolerances_are_those_of_the_noise_of_differences_and_of_systems(
    folder, slope_errors, subjects
):
    """Right slopes stand out of a hundredth of theirs, and leave a third."""
    assert len(slope_errors) > 500
    tolerance = writing._SLOPE_TOLERANCE
    assert tolerance / 100 < max(slope_errors) < tolerance / 3
    coarse = {x.name for x in subjects if x.tolerance > 1e-10}
    assert all(x.tolerance <= 1e-8 for x in subjects)
    assert coarse == SYSTEMS


@pytest.fixture(scope="module")
def manifest(folder):
    return json.loads((folder / "manifest.json").read_text())


def gated(x, settings):
    out, last = delta_rule(
        x["q"], x["k"], x["v"], beta=x["beta"], forget=x["forget"], state=x["initial_S"]
    )
    return {"out": out, "last_S": last}


def test_two_runs_write_the_same_bytes_and_they_are_few(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(writing, "_hold_to_differences", lambda *given: None)  # writes nothing
    for listed in (recurrences, operators):
        some = partial(islice, listed(), 0, None, 5)
        monkeypatch.setattr(writing, listed.__name__, some)
    before, threads = torch.get_num_threads(), []
    torch.set_num_threads(before + 1)

    def count_threads(subjects, n):
        threads.append(torch.get_num_threads())
        return subjects

    try:
        write_vectors(tmp_path, progress=count_threads)
        assert [*threads, torch.get_num_threads()] == [1, before + 1]
    finally:
        torch.set_num_threads(before)
    names = {path.name for path in tmp_path.iterdir()} - {"manifest.json"}
    assert len(names) > 20
    assert all((folder / x).read_bytes() == (tmp_path / x).read_bytes() for x in names)
    assert sum(path.stat().st_size for path in folder.iterdir()) < 6e6


def test_every_recurrence_and_every_operator_with_an_exact_twin_is_there(manifest, subjects):
    layers = {
        twin.layer.__name__
        for twin in catalogue()
        if twin.inputs.kind == "tokens"
        and twin.relation.name in ("identity", "iterate")
        and twin.family != "online_regression"
    }
    words = " ".join(entry["words"] for entry in manifest["subjects"].values())
    assert {layer for layer in layers if f"{layer}: " not in words} == set()
    equations = {entry["equation"] for entry in manifest["subjects"].values()}
    assert equations >= {f"TR-{x}" for x in ("1", "2", "2p", "3", "5", "5c", "6", "8", "9")}
    names = [subject.name for subject in subjects]
    assert len(names) == len(set(names)) == len(manifest["subjects"])


def test_what_is_left_out_is_few_and_said(manifest):
    left_out = {(name, case) for name, x in manifest["subjects"].items() for case in x["left_out"]}
    assert left_out == {
        ("symmetric-attention", "large-logits"),
        ("ridge-attention-zero-diagonal", "one-token"),  # it has no other token
    }


def test_operators_have_the_cases_that_break_kernels(folder, manifest):
    for subject in operators():
        cases = manifest["subjects"][subject.name]["cases"]
        assert {"one-token", "long"} <= {*cases, *manifest["subjects"][subject.name]["left_out"]}
        with np.load(folder / f"{subject.name}.npz") as arrays:
            assert arrays["long/q"].shape[-2] == 128
            if "zero-keys" in cases:
                assert not arrays["zero-keys/k"][..., ::2, :].any()


def test_both_formats_hold_the_same_and_the_shapes_are_those_of_the_manifest(folder, manifest):
    for name, entry in manifest["subjects"].items():
        tensors = load_file(folder / f"{name}.safetensors")
        with np.load(folder / f"{name}.npz") as arrays:
            assert tensors.keys() == set(arrays)
            assert all(np.array_equal(arrays[x], tensors[x]) for x in tensors)
        for case, listed in entry["cases"].items():
            for array, shape in listed["inputs"].items():
                x = torch.from_numpy(tensors[f"{case}/{array}"])
                assert list(x.shape) == shape
                # What is no parameter is a number of bfloat16.
                assert array.startswith("parameter.") or x.equal(x.bfloat16().to(x.dtype)), array
            for array, about in listed["expected"].items():
                assert tensors[f"{case}/{array}"].dtype == np.float64
                assert list(tensors[f"{case}/{array}"].shape) == about["shape"]


def run_forms(subject, dtype, store=None):
    """A function for `hold` that runs the torch forms, their cases in order, and stores outputs."""
    cases = iter(subject.cases)

    def run(inputs, settings):
        tensors = {x: torch.tensor(y, dtype=dtype) for x, y in inputs.items()}
        found = next(cases).form(tensors)
        return {x: y.to(store or dtype).double().numpy() for x, y in found.items()}

    return run


def form_in(subject, dtype):
    """Slow where a form runs as when it was written: others by default are one, and bfloat16."""
    marks = () if subject.name == GATED or dtype == "bfloat16" else pytest.mark.slow
    return pytest.param(subject, dtype, marks=marks, id=f"{subject.name}-{dtype}")


@pytest.mark.parametrize(
    ("subject", "dtype"),
    [form_in(x, dtype) for x in recurrences() for dtype in ("float64", "float32", "bfloat16")],
)
def test_the_torch_forms_pass_in_every_dtype(folder, subject, dtype):
    """In bfloat16, inputs and outputs are so, and states are in float32."""
    half = dtype == "bfloat16"
    compute, store = ("float32", "bfloat16") if half else (dtype, dtype)
    run = run_forms(subject, getattr(torch, compute), getattr(torch, store))
    report = hold(run, folder, subject.name, dtype=dtype)
    assert report, report
    verdicts = [finding.verdict for finding in report.findings]
    assert verdicts.count("holds") > 0.8 * len(verdicts)


def keep_in_half_precision(case, chunk, dtype):
    """Outputs of a form that computes in float32, and rounds states after each chunk."""
    x = {name: torch.tensor(y, dtype=torch.float32) for name, y in case.inputs.items()}
    n, outputs = x["q"].shape[-2], []
    along = {name: y.shape.index(n) for name, y in x.items() if n in y.shape}
    for start in range(0, n, chunk):
        piece = {name: x[name].narrow(axis, start, chunk) for name, axis in along.items()}
        found = case.form(x | piece)
        outputs.append(found.pop("out"))
        for name, state in found.items():
            x[name.replace("last", "initial")] = state.to(dtype).float()
    return torch.cat(outputs, -2).double().numpy()


@pytest.mark.parametrize(
    ("dtype", "chunk"),
    [
        pytest.param(torch.bfloat16, 1, marks=pytest.mark.slow),  # coarser than the next
        (torch.float16, 1),
        (torch.bfloat16, 64),
    ],
)
@pytest.mark.parametrize("subject", [*recurrences()], ids=lambda subject: subject.name)
def test_states_in_half_precision_fail_where_steps_are_small(folder, subject, dtype, chunk):
    steps = [case for case in subject.cases if case.name == "small-steps"]
    if not steps:
        pytest.skip("it keeps no state")
    entry = json.loads((folder / "manifest.json").read_text())["subjects"][subject.name]
    (case,) = steps
    with np.load(folder / f"{subject.name}.npz") as arrays:
        error = np.abs(keep_in_half_precision(case, chunk, dtype) - arrays["small-steps/out"]).max()
    assert error > 2 * entry["cases"]["small-steps"]["expected"]["out"]["bfloat16"]


def test_tolerances_of_bfloat16_are_a_small_share_where_states_are_in_float32(manifest):
    """Of linear attention over 2,048 tokens, and of states that take small steps."""
    long = manifest["subjects"]["recurrent-linear-attention"]["cases"]["long"]
    assert long["expected"]["out"]["bfloat16"] < 3  # outputs have rms 14
    for entry in manifest["subjects"].values():
        if "small-steps" in entry["cases"]:
            found = entry["cases"]["small-steps"]["expected"]["out"]
            assert found["bfloat16"] < 0.07


def test_a_kernel_that_predicts_before_it_forgets_fails(folder):
    assert {x.verdict for x in hold(gated, folder, GATED).findings} == {"holds"}

    def swapped(x, settings):
        x = x | {name: x[name][..., None] for name in ("v", "beta")}
        S, out = x["initial_S"], []
        for t in range(x["k"].shape[-2]):
            k, q, a = x["k"][..., t, :, None], x["q"][..., t, None, :], x["forget"][..., t, :, None]
            e = (x["v"][..., t, :, :] - S.swapaxes(-1, -2) @ k).swapaxes(-1, -2)
            S = a * S + x["beta"][..., t, :, None] * k * e
            out.append(q @ S)
        return {"out": np.concatenate(out, axis=-2)}

    verdicts = {x.law: x.verdict for x in hold(swapped, folder, GATED).findings}
    blind = {"forget-nothing", "no-step", "small-steps", "zero-queries"}
    assert {case for case, verdict in verdicts.items() if verdict == "holds"} == blind
    assert set(verdicts.values()) == {"holds", "broken"}


def test_a_kernel_may_return_gradients_in_every_case(folder, manifest):
    def kernel(x, settings):
        t = {name: torch.tensor(y, requires_grad=name != "weights") for name, y in x.items()}
        S, out = t["initial_S"], []
        for i in range(x["k"].shape[-2]):
            S = t["forget"][..., i, :, None] * S
            error = t["v"][..., i, None, :] - t["k"][..., i, None, :] @ S
            S = S + t["beta"][..., i, None, None] * t["k"][..., i, :, None] * error
            out.append(t["q"][..., i, None, :] @ S)
        out = torch.cat(out, -2)
        (out * t.get("weights", 1)).sum().backward()
        gradients = {f"grad_{x}": t[x].grad.numpy() for x in ("q", "k", "v", "beta", "forget")}
        return {"out": out.detach().numpy(), "last_S": S.detach().numpy()} | gradients

    report = hold(kernel, folder, GATED)
    assert {x.verdict for x in report.findings} == {"holds"}
    cases = manifest["subjects"][GATED]["cases"]
    compared = {x.law for x in report.findings if x.where == "grad_forget"}
    assert compared == {name for name, case in cases.items() if "weights" in case["inputs"]}


def test_the_page_names_the_cases_without_gradients(manifest):
    cases = [x for entry in manifest["subjects"].values() for x in entry["cases"].items()]
    bare = {name for name, case in cases if "weights" not in case["inputs"]}
    assert all("weights" not in case["inputs"] for name, case in cases if name in bare)
    (told,) = re.findall(r"(The cases [^.]*) have no `weights`", " ".join(PAGE.read_text().split()))
    assert set(re.findall(r"`([\w-]+)`", told)) == bare


def test_differences_and_the_second_form_catch_a_wrong_reference_and_a_wrong_gradient():
    subject = next(x for x in recurrences() if x.name == GATED)
    case = subject.cases[0]

    def wrong_gradient(x):
        found = case.form(x)
        return found | {"out": found["out"] + (x["q"] - x["q"].detach()).sum()}

    off = replace(case, reference=lambda x: {k: 1.001 * y for k, y in case.reference(x).items()})
    for broken, words in (
        (off, "two forms differ"),
        (replace(case, form=wrong_gradient), "grad_q"),
    ):
        with pytest.raises(ArithmeticError, match=words):
            writing._evaluate(broken, 1e-10)


def test_what_is_not_computed_is_not_judged_and_mistakes_are_told(folder):
    def never(x, settings):
        raise NotImplementedError

    assert {x.verdict for x in hold(never, folder, GATED).findings} == {"not judged"}
    for wrong, words in (
        (lambda x, s: {"outs": x["v"]}, "plain: arrays must be among out, last_S"),
        (lambda x, s: {"grad_x": x["v"]}, "plain: arrays must be among out, last_S"),
        (lambda x, s: {"out": x["q"]}, r"plain: out must have shape \(2, 2, 5, 3\)"),
    ):
        with pytest.raises(ValueError, match=words):
            hold(wrong, folder, GATED)
    with pytest.raises(ValueError, match="subject: must be among recurrent"):
        hold(gated, folder, "nothing")
    with pytest.raises(ValueError, match="dtype: must be float64"):
        hold(gated, folder, GATED, dtype="int8")
    with pytest.raises(FileNotFoundError):
        hold(gated, folder / "nowhere", GATED)


PAGE = Path(__file__).parents[3] / "docs/vectors.md"


def test_the_code_of_the_page_runs_without_this_package_and_tells_the_same(
    folder, tmp_path, monkeypatch, capsys
):
    (tmp_path / "vectors").symlink_to(folder)
    monkeypatch.chdir(tmp_path)
    code, *_ = re.findall(r"```python\n(import json.*?)```", PAGE.read_text(), re.DOTALL)
    assert "twinsolve" not in code
    exec(code, {"my_kernel": gated})
    printed = capsys.readouterr().out.split("\n")[:-1]
    findings = hold(gated, folder, GATED).findings
    assert [line.split()[:2] for line in printed] == [[x.law, x.where] for x in findings]
    assert {line.split()[-1] for line in printed} == {"True"}


def test_the_page_counts_right_and_names_every_case(folder, manifest):
    text = " ".join(PAGE.read_text().split())
    entries = manifest["subjects"].values()
    cases = {case for entry in entries for case in entry["cases"]}
    total = sum(len(entry["cases"]) for entry in entries)
    n_recurrences = len([*recurrences()])
    assert f"{len(entries)} subjects, {total} cases, 6 MB" in text
    assert f"sparse coding, ...: {len(entries) - n_recurrences} in all" in text
    assert [case for case in cases if not re.search(rf"[|,] {case}[ ,]", text)] == []
