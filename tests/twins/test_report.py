"""The words, the truth and the tables of reports."""

import re

import pytest

from twinsolve.twins.judging.origin import Origin
from twinsolve.twins.report import VERDICTS, Finding, Report

SCRIPT = '<script>alert("x")</script>'


@pytest.mark.parametrize(
    ("verdicts", "true"),
    [
        (["holds"], True),
        (["holds", "refused", "not judged"], True),
        (["holds", "broken"], False),
        (["refused", "not judged"], True),
        (["not judged"], False),
        ([], False),
    ],
)
def test_a_report_is_true_if_something_was_judged_and_nothing_is_broken(verdicts, true):
    report = Report("mine", tuple(Finding(f"law {i}", x) for i, x in enumerate(verdicts)))
    assert bool(report) == true
    assert [x.verdict for x in report.broken] == ["broken"] * verdicts.count("broken")
    assert list(report.to_frame().columns[:3]) == ["name", "law", "verdict"]
    assert list(report.to_frame().verdict) == verdicts


REPORT = Report(
    "Mine",
    (
        Finding("twin", "holds", 1e-12, 1e-10, details={"equation": "SE-1", "dtype": "float64"}),
        Finding("leaks", "broken", 0.5, 0.0, why=SCRIPT, where="blocks.0 <b>"),
        Finding("cache", "refused", why="ValueError: no & never"),
        *(Finding("", "not judged", why="has no twin", details={"class": "Linear"}),) * 2,
        Finding("decoding", "not judged", why="needs cache"),
    ),
    origin={"distance": 0.25},
)


def test_a_report_prints_each_finding_and_groups_what_is_not_judged():
    assert str(REPORT).splitlines() == [
        "Mine: 1 holds, 1 broken, 1 refused, 3 not judged",
        "  twin [SE-1]: holds in float64, error 1.00e-12, tolerance 1.0e-10",
        f"  leaks: broken, error 5.00e-01, tolerance 0.0e+00, at blocks.0 <b>; {SCRIPT}",
        "  cache: refused; ValueError: no & never",
        "  not judged, has no twin: 2 Linear",
        "  not judged, needs cache: decoding",
        "from the solved problem at its initial parameters:",
        "  distance          0.25",
    ]


def test_the_form_for_notebooks_has_every_finding_and_is_escaped():
    html = REPORT._repr_html_()
    assert html.count("<tr") == 1 + len(REPORT.findings) + len(REPORT.origin)
    assert SCRIPT not in html
    assert "blocks.0 <b>" not in html
    for text in ("&lt;script&gt;", "blocks.0 &lt;b&gt;", "no &amp; never", "distance", "0.25"):
        assert text in html
    assert all(f"<td>{verdict}</td>" in html for verdict in VERDICTS)
    assert '<tr style="color: red"><td>leaks</td>' in html


def test_an_origin_shows_the_other_families_and_what_is_not_determined():
    other = Origin("sparse_coding", "lasso", {"lam": (0.5,)}, 0.9, 1.0, 0.8, at_edge=("lam",))
    html = Origin("kernel", "gaussian", {"h": (1.0, 2.5)}, 0.1, 0.3, 0.8, others=(other,))
    rows = [re.findall("<td>(.*?)</td>", row) for row in html._repr_html_().split("<tr")[2:]]
    assert rows == [
        ["gaussian", "yes", "0.1", "0.3", "0.8", "h=1, 2.5", ""],
        ["lasso", "no", "0.9", "1", "0.8", "lam=0.5", "lam"],
    ]
