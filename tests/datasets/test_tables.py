"""Tables of text in every shape, and Parquet files."""

import gzip
import re

import numpy as np
import pandas as pd
import pytest

from twinsolve.datasets import load_points
from twinsolve.datasets.separators import SEPARATORS

RNG = np.random.default_rng(0)
X = np.round(RNG.standard_normal((9, 3)), 2)
WORDS = ["dog", "big cat", "cow"] * 3


def table(sep, decimal, *, words=True, header=True, quoted=False, spaced=False):
    """A text table of the points, its labels last."""

    def write(fields):
        fields = [f'"{field}"' if quoted or " " in field else field for field in fields]
        return (SEPARATORS[sep] + " " * spaced).join(fields) + "\n"

    lines = [write(["a", "b", "c", "class"])] if header else []
    for row, word in zip(X, WORDS, strict=True):
        fields = [repr(float(x)).replace(".", "," if decimal == "comma" else ".") for x in row]
        lines.append(write([*fields, word if words else str(WORDS.index(word))]))
    return "".join(lines)


@pytest.mark.parametrize("name", ["mine.csv", "mine.txt", "mine.tsv.gz", "mine.dat", "mine.data"])
@pytest.mark.parametrize("sep", SEPARATORS)
@pytest.mark.parametrize("decimal", ["point", "comma"])
@pytest.mark.parametrize(
    "form", [{}, {"words": False}, {"header": False}, {"quoted": True}, {"spaced": True}]
)
def test_separator_and_decimal_sign_are_found(name, sep, decimal, form, tmp_path):
    form = form | {"quoted": True} if (sep, decimal) == ("comma", "comma") else form
    content = table(sep, decimal, **form).encode()
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    points = load_points(tmp_path / name, target_key=None if form.get("header", True) else -1)
    assert (points.data == X).all()
    assert len(points.target_names) == 3
    assert points.target.tolist()[:3] == points.target.tolist()[3:6]
    plain = (sep, decimal) == ("comma", "point")
    assert (f"; separator {sep}, decimal {decimal}" in points.found) != plain


@pytest.mark.parametrize(
    ("text", "data"),
    [
        ("1,5\n2,5\n", [[1, 5], [2, 5]]),  # two columns, not one with decimal commas
        ("1,5;2,5\n3,5;4,5\n", [[1.5, 2.5], [3.5, 4.5]]),
        ("1, 2, 3\n4, 5, 6\n", [[1, 2, 3], [4, 5, 6]]),
        ("  1   2\n 10  20\n\n", [[1, 2], [10, 20]]),
        ("1\t 2\n3 \t4\n", [[1, 2], [3, 4]]),
        ("1e3;-2,5e-1\n,5;+1,5\n", [[1000, -0.25], [0.5, 1.5]]),
        ("7\n8\n", [[7], [8]]),
        ("a b\n1 2\n3 4\n", [[1, 2], [3, 4]]),
        ('"a" "b"\n"1" 5 6\n"2" 7 8\n', [[5, 6], [7, 8]]),  # of write.table in R
    ],
)
def test_shapes_that_are_easily_mistaken(text, data, tmp_path):
    (tmp_path / "mine.txt").write_text(text)
    assert load_points(tmp_path / "mine.txt").data.tolist() == data


def test_tables_of_other_libraries_are_read(tmp_path):
    np.savetxt(tmp_path / "mine.txt", X)
    assert (load_points(tmp_path / "mine.txt").data == X).all()
    frame = pd.DataFrame(X, columns=list("abc")).assign(label=WORDS)
    frame.to_csv(tmp_path / "mine.csv", sep=";", decimal=",")
    frame.to_csv(tmp_path / "mine.tsv.gz", sep="\t")
    for name in ("mine.csv", "mine.tsv.gz"):
        points = load_points(tmp_path / name)
        assert (points.data == X).all()
        assert points.target_names[points.target].tolist() == WORDS
        assert "numbers the rows" in points.found


def test_numbers_of_columns_are_a_header(tmp_path):
    pd.DataFrame(X).to_csv(tmp_path / "mine.csv", index=False)
    points = load_points(tmp_path / "mine.csv")
    assert (points.data == X).all()
    assert points.feature_names == ["0", "1", "2"]
    (tmp_path / "mine.csv").write_text("0,1\n2,3\n")
    assert load_points(tmp_path / "mine.csv").data.tolist() == [[0, 1], [2, 3]]


@pytest.mark.parametrize("labels", [WORDS, [WORDS.index(word) for word in WORDS]])
@pytest.mark.parametrize("place", [0, 2, 3])
@pytest.mark.parametrize("key", [None, "name"])
@pytest.mark.parametrize("n_features", [2, 3])
def test_numbers_of_columns_beside_a_name_are_a_header(labels, place, key, n_features, tmp_path):
    """Whatever names the column of labels: its name, its number from the end, or nothing."""
    frame, place = pd.DataFrame(X[:, :n_features]), min(place, n_features)
    frame.insert(place, key or "label", labels)
    frame.to_csv(tmp_path / "mine.csv", index=False)
    last = place - n_features - 1
    for given in ([] if key else [{}]) + [{"target_key": last}, {"target_key": key or "label"}]:
        points = load_points(tmp_path / "mine.csv", **given)
        assert (points.data == X[:, :n_features]).all()
        assert len(points.target_names) == 3
    points = load_points(tmp_path / "mine.csv", target_key=False, drop=last)
    assert (points.data == X[:, :n_features]).all()


def test_a_first_row_that_counts_is_no_header_if_its_word_is_a_class(tmp_path):
    (tmp_path / "mine.csv").write_text("0,1,2,cat\n4,5,6,dog\n7,8,9,cat\n1,1,1,dog\n")
    points = load_points(tmp_path / "mine.csv", target_key=-1)
    assert points.data[0].tolist() == [0, 1, 2]
    assert points.target_names.tolist() == ["cat", "dog"]
    (tmp_path / "mine.csv").write_text("1,2,kind\n4,5,0\n7,8,1\n")
    with pytest.raises(ValueError, match=r"if the line is a header, name .*drop='kind'"):
        load_points(tmp_path / "mine.csv")


def test_columns_of_one_name_are_told_apart_by_number(tmp_path):
    (tmp_path / "mine.csv").write_text("id,x,id,label,label\n1,2,7,0,5\n3,4,8,1,5\n5,6,9,0,6\n")
    for argument, key, numbers in (("drop", "id", "0, 2"), ("target_key", "label", "3, 4")):
        with pytest.raises(ValueError, match=rf"{argument}: .* several columns .* {numbers}$"):
            load_points(tmp_path / "mine.csv", **{argument: key})
    with pytest.raises(ValueError, match="say target_key=3 or target_key=4"):
        load_points(tmp_path / "mine.csv", drop=[0, 2])
    points = load_points(tmp_path / "mine.csv", drop=[0, 2], target_key=4)
    assert points.feature_names == ["x", "label"]
    assert points.target.tolist() == [0, 0, 1]
    with pytest.raises(ValueError, match="say target_key=3"):
        load_points(tmp_path / "mine.csv")


@pytest.mark.parametrize("start", [2**53, -(10**17), 10**18 - 5, 2**63 - 4, 10**24])
def test_large_whole_labels_stay_apart(start, tmp_path):
    lines = [f"{a},{start + a % 4}\n" for a in range(9)]
    (tmp_path / "mine.csv").write_text("a,label\n" + "".join(lines))
    points = load_points(tmp_path / "mine.csv")
    assert [int(name) for name in points.target_names] == [start + i for i in range(4)]


def test_settings_go_before_what_is_found(tmp_path):
    path = tmp_path / "mine.txt"
    path.write_text("1,234;5,678\n9,123;4,567\n")
    with pytest.raises(ValueError, match=r"decimal: '1,234' in .* thousands\. Say decimal=comma"):
        load_points(path)
    assert load_points(path, decimal="comma").data.tolist() == [[1.234, 5.678], [9.123, 4.567]]
    with pytest.raises(ValueError, match="'1,234' has a decimal comma, which decimal=comma reads"):
        load_points(path, decimal="point")
    path.write_text("1,2;3,4\n5,6;7,8\n")
    assert load_points(path).data.tolist() == [[1.2, 3.4], [5.6, 7.8]]
    with pytest.raises(ValueError, match=r"column 1: '2;3' is not a number"):
        load_points(path, sep="comma")
    path.write_text("1,5;2.5\n")
    with pytest.raises(ValueError, match="'1,5' has a decimal comma, which decimal=comma reads"):
        load_points(path)
    with pytest.raises(ValueError, match=r"decimal: is comma, but line 1 of .* holds '2\.5'"):
        load_points(path, decimal="comma")
    for name, known in (("sep", "tab, semicolon, comma, space"), ("decimal", "point, comma")):
        with pytest.raises(ValueError, match=f"^{name}: must be among {known}; got ';'"):
            load_points(path, **{name: ";"})


def test_uneven_lines_name_the_separator(tmp_path):
    (tmp_path / "mine.txt").write_text("1;2;3\n4;5;6\n7;8\n9;1;2\n")
    words = r"line 3 has 2 fields, the first has 3, by the separator semicolon; sep= takes another"
    with pytest.raises(ValueError, match=words):
        load_points(tmp_path / "mine.txt")


@pytest.mark.parametrize("gap", ["", " ", "NA", "NaN", "null", "?"])
def test_a_gap_is_told_with_its_row_and_column(gap, tmp_path):
    (tmp_path / "mine.csv").write_text(f"a,b,c\n1,2,3\n\n4,{gap},6\n7,8,9\n")
    place = f"line 4 (row 1), column 'b': {gap.strip()!r} is a gap"
    words = f"{place}: fill it, or remove the row; drop='b' leaves the column out"
    with pytest.raises(ValueError, match=re.escape(words)):
        load_points(tmp_path / "mine.csv")
    assert load_points(tmp_path / "mine.csv", drop="b").data.tolist() == [[1, 3], [4, 6], [7, 9]]


def test_parquet_is_read_through_pandas(tmp_path, monkeypatch):
    (tmp_path / "mine.parquet").write_bytes(b"PAR1")
    frame = pd.DataFrame(
        {
            "a": X[:, 0],
            "b": X[:, 1].astype(np.float32),
            "n": pd.array(range(9), dtype="Int64"),
            "is": X[:, 0] > 0,
            "class": pd.Categorical(WORDS),
        }
    )
    monkeypatch.setattr(pd, "read_parquet", lambda path: frame)
    points = load_points(tmp_path / "mine.parquet")
    assert (points.data == frame[["a", "b", "n", "is"]].to_numpy(float)).all()
    assert points.target_names[points.target].tolist() == WORDS
    frame.loc[4, "n"] = pd.NA
    with pytest.raises(ValueError, match=r"mine\.parquet: row 4, column 'n': '' is a gap"):
        load_points(tmp_path / "mine.parquet")
    assert load_points(tmp_path / "mine.parquet", drop=["n", "is"]).feature_names == ["a", "b"]
    with pytest.raises(ValueError, match=r"sep, decimal: must be None for .*mine\.parquet"):
        load_points(tmp_path / "mine.parquet", sep="tab")


def test_a_missing_engine_of_parquet_is_named(tmp_path, monkeypatch):
    def fail(path):
        raise ImportError("no engine")

    (tmp_path / "mine.parquet").write_bytes(b"PAR1")
    monkeypatch.setattr(pd, "read_parquet", fail)
    with pytest.raises(ImportError, match=r"mine\.parquet: Parquet needs pandas and pyarrow: pip"):
        load_points(tmp_path / "mine.parquet")
