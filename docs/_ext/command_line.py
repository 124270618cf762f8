"""The directives `command-line`, the help of every command, and `option-table`, their options."""

import typer
from command_options import commands, help_of, options
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from twinsolve.bench.cli import app as application


class CommandLine(SphinxDirective):
    """A section for each command, with what its option ``--help`` prints."""

    def run(self) -> list[nodes.Node]:
        """Called by Sphinx."""
        self.env.note_reread()  # commands may differ where the page does not
        return [self._section(words) for words in commands(typer.main.get_command(application))]

    def _section(self, words: list[str]) -> nodes.section:
        name = " ".join(["twinsolve", *words])
        text = help_of(words)
        shown = nodes.literal_block(text, text, language="text")
        return nodes.section("", nodes.title("", name), shown, ids=[nodes.make_id(name)])


class OptionTable(SphinxDirective):
    """A row for each option: what it means, and the commands that have it."""

    def run(self) -> list[nodes.Node]:
        """Called by Sphinx."""
        self.env.note_reread()
        head = "| option | meaning | commands |\n|---|---|---|\n"
        rows = [
            f"| `{name}` | {next(iter(own.values()))[1].help} | {', '.join(own)} |"
            for name, own in sorted(options().items())
        ]
        return self.parse_text_to_nodes(head + "\n".join(rows))


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    app.add_directive("command-line", CommandLine)
    app.add_directive("option-table", OptionTable)
    return {"parallel_read_safe": True}
