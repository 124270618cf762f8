"""The command, its text, and its losses."""

import itertools
import json

import numpy as np
import pandas as pd
import pytest
import torch
from torch.nn import functional as F

from twinsolve.bench.language import report
from twinsolve.bench.language.data import UNKNOWN, WordBatches, cut, load_text, swap_words
from twinsolve.bench.language.study import TEXT, build, losses, make_loss, settings_of
from twinsolve.bench.parts import BALANCE, tokens_of_experts

from ..command import run


@pytest.fixture(scope="module")
def text():
    return load_text("generated")


@pytest.fixture
def small(tmp_path):
    (tmp_path / "wikitext-2").mkdir()
    words = " ".join(f"{a} is {b}" for a in "pqrst" for b in "uvwxyz")
    for name in ("valid", "test"):
        (tmp_path / f"wikitext-2/{name}.txt").write_text(f"{words}\n{words} new\n")
    return tmp_path


def test_the_command_trains_measures_and_takes_what_is_finished(tmp_path):
    words = "language generated --seeds 2 --steps 2 --row NeuTRENO --recipe dim=16,depth=1"
    for _ in range(2):
        run(words, "--output", tmp_path)
    table = pd.DataFrame(json.loads((tmp_path / "table.json").read_text()))
    assert list(zip(table.row, table.seed, strict=True)) == [
        (row, seed) for row in ("softmax", "NeuTRENO") for seed in (0, 1)
    ]
    perplexity = np.exp(np.stack(list(table.clean)).mean(axis=1))
    assert ((perplexity > 100) & (perplexity < 400)).all()  # of 201 words
    summary = (tmp_path / "summary.md").read_text()
    assert f"| softmax | 2 | {perplexity[:2].mean():.2f} | - |" in summary
    assert (tmp_path / "differences.png").is_file()


def test_without_the_training_file_the_validation_file_trains(small):
    text = load_text("wikitext2:n_words=10", str(small))
    whole = " ".join(text.words[x] for x in text.train) + " "
    assert (len(text.words), text.standard) == (10, False)
    assert len(text.train) == round(0.9 * 183)
    assert whole.startswith("p is u p is v ")
    assert "<unk>" in whole
    assert len(text.test) == 183
    (small / "wikitext-2/train.txt").write_text("p is u\n")
    text = load_text("wikitext2", str(small))
    assert (text.words, text.standard) == (("<unk>", "<eos>", "is", "p", "u"), True)
    assert (len(text.train), len(text.validation)) == (4, 183)


@pytest.mark.parametrize("data", ["wikitext103", "generated:n=3", "generated:n_words=1"])
def test_unknown_data_are_refused(data):
    with pytest.raises(ValueError, match=r"^data: "):
        load_text(data)


def test_a_window_longer_than_a_part_is_refused(text):
    with pytest.raises(ValueError, match="recipe: length must be under the 8000 words"):
        build(text, settings_of("generated", {"length": 8000}), {}, 0)


@torch.no_grad()
def test_experts_are_balanced_as_those_of_images_are(text):
    settings = settings_of("generated")
    model = build(text, settings, {"experts": 4, "depth": 1}, 0).eval()
    windows = cut(text.test, 40)[:4]
    with tokens_of_experts(model) as seen:
        entropy = losses(model, windows, windows).mean()
    ((layer, tokens),) = seen
    balance = float(layer.balance_loss(tokens))
    assert balance > 0.5
    found = float(make_loss(text, settings)(model, windows) - entropy)
    assert found == pytest.approx(BALANCE * balance, rel=1e-3)


def test_the_summary_says_what_is_unknown_before_any_word_is_swapped(small):
    text = load_text("wikitext2:n_words=10", str(small))
    apart = {"row": ["softmax"] * 2, "against": [None] * 2, "seed": [0, 1], "clean": [[1.0]] * 2}
    said = " ".join(report.notes(pd.DataFrame(apart), text))
    share = sum(text.words[x] == "<unk>" for x in text.test) / len(text.test)
    assert 0.1 < share < 0.9
    assert f"{share:.1%} are <unk> before any is swapped" in said
    assert "no standard split" in said


def test_windows_tell_each_word_once_and_swapped_words_stay_to_be_told(text):
    windows = cut(text.test, 40)
    told = windows[:, 1:].flatten()
    assert torch.equal(told, text.test[1 : len(told) + 1])
    swapped = swap_words(windows, 0.025)
    changed = swapped != windows
    assert 0.02 < float(changed.float().mean()) < 0.03
    assert (swapped[changed] == UNKNOWN).all()
    model = build(text, settings_of("generated"), {}, 0).eval()
    found = losses(model, swapped[:3], windows[:3])
    scores = model(swapped[:3, :-1]).log_softmax(dim=-1)
    expected = -scores.gather(2, windows[:3, 1:, None])[..., 0]
    torch.testing.assert_close(found, expected)


def test_batches_depend_on_seed_step_and_sample(text):
    batches = WordBatches(text.train, 40)
    whole = batches(1, 2, range(8))
    assert whole.shape == (8, 41)
    assert torch.equal(whole[4:], batches(1, 2, range(4, 8)))
    assert not torch.equal(whole, batches(2, 2, range(8)))


def test_generated_lines_depend_on_their_chain(text):
    """Two words predict the next better than one does: what came before tells the chain."""
    lines = text.train.view(-1, 40)
    pairs = {}
    for before, word, after in zip(lines[:, 5], lines[:, 6], lines[:, 7], strict=True):
        pairs.setdefault(int(word), []).append((int(before), int(after)))
    drawn = [pair for own in pairs.values() for pair in itertools.pairwise(own)]
    same, other = (
        [a == b for (p, a), (q, b) in drawn if (p == q) is alike] for alike in (True, False)
    )
    assert np.mean(same) > 2 * np.mean(other)


@pytest.mark.parametrize("row", list(TEXT.rows))
def test_rows_start_as_the_plain_model_and_look_back_alone(text, row):
    model = build(text, settings_of("generated"), TEXT.rows[row], 0).double().eval()
    plain = build(text, settings_of("generated"), {}, 0)
    assert torch.equal(model.network.embedding.weight, plain.network.embedding.weight.double())
    ids = text.test[None, :40]
    later = ids.clone()
    later[:, 20:] = F.relu(later[:, 20:] - 1)
    torch.testing.assert_close(model(later)[:, :20], model(ids)[:, :20])


def test_positions_start_at_the_scale_that_a_row_names(text):
    model = build(text, settings_of("generated"), {"position_scale": 0.1}, 0)
    assert 0.09 < float(model.network.positions().detach().std()) < 0.11


def test_differences_are_of_log_losses(text):
    rows = [
        {"row": row, "against": against, "seed": seed, "clean": [x, x + 1], "swapped": [x, x]}
        for row, against, x in (("softmax", None, 2.0), ("GRC", "softmax", 1.9))
        for seed in (0, 1)
    ]
    found = report.differences(pd.DataFrame(rows))["GRC"]
    assert found.mean == pytest.approx(10)


def test_lines_of_recall_name_each_pair_twice():
    text = load_text("recall")
    words = np.array(text.words)[text.test.numpy()]
    lines = [line.reshape(16, 2) for line in words.reshape(-1, 32)]
    assert len(lines) == 500
    for line in lines:
        first, second = ([tuple(pair) for pair in half] for half in (line[:8], line[8:]))
        assert sorted(first) == sorted(second)
        assert len({key for key, _ in first}) == 8
    assert sum((line[:8] != line[8:]).any() for line in lines) > 490
    assert set(map(str, words)) == {f"{kind}{i}" for kind in "kv" for i in range(16)}


def test_perplexities_of_recall_are_those_of_its_draws():
    """From what is left to draw at each place: of the keys, and of the values or one of them."""
    text = load_text("recall")
    words = np.array(text.words)[text.test.numpy()].reshape(-1, 32)
    n_keys, n_values = (len({w for w in words.ravel() if w[0] == kind}) for kind in "kv")
    n_pairs = len({w for w in words[0] if w[0] == "k"})
    keys = sum(np.log(n_keys - i) + np.log(n_pairs - i) for i in range(n_pairs))
    values = n_pairs * np.log(n_values)
    assert np.exp((keys + values) / 32) == pytest.approx(5.2, abs=0.05)
    assert np.exp((keys + 2 * values) / 32) == pytest.approx(10.4, abs=0.05)
