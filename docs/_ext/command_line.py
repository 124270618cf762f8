"""The directive `command-line`: the help of every command of `twinsolve`."""

from collections.abc import Iterator
from typing import Any

import typer
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from typer.testing import CliRunner

from twinsolve.bench.cli import app as application

_TERMINAL = {"COLUMNS": "110", "NO_COLOR": "1", "TERM": "dumb"}


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


def commands(command: Any) -> Iterator[list[str]]:
    """The words of the command and of those below it, without its own name."""
    yield []
    for word, below in getattr(command, "commands", {}).items():
        yield from ([word, *others] for others in commands(below))


def help_of(words: list[str]) -> str:
    """What ``twinsolve WORDS --help`` prints, without spaces at the ends of lines."""
    run = CliRunner().invoke(application, [*words, "--help"], prog_name="twinsolve", env=_TERMINAL)
    return "\n".join(line.rstrip() for line in run.output.strip("\n").splitlines())


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    app.add_directive("command-line", CommandLine)
    return {"parallel_read_safe": True}
