"""The directive `law-table`: every law of layers, and what it says."""

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from twinsolve.bench.check.lines import law_lines
from twinsolve.bench.tables import markdown
from twinsolve.twins.laws import LAWS


class LawTable(SphinxDirective):
    """The table of all laws."""

    def run(self) -> list[nodes.Node]:
        """Called by Sphinx."""
        return self.parse_text_to_nodes("\n".join(markdown(*law_lines(LAWS))))


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    app.add_directive("law-table", LawTable)
    return {"parallel_read_safe": True}
