"""Tables in HTML, as notebooks show objects."""

from collections.abc import Iterable, Mapping
from html import escape


def html_cell(value: str | float | None) -> str:
    """A value in words: numbers with three digits, None empty."""
    return value if isinstance(value, str) else "" if value is None else f"{value:.3g}"


def html_row(cells: Iterable[str], tag: str = "td", colour: str = "inherit") -> str:
    """A row of a table, escaped."""
    inner = "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells)
    return f'<tr style="color: {colour}">{inner}</tr>'


def html_table(headings: Iterable[str], rows: Iterable[Iterable[str | float | None]]) -> str:
    """A table with headings."""
    body = "".join(html_row(map(html_cell, row)) for row in rows)
    return f"<table>{html_row(headings, 'th')}{body}</table>"


def html_facts(name: str, facts: Mapping[str, str | float | None]) -> str:
    """The name of an object above a table of what is known of it."""
    rows = "".join(html_row((fact, html_cell(value))) for fact, value in facts.items())
    return f"<p><b>{escape(name)}</b></p><table>{rows}</table>"


def in_words(settings: Mapping[str, object]) -> str:
    """Settings as NAME=VALUE, ..."""
    return ", ".join(f"{name}={value}" for name, value in settings.items())
