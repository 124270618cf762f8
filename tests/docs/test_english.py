"""Pages are read at one go: short sentences, short pages."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [
    page
    for page in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"))
    if not {"results", "_build", "api", "classes", "equations"} & set(page.parts)
    and page.name not in ("published.md", "errata.md")  # tables, and quotations
]
LONG = 30  # words


def sentences(text):
    """Those of prose: without code, tables, directives and headings."""
    text = re.sub(r"^(```|~~~).*?^\1", "", text, flags=re.M | re.S)
    text = re.sub(r"^ *(\||#|:|!\[|\(\w+\)=|<!--|% ).*$", "\n", text, flags=re.M)
    text = re.sub(r"\{result\}`[^`]*`", "0", text)
    text = re.sub(r"\$\$.*?\$\$", "\n\n", text, flags=re.S)
    text = re.sub(r"\]\([^)]*\)", "]", text)
    for block in re.split(r"\n\s*\n|^\s*(?:[-*]|\d+\.) ", text, flags=re.M):
        for sentence in re.split(r"(?<=[.?!:;])\s+(?=[A-Z`*\[\"(])", " ".join(block.split())):
            words = re.findall(r"[A-Za-z0-9`$\[][^\s]*", sentence)
            if len(words) > 2:
                yield len(words), sentence


def counts(page):
    lengths = [n for n, _ in sentences(page.read_text())]
    return sum(n > LONG for n in lengths), len(lengths), sum(lengths)


def test_few_sentences_are_long():
    found = [counts(page) for page in PAGES]
    assert sum(long for long, *_ in found) <= 0.03 * sum(n for _, n, _ in found)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_is_read_at_one_go(page):
    long, n, words = counts(page)
    assert n < 20 or long <= 0.08 * n
    assert words <= 2000
