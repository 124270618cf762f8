"""WikiText-2."""

import pytest

from twinsolve.datasets import fetch_wikitext2


@pytest.mark.parametrize("name", ["valid.txt", "wiki.valid.tokens"])
def test_words_of_lines_end_with_eos(tmp_path, name):
    (tmp_path / "wikitext-2").mkdir()
    (tmp_path / "wikitext-2" / name).write_text(" \n = A title = \n\n Words , <unk> .\n")
    words = fetch_wikitext2(subset="validation", data_home=str(tmp_path)).words
    assert " ".join(words) == "<eos> = A title = <eos> <eos> Words , <unk> . <eos>"
    with pytest.raises(FileNotFoundError, match=r"test\.txt or wikitext-2/wiki\.test\.tokens"):
        fetch_wikitext2(subset="test", data_home=str(tmp_path))


def test_what_is_no_text_is_refused(tmp_path):
    (tmp_path / "wikitext-2").mkdir()
    (tmp_path / "wikitext-2/train.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match="is no text in UTF-8"):
        fetch_wikitext2(data_home=str(tmp_path))
    with pytest.raises(ValueError, match="subset: must be one of"):
        fetch_wikitext2(subset="all", data_home=str(tmp_path))


def test_published_numbers_of_words(real_data):
    counts = [
        len(fetch_wikitext2(subset=part, data_home=str(real_data)).words)
        for part in ("validation", "test")
    ]
    assert counts == [217_646, 245_569]
