"""What pages, examples and help texts say of the command line is parsed by the command itself."""

import re
import shlex
from importlib.util import find_spec
from pathlib import Path

import pytest
import typer

from twinsolve.bench.cli import app

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
WRITTEN_BY_CODE = {"results", "api", "benchmarks", "examples", "_build"}
PAGES = [
    ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "examples").glob("*.py"),
    *(x for x in DOCS.rglob("*.md") if WRITTEN_BY_CODE.isdisjoint(x.relative_to(DOCS).parts)),
    *(ROOT / "bench").rglob("*.py"), *(ROOT / "studies").glob("*.py"),
]  # fmt: skip
BLOCK = r"```(?:sh|console|bash)\n(.*?)```|code-block:: sh\n(.*?)(?:\n#? *\n(?!#? )|$)"
OTHERS = {"--no-python", "--hypothesis-profile", "--dist"}  # of torchrun and pytest


def walk(command, name=()):
    """Every command by its words, without the callbacks of its options, so that none is run."""
    for option in command.params:
        option.callback = None
    yield name, command
    for word, below in getattr(command, "commands", {}).items():
        yield from walk(below, (*name, word))


COMMANDS = dict(walk(typer.main.get_command(app)))
OPTIONS = {name: {w for o in c.params for w in o.opts} for name, c in COMMANDS.items()}


def parse(words):
    """Raise what the command raises; of a group, for another word than those below it."""
    depth = max(n for n in range(len(words) + 1) if tuple(words[:n]) in COMMANDS)
    command, rest = COMMANDS[tuple(words[:depth])], words[depth:]
    if hasattr(command, "commands"):
        assert rest in ([], ["--version"]), words
    elif rest or depth < len(words):
        command.make_context("twinsolve", rest)


def arguments(text):
    """What stands behind `twinsolve` in lines of a shell and in code within sentences."""
    blocks = "".join("".join(pair) for pair in re.findall(BLOCK, text, re.S)).replace("\\\n", " ")
    code = [" ".join(x.split()) for x in re.findall(r"(?<!`)`([^`]+)`(?!`)", text)]
    for part in re.split(r"&&|\n", "\n".join([blocks, *code])):
        if found := re.search(r"(?:^|[\s/])twinsolve\s+(.*)", part):
            yield shlex.split(found[1], comments=True)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_shell_lines_are_parsed(path):
    text = path.read_text()
    for words in arguments(text):
        parse(words)
    for module in re.findall(r"python -m (twinsolve[\w.]*\w)", text):
        assert find_spec(module), module
    for script in re.findall(r"python (studies/\w+\.py)", text):
        assert (ROOT / script).is_file(), script
    if path.suffix == ".md":
        known = OTHERS.union(*OPTIONS.values())
        assert set(re.findall(r"`(--[a-z][\w-]*)", text)) <= known


@pytest.mark.parametrize("name", COMMANDS, ids=" ".join)
def test_help_texts_name_options_of_their_own(name):
    command = COMMANDS[name]
    texts = [command.help, *(getattr(option, "help", "") for option in command.params)]
    named = set(re.findall(r"(?<!\w)--[a-z][\w-]*", " ".join(filter(None, texts))))
    assert named <= OPTIONS[name] | OTHERS
