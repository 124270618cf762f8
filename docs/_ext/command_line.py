"""The directives `command-line`, the help of every command, and `option-table`, their options."""

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


def options() -> dict[str, dict[str, tuple[Any, Any]]]:
    """Every option by its name: the commands that have it by theirs, with what it is there."""
    found: dict[str, dict[str, tuple[Any, Any]]] = {}
    for words in commands(typer.main.get_command(application)):
        command = typer.main.get_command(application)
        for word in words:
            command = command.commands[word]
        for option in command.params:
            if option.param_type_name == "option":
                own = found.setdefault(option.opts[0], {})
                own[" ".join(words) or "twinsolve"] = command, option
    return found


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
    app.add_directive("option-table", OptionTable)
    return {"parallel_read_safe": True}
