"""The list of laws, and the trials that they yield."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial, wraps

from .measurement import Measurement
from .subject import Declared, Subject, TooManyTokensError


@dataclass(frozen=True)
class Trial:
    """One statement of a law about a layer, to be tried later.

    Attributes
    ----------
    detail : str
        The conditions, such as "causal, padding"; empty if the law makes a single statement.
    measure : callable
        ``measure()`` returns the `Measurement` and raises the errors of the layer and its
        reference; a `TooManyTokensError` if the layer takes fewer tokens than the law needs.
    dtype : str
        Dtype in which the layer runs.
    law : str
        Name of the law; the decorator `law` sets it.
    """

    detail: str
    measure: Callable[[], Measurement]
    dtype: str = "float64"
    law: str = ""

    @property
    def name(self) -> str:
        """The law and the detail, joined by a comma."""
        return ", ".join(part for part in (self.law, self.detail) if part)


Law = Callable[[Subject], Iterator[Trial]]
OperatorLaw = Callable[[Subject, Declared], Iterator[Trial]]

LAWS: list[Law] = []


def law(function: Law) -> Law:
    """Add a law to `LAWS`, and the name of the law to its trials."""
    name = function.__name__.replace("_", " ")

    @wraps(function)
    def named_law(subject: Subject) -> Iterator[Trial]:
        try:
            for trial in function(subject):
                yield replace(trial, law=name)
        except TooManyTokensError as error:
            yield Trial("", partial(_raise, error), law=name)

    LAWS.append(named_law)
    return named_law


def _raise(error: Exception) -> Measurement:
    raise error


def operator_law(function: OperatorLaw) -> Law:
    """Add a law of operators to `LAWS`; the law gets what they declare and skips brief subjects."""

    @wraps(function)
    def law_of_operators(subject: Subject) -> Iterator[Trial]:
        if subject.declared is not None and not subject.brief:
            yield from function(subject, subject.declared)

    return law(law_of_operators)


def trials(subject: Subject) -> Iterator[Trial]:
    """Yield the trials of all laws for a layer."""
    for apply_law in LAWS:
        yield from apply_law(subject)
