"""What an audit found: one row for each law."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import pandas as pd

Verdict = Literal["holds", "broken", "refused", "not applicable"]


@dataclass(frozen=True)
class Row:
    """One law on one network.

    Attributes
    ----------
    law, statement : str
    verdict : {"holds", "broken", "refused", "not applicable"}
        Refused means that the network raised an error: loud, so nobody gets a wrong number.
    error, tolerance : float, optional
        The largest difference over the largest expected entry, or the share of wrong tokens.
    why : str
        Where the tolerance comes from, what the law needs and the network lacks, or the error that
        the network raised.
    start : str
        The first token, layer and heads where a broken law shows, as far as they can be told.
    script : str
        For a broken law, a program of plain torch that shows it.
    """

    law: str
    statement: str
    verdict: Verdict
    error: float | None = None
    tolerance: float | None = None
    why: str = ""
    start: str = ""
    script: str = ""


@dataclass(frozen=True)
class Report:
    """The rows of an audit. It is false if a law is broken, and prints as a table.

    Attributes
    ----------
    name : str
    rows : tuple of Row
    """

    name: str
    rows: tuple[Row, ...]

    def __bool__(self) -> bool:
        return not self.broken

    @property
    def broken(self) -> tuple[Row, ...]:
        """Rows of the broken laws."""
        return tuple(row for row in self.rows if row.verdict == "broken")

    def to_frame(self) -> pd.DataFrame:
        """The rows as a table of pandas."""
        import pandas as pd

        return pd.DataFrame([{"network": self.name, **asdict(row)} for row in self.rows])

    def __str__(self) -> str:
        lines = [self.name]
        for row in self.rows:
            numbers = "" if row.error is None else f"{row.error:.1e} / {row.tolerance:.0e}"
            lines.append(f"  {row.law:28} {row.verdict:14} {numbers:18} {row.start or row.why}")
        return "\n".join(line.rstrip() for line in lines)
