"""Tables on a terminal: nothing is cut, and rows stay apart."""

import re
from io import StringIO

import pytest
from rich.console import Console

from twinsolve.bench import tables
from twinsolve.bench.tables import print_table

OWN = "ViT:operator=my_operator,residual=boosting,correction=neutreno:lam=0.4,scale=FeatScale"
HEADINGS = ("row", "difference, points", "seen with 80 % power", "nothing", "against")
ROWS = [
    (OWN, "-10.42 ± 54.16", "278.24", "-", "softmax"),
    (OWN.replace("0.4", "0.5"), "+0.83 ± 10.59", "54.39", "-", "symmetric + [bold]"),
]


@pytest.mark.parametrize("width", [60, 80, 100, 120])
def test_no_heading_or_cell_is_cut_and_rows_differ(width, monkeypatch):
    screen = StringIO()
    monkeypatch.setattr(tables, "console", lambda: Console(file=screen, width=width, markup=False))
    print_table("Data [own]", (HEADINGS, ROWS))
    shown = screen.getvalue()
    assert max(map(len, shown.splitlines())) <= width
    assert "…" not in shown
    assert "Data [own]" in shown
    assert "[bold]" in shown
    lines = [re.split("[│┃]", line) for line in shown.splitlines()]
    first = "".join(line[1].strip() for line in lines if len(line) > 2)  # unwrapped
    for own, *others in ROWS:
        assert own in first
        assert all(cell in shown for cell in others if cell != "-")
    words = set(shown.split())
    assert {word for heading in HEADINGS for word in heading.split()} - words == {"nothing"}
