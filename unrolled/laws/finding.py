"""The list of laws, and what each of them finds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import wraps

from .measurement import Measurement
from .subject import Declared, Subject


@dataclass(frozen=True)
class Finding:
    """One statement of a law about a layer, not yet measured.

    Attributes
    ----------
    detail : str
        Its conditions, such as "causal, padding"; empty if the law makes a single statement.
    measure : callable
        ``measure()`` returns the `Measurement`; errors of the layer or its reference pass through.
    dtype : str
        Dtype in which the layer runs.
    law : str
        Name of the law, which `law` fills in.
    """

    detail: str
    measure: Callable[[], Measurement]
    dtype: str = "float64"
    law: str = ""

    @property
    def name(self) -> str:
        """The law and the detail."""
        return ", ".join(part for part in (self.law, self.detail) if part)


Law = Callable[[Subject], Iterator[Finding]]
OperatorLaw = Callable[[Subject, Declared], Iterator[Finding]]

LAWS: list[Law] = []


def law(function: Law) -> Law:
    """Add a law to `LAWS`; its findings have its name."""
    name = function.__name__.replace("_", " ")

    @wraps(function)
    def of_law(subject: Subject) -> Iterator[Finding]:
        for finding in function(subject):
            yield replace(finding, law=name)

    LAWS.append(of_law)
    return of_law


def operator_law(function: OperatorLaw) -> Law:
    """Add a law of operators, called with what they declare; it skips brief subjects."""

    @wraps(function)
    def of_operator(subject: Subject) -> Iterator[Finding]:
        if subject.declared is not None and not subject.brief:
            yield from function(subject, subject.declared)

    return law(of_operator)


def findings(subject: Subject) -> Iterator[Finding]:
    """The findings of all laws about a layer."""
    for each in LAWS:
        yield from each(subject)
