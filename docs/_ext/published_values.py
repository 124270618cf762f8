"""The directive `published-values`: what papers state, beside our own rows where there are some."""

import tomllib
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from twinsolve.bench.tables import markdown, read_table

_HEADINGS = (
    "data", "method", "published error %", "published seconds", "source", "what differs",
    "our error %", "our steps",
)  # fmt: skip


class PublishedValues(SphinxDirective):
    """The table of the file that it names, beside the page."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Called by Sphinx."""
        path = Path(self.env.srcdir) / self.arguments[0]
        self.env.note_dependency(str(path))
        return self.parse_text_to_nodes(table_of(path))


def table_of(path: Path) -> str:
    """The values of a TOML file in Markdown."""
    values = tomllib.loads(path.read_text())["value"]
    return "\n".join(markdown(_HEADINGS, [_line(value, path.parent) for value in values])) + "\n"


def _line(value: dict[str, Any], docs: Path) -> tuple[str, ...]:
    accuracy = value["accuracy"]
    digits = len(accuracy.partition(".")[2])
    error = f"{'about ' if value.get('about') else ''}{100 - float(accuracy):.{digits}f}"
    seconds = f"{value['seconds']:,}" if "seconds" in value else "-"
    stated = (value["data"], value["method"], error, seconds, value["source"], value["differs"])
    return *stated, *_ours(docs / "results" / value["ours"]["file"], value["ours"]["method"])


def _ours(path: Path, method: str) -> tuple[str, str]:
    """Error and steps of our own run, chosen without labels."""
    if not path.exists():
        return "-", "-"
    table = read_table(path)
    rows = table[(table.method == method) & (table.selection == "label-free")]
    steps = rows.groupby("steps", sort=False).selection_score.mean().idxmax()
    chosen = rows[rows.steps == steps]
    return f"{100 * (1 - chosen.accuracy.mean()):.2f}", f"{chosen.settings.iloc[0]}; {steps}"


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    app.add_directive("published-values", PublishedValues)
    return {"parallel_read_safe": True}
