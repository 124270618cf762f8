"""What a judge says: a finding on each law, and the report that holds the findings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING, Any, Literal

from ..solvers.notebook import html_cell, html_row

if TYPE_CHECKING:
    import pandas as pd

Verdict = Literal["holds", "broken", "refused", "not judged"]
VERDICTS: tuple[Verdict, ...] = ("holds", "broken", "refused", "not judged")
_COLOURS = {"broken": "red", "refused": "darkorange", "not judged": "gray"}
_COLUMNS = ("law", "verdict", "error", "tolerance", "where", "why")


def verdict_of(holds: bool) -> Verdict:
    """The verdict on what was measured."""
    return "holds" if holds else "broken"


@dataclass(frozen=True)
class Finding:
    """The verdict on one law, or on a layer that a solver judged.

    Attributes
    ----------
    law : str
        Name of the law, or of the twin whose solver judged the layer.
    verdict : {"holds", "broken", "refused", "not judged"}
        Refused means that a network raised an error: loud, so nobody gets a wrong number.
    error, tolerance : float, optional
        The error is usually the largest difference over the largest expected entry. The law holds
        if the error is at most the tolerance.
    why : str
        Why it was not judged or may be broken; in an audit where the tolerance comes from, what the
        network lacks, or the error that it raised.
    where : str
        The module of a model; in an audit the first token, layer and heads where a broken law
        shows, as far as they can be told.
    details : dict
        Further columns. `check` gives the ``class`` of what was judged; the ``equation``,
        ``evidence`` and ``relation`` of the twin; the ``dtype`` and number of ``rows`` (queries or
        tokens, in every head) that were judged; and, as "14 of 14", how many of the ``laws`` that
        were tried hold. `audit` gives the ``statement`` of the law, and
        for a broken one a ``script`` of plain torch that shows it.
    """

    law: str
    verdict: Verdict
    error: float | None = None
    tolerance: float | None = None
    why: str = ""
    where: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)

    def as_row(self) -> dict[str, Any]:
        """All fields as one row of a table, the details among them."""
        return {**{name: getattr(self, name) for name in _COLUMNS}, **self.details}

    def __str__(self) -> str:
        subject = ", ".join(filter(None, map(self.details.get, ("equation", "relation"))))
        dtype = self.details.get("dtype")
        text = f"{self.law}{f' [{subject}]' if subject else ''}: {self.verdict}"
        text += f" in {dtype}" if dtype else ""
        if self.error is not None:
            text += f", error {self.error:.2e}, tolerance {self.tolerance:.1e}"
        text += f", at {self.where}" if self.where else ""
        laws = self.details.get("laws")
        text += f"; {laws} laws hold" if laws else ""
        return f"{text}; {self.why}" if self.why else text


@dataclass(frozen=True)
class Report:
    """The findings on a layer, a model or a network.

    It is false if a finding is broken, or if nothing was judged, so that ``assert
    twinsolve.check(...)`` works. It prints a line for each finding, and is a table in a notebook.

    Attributes
    ----------
    name : str
        The class of the layer or model, or the name of the network.
    findings : tuple of Finding
    origin : dict of str to float
        How far a layer is from the solved problem at its initial parameters, which is no matter of
        right or wrong; see `check`. Models and networks have none.

    Examples
    --------
    >>> from twinsolve.twins.report import Finding, Report
    >>> report = Report("Mine", (Finding("causality", "broken", 0.5, 1e-10, where="token 3"),))
    >>> print(report)
    Mine: 1 broken
      causality: broken, error 5.00e-01, tolerance 1.0e-10, at token 3
    >>> bool(report)
    False
    """

    name: str
    findings: tuple[Finding, ...]
    origin: Mapping[str, float] = field(default_factory=dict)

    def __bool__(self) -> bool:
        judged = {finding.verdict for finding in self.findings} - {"not judged"}
        return bool(judged) and "broken" not in judged

    @property
    def broken(self) -> tuple[Finding, ...]:
        """The findings that are broken."""
        return tuple(finding for finding in self.findings if finding.verdict == "broken")

    def to_frame(self) -> pd.DataFrame:
        """The findings as a table of pandas."""
        import pandas as pd

        rows = [{"name": self.name, **finding.as_row()} for finding in self.findings]
        return pd.DataFrame(rows, columns=None if rows else ["name", *_COLUMNS])

    def __str__(self) -> str:
        lines = [f"{self.name}: {self._counts()}"]
        lines += [f"  {x}" for x in self.findings if x.verdict != "not judged"]
        unjudged = [x for x in self.findings if x.verdict == "not judged"]
        for why in dict.fromkeys(x.why for x in unjudged):
            names = Counter(x.law or x.details["class"] for x in unjudged if x.why == why)
            words = ", ".join(name if n == 1 else f"{n} {name}" for name, n in names.items())
            lines.append(f"  not judged, {why}: {words}")
        if self.origin:
            lines.append("from the solved problem at its initial parameters:")
            lines += [f"  {name:17s} {value:.4g}" for name, value in self.origin.items()]
        return "\n".join(lines)

    def _counts(self) -> str:
        counts = Counter(finding.verdict for finding in self.findings)
        plural = {"holds": "hold"} if counts["holds"] != 1 else {}
        return ", ".join(f"{counts[x]} {plural.get(x, x)}" for x in VERDICTS if counts[x])

    def _repr_html_(self) -> str:
        rows = [html_row(_COLUMNS, "th")]
        for finding in self.findings:
            values = (html_cell(getattr(finding, name)) for name in _COLUMNS)
            rows.append(html_row(values, "td", _COLOURS.get(finding.verdict, "inherit")))
        text = f"<p><b>{escape(self.name)}</b>: {self._counts()}</p><table>{''.join(rows)}</table>"
        if self.origin:
            numbers = "".join(html_row((k, html_cell(v))) for k, v in self.origin.items())
            title = "From the solved problem at its initial parameters:"
            text += f"<p>{title}</p><table>{numbers}</table>"
        return text
