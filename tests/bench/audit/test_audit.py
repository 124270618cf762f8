"""The command audit: what it prints and writes, how it resumes, and what it says of our own."""

import json
import runpy
import subprocess
import sys
import tomllib
from fnmatch import fnmatchcase
from pathlib import Path

import pandas as pd
import pytest

from twinsolve import audit
from twinsolve.bench import audit as audited
from twinsolve.bench.audit import networks, report, study
from twinsolve.bench.audit.architectures import list_architectures
from twinsolve.bench.audit.construction import Name
from twinsolve.bench.audit.networks import PEERS
from twinsolve.bench.audit.report import summary_lines
from twinsolve.bench.audit.study import audit_networks
from twinsolve.twins.audit import LAWS

from ..command import run

OWN = """
import torch
from torch import nn

class Decay(nn.Module):
    def __init__(self):
        super().__init__()
        self.value = nn.Linear(4, 4)

    def forward(self, x, state=None):
        hidden, outputs = 0 if state is None else state, []
        for value in self.value(x).unbind(1):
            hidden = 0.5 * hidden + value
            outputs.append(hidden)
        return torch.stack(outputs, 1), {last}

def net():
    return Decay(), torch.randn(2, 21, 4, generator=torch.Generator().manual_seed(0))
"""
TWINS = [name for name in PEERS if name.startswith("twinsolve/")]
# Operators in a language model, of every kind: masks of pairs, places, gates and states, batches of
# tokens, mixed heads, iterations and sums over keys. All others are in the other model, which takes
# a third of the time and lacks the laws of causal networks.
IN_LANGUAGE_MODELS = (
    "alibi", "gated_delta_rule", "local", "mini_batch", "re_attention", "softmax", "sparse_coding",
    "token_statistics", "tupe",
)  # fmt: skip


@pytest.fixture
def own(tmp_path, monkeypatch):
    """Write a recurrence that returns `last` as its state, under a name that no test used."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(name, last):
        (tmp_path / f"{name}.py").write_text(OWN.replace("{last}", last))
        return f"{name}:net"

    return write


def test_right_layer_passes(own, tmp_path):
    output = run("audit", own("right_decay", "hidden"))
    assert "decoding: holds" in output
    assert "0 broken, 0 refused" in output
    rows = json.loads((tmp_path / "results/audit/table.json").read_text())
    assert {row["verdict"] for row in rows} == {"holds"}


def test_broken_layer_fails_with_a_script_that_shows_it(own, tmp_path, capsys):
    output = run("audit", own("wrong_decay", "0.9 * hidden"), "--law", "decoding", code=1)
    assert "decoding: broken" in output
    script = tmp_path / "results/audit/scripts/wrong_decay-net-decoding.py"
    runpy.run_path(str(script))
    (row,) = json.loads((tmp_path / "results/audit/table.json").read_text())
    assert float(capsys.readouterr().out.split()[-1]) == pytest.approx(row["error"], rel=1e-3)
    summary = (tmp_path / "results/audit/summary.md").read_text()
    assert "(scripts/wrong_decay-net-decoding.py)" in summary


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "name networks, or give --all"),
        (("gpt2", "--all"), "name networks, or give --all"),
        (("nosuch",), "has no architecture 'nosuch'"),
        (("gpt2", "--law", "none"), "no law 'none'"),
        (
            ("--all", "--package", "none"),
            "--package: there is no 'none'; must be among agent-attention",
        ),
    ],
)
def test_mistakes_are_told(words, message):
    assert message in run("audit", *words, code=2)


def test_list_names_laws_and_networks():
    output = run("audit", "--list")
    for name in (*(law.name for law in LAWS), "mamba", "BertModel", *PEERS):
        assert name in output


def test_finished_networks_are_kept_for_these_versions(tmp_path, monkeypatch):
    names = ["gpt2", "twinsolve/LanguageModel, softmax"]
    table = audit_networks(names, laws=["decoding", "left padding"], directory=tmp_path)
    assert len(list(tmp_path.glob("*.npz"))) == 2
    again = audit_networks(names, laws=["decoding", "left padding"], directory=tmp_path)
    pd.testing.assert_frame_equal(table, again)
    assert list(table.package.unique()) == ["transformers", "twinsolve"]
    monkeypatch.setattr(study, "find_versions", lambda: {"transformers": "another"})
    audit_networks(names[:1], laws=["decoding", "left padding"], directory=tmp_path)
    assert len(list(tmp_path.glob("*.npz"))) == 3


BROKEN = """
import torch

def scaled(q, k, v, by):
    return (1 + by) * (q @ k.mT).tril() @ v
"""


def test_script_of_a_layer_of_others_runs_without_this_package(tmp_path, monkeypatch):
    """It contains the adapter, the recurrence and the law, and finds the same error."""
    (tmp_path / "others.py").write_text(BROKEN)
    monkeypatch.syspath_prepend(str(tmp_path))
    recurrence = Name("twinsolve.twins.audit.recurrences:sum_outer_products")
    adapter = Name("twinsolve.twins.audit:Adapter")
    options = {"heads_first": True, "recurrence": recurrence, "by": Name("torch:rand")(1)}
    call = adapter(Name("others:scaled"), "q, k, v", **options)
    monkeypatch.setitem(networks.PEERS, "others/scaled", networks.Peer(call))
    (row,) = audit(**networks.build_peer("others/scaled", ["equation"])).broken
    (tmp_path / "script.py").write_text(row.details["script"])
    blocked = "import runpy, sys; sys.modules['twinsolve'] = None; sys.path.insert(0, '.')"
    command = [sys.executable, "-c", f"{blocked}; runpy.run_path('script.py')"]
    printed = subprocess.check_output(command, cwd=tmp_path, text=True)
    assert float(printed.split()[-1]) == pytest.approx(row.error)
    assert 0.01 < row.error < 1


@pytest.mark.parametrize(
    "name", ["torch/LSTM", "torch/TransformerEncoder", "twinsolve/LanguageModel, top_k"]
)
def test_source_of_a_peer_makes_what_is_audited(name):
    made = networks.build_peer(name)
    found = {}
    exec(f"import torch\ntorch.manual_seed(0)\n{made['source']}", found)
    assert found["inputs"].equal(made["inputs"])
    weights = found["network"].state_dict()
    assert weights.keys() == made["network"].state_dict().keys()
    assert all(x.equal(weights[key]) for key, x in made["network"].state_dict().items())


@pytest.mark.parametrize("name", [x for x in PEERS if x.startswith("transformers/")])
def test_fallbacks_of_transformers_break_at_a_gate_of_zero_alone(name):
    pytest.importorskip("transformers")
    laws = [law.name for law in LAWS if "recurrence" in law.needs]
    broken = {row.law for row in audit(**networks.build_peer(name, laws)).broken}
    assert broken == ({"closed gates"} if "chunk" in name else set())


@pytest.mark.parametrize(
    ("name", "others"),
    [
        ("qwen3_next:torch_chunk_gated_delta_rule", ("olmo_hybrid", "qwen3_5", "qwen3_5_moe")),
        ("kimi_linear:chunk_kimi_delta_attention", ("bailing_hybrid", "glm5_next")),
    ],
)
def test_other_models_have_copies_of_the_fallbacks_that_are_audited(name, others):
    transformers = pytest.importorskip("transformers", minversion="5.24")
    model, _, function = name.partition(":")
    models = Path(transformers.__file__).parent / "models"
    texts = [(models / x / f"modeling_{x}.py").read_text() for x in (model, *others)]
    bodies = [text.partition(f"def {function}(")[2].partition("\n\n\n")[0] for text in texts]
    assert len(bodies[0].splitlines()) > 50
    assert set(bodies) == {bodies[0]}


def test_each_broken_law_has_the_first_cause_that_explains_it(monkeypatch):
    causes = [
        {"networks": ["a*"], "laws": ["decoding"], "kind": "fault", "why": "first"},
        {"networks": ["ab"], "kind": "fault", "why": "second"},
    ]
    monkeypatch.setattr(report, "read_causes", lambda: causes)
    broken = {"package": "p", "version": "1", "verdict": "broken", "error": 1.0, "tolerance": 0.0}
    rows = [("ab", "decoding"), ("ab", "rows of a batch"), ("b", "decoding")]
    table = pd.DataFrame(
        [broken | {"network": name, "law": law, "where": "", "why": ""} for name, law in rows]
    )
    text = "\n".join(report.summary_lines(table))
    assert "| ab | decoding | 1.0e+00 | first |" in text
    assert "| ab | rows of a batch | 1.0e+00 | second |" in text
    assert "No cause is known here for: b." in text


def test_network_that_cannot_be_built_is_a_row(tmp_path):
    table = audit_networks(["nosuch", "gpt2"], laws=["rows of a batch"])
    assert list(table.verdict) == ["refused", "holds"]
    text = "\n".join(summary_lines(table))
    assert "1 network of 1 package: 1 law tried, 1 holds; 0 networks break one or more" in text
    assert "- nosuch: ValueError: audit: transformers" in text


def test_architectures_are_many_and_each_is_once():
    names = list_architectures()
    assert len(names) == len(set(names)) > 290


def marked(name):
    model, _, operator = name.removeprefix("twinsolve/").partition(", ")
    of_default = (model == "LanguageModel") == (operator in IN_LANGUAGE_MODELS)
    return pytest.param(name, marks=() if of_default else pytest.mark.slow)


@pytest.mark.parametrize("name", [*map(marked, TWINS)])
def test_own_networks_get_no_exemption(name):
    """They break nothing, but learned positions count padding, as the page says.

    The check holds the second derivatives of every operator.
    """
    laws = [law.name for law in LAWS if law.name != "second derivatives" or "softmax" in name]
    table = audit_networks([name], laws=laws)
    allowed = {"left padding"} if "LanguageModel" in name and "alibi" not in name else set()
    assert set(table[table.verdict == "broken"].law) == allowed
    assert (table.verdict == "holds").sum() >= 6


def test_causes_name_networks_and_laws_that_exist_and_no_cell_twice():
    text = Path(audited.__file__).with_name("causes.toml").read_text()
    networks, laws = [*list_architectures(), *PEERS], {law.name for law in LAWS}
    cells = []
    for cause in tomllib.loads(text)["causes"]:
        assert set(cause) == {"networks", "laws", "kind", "why", "issue"}
        assert cause["kind"] in ("fault", "design")
        assert set(cause["laws"]) <= laws
        for pattern in cause["networks"]:
            found = [name for name in networks if fnmatchcase(name, pattern)]
            assert found, pattern
            cells += [(name, law) for name in found for law in cause["laws"]]
    assert len(cells) == len(set(cells))
