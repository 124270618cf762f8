"""The directive and the role `result`: tables and numbers of pages, read by `result_values`.

The role takes the name of a number. The directive names folders and columns. Each line of its body
names rows by cells, in the order in which they come; without a body the table has all rows, or
those of a `section`. `pivot` spreads the last column over the values of another, and `mean` adds a
line of means.
"""

from typing import ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from result_values import RESULTS, number_of, table_of
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective, SphinxRole


class ResultTable(SphinxDirective):
    """A table of rows and columns of results."""

    required_arguments = 1
    final_argument_whitespace = True
    has_content = True
    option_spec: ClassVar = {
        "section": directives.unchanged_required,
        "columns": directives.unchanged_required,
        "pivot": directives.unchanged_required,
        "mean": directives.flag,
    }

    def run(self) -> list[nodes.Node]:
        """Called by Sphinx."""
        folders, columns = self.arguments[0].split(), self.options.get("columns", "").split(" | ")
        for folder in folders:
            self.env.note_dependency(str(RESULTS / folder / "summary.md"))
        section = [self.options[x] for x in ["section"] if x in self.options]
        rows = [" > ".join([*section, row]) for row in self.content if row] or section
        pivot, mean = self.options.get("pivot", ""), "mean" in self.options
        try:
            text = table_of(folders, columns, rows, pivot, mean)
        except ValueError as error:
            raise self.error(f"result: {error}") from None
        return self.parse_text_to_nodes(text)


class ResultNumber(SphinxRole):
    """A number of a summary."""

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        """Called by Sphinx."""
        name = " ".join(self.text.split())
        self.env.note_dependency(str(RESULTS / name.partition(" > ")[0] / "summary.md"))
        try:
            return [nodes.Text(number_of(name))], []
        except ValueError as error:
            message = f"result: {name}: {error}"
            logging.getLogger(__name__).warning(message, location=self.get_location())
            return [], []


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    app.add_directive("result", ResultTable)
    app.add_role("result", ResultNumber())
    return {"parallel_read_safe": True}
