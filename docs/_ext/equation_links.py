"""Ids of equations and errata, wherever they stand in running text, become links.

The targets are those of the sheet itself: `(se-12)=` in `equations/` is linked from every "SE-12"
of the pages and docstrings, and likewise `(e3-d)=` in `errata.md` from "E3-d".
"""

import re
from functools import cache
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform

_SHEETS = ("equations/*.md", "errata.md")
_TARGET = re.compile(r"^\(((?:[a-z]{2}|e\d)-[a-z0-9.-]+)\)=$", re.MULTILINE)
_NEVER = (nodes.literal, nodes.literal_block, nodes.reference, nodes.title, nodes.math, nodes.raw)


def targets(docs: Path) -> set[str]:
    """Ids that the sheets define, in lower case."""
    sheets = (sheet for pattern in _SHEETS for sheet in docs.glob(pattern))
    return {id_ for sheet in sheets for id_ in _TARGET.findall(sheet.read_text())}


def target_of(text: str) -> str:
    """The target of an id as it is written in text: "QK-low rank" is `qk-low-rank`."""
    return re.sub(r"\s+", "-", text).lower()


@cache
def _pattern(docs: Path) -> re.Pattern[str]:
    """Matches ids in text: their first letters in capitals, the longest id first."""
    spellings = [_spelling(id_) for id_ in sorted(targets(docs), key=len, reverse=True)]
    return re.compile(rf"(?<![\w-])(?:{'|'.join(spellings)})(?!\w)")


def _spelling(id_: str) -> str:
    prefix, rest = id_.split("-", 1)
    return rf"{prefix.upper()}-(?i:{re.escape(rest).replace(re.escape('-'), '[- ]')})"


class EquationLinks(SphinxTransform):
    """Put a reference in the place of every known id outside of code, formulas and titles."""

    default_priority = 500

    def apply(self, **kwargs: Any) -> None:
        """Called by docutils, once for a page."""
        pattern = _pattern(self.app.srcdir)
        for text in list(self.document.findall(nodes.Text)):
            if pattern.search(text) and not _stands_in(text, _NEVER):
                text.parent.replace(text, self._linked(str(text), pattern))

    def _linked(self, text: str, pattern: re.Pattern[str]) -> list[nodes.Node]:
        parts: list[nodes.Node] = []
        end = 0
        for match in pattern.finditer(text):
            parts += [nodes.Text(text[end : match.start()]), self._link(match[0])]
            end = match.end()
        return [*parts, nodes.Text(text[end:])]

    def _link(self, id_: str) -> pending_xref:
        return pending_xref(
            "",
            nodes.inline("", id_),
            refdoc=self.env.docname,
            refdomain="std",
            reftype="ref",
            reftarget=target_of(id_),
            refexplicit=True,
            refwarn=True,
        )


def _stands_in(node: nodes.Node, kinds: tuple[type, ...]) -> bool:
    while node is not None:
        if isinstance(node, (*kinds, pending_xref)):
            return True
        node = node.parent
    return False


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    app.add_transform(EquationLinks)
    return {"parallel_read_safe": True}
