"""The command line, as tests run it."""

from typer.testing import CliRunner

from twinsolve.bench.cli import app


def run(command, *words, code=0):
    """Run `twinsolve` with a line and more words to this exit status: what it says, in a line."""
    done = CliRunner().invoke(app, [*command.split(), *map(str, words)])
    assert done.exit_code == code, done.output
    return " ".join(done.output.replace("│", " ").split())
