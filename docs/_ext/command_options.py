"""The commands, their options, and what each prints with ``--help``."""

from collections.abc import Iterator
from typing import Any

import typer
from typer.testing import CliRunner

from twinsolve.bench.cli import app as application

_TERMINAL = {"COLUMNS": "110", "NO_COLOR": "1", "TERM": "dumb"}


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
