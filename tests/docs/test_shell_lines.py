"""Shell lines of the pages: the options exist, and what only lists runs."""

import re
import shlex
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from twinsolve.bench.cli import app
from twinsolve.bench.clustering.presets import PRESETS

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```(?:bash|console|shell|sh)\n(.*?)^```", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`(twinsolve [^`]+)`")


def find_lines():
    """Words of every line that starts with the command, and of commands in running text."""
    for page in PAGES:
        if "results" in page.parts:
            continue
        text = page.read_text()
        fences = "\n".join(FENCE.findall(text)).replace("\\\n", " ")
        lines = [x.removeprefix("$ ") for x in fences.splitlines()]
        lines += [" ".join(x.split()) for x in INLINE.findall(text)]
        for line in lines:
            words = shlex.split(line, comments=True)
            if words[:1] == ["twinsolve"] and "..." not in words:
                yield pytest.param(words[1:], id=f"{page.stem}: {shlex.join(words)}")


LINES = list(find_lines())


@pytest.mark.parametrize("words", LINES)
def test_every_option_exists(words):
    command, rest = typer.main.get_command(app), list(words)
    while rest and hasattr(command, "commands") and rest[0] in command.commands:
        command = command.commands[rest.pop(0)]
    if rest and rest not in (["--help"], ["--version"]):
        command.make_context("twinsolve", rest, resilient_parsing=False)


@pytest.mark.parametrize("words", [x for x in LINES if "--list" in x.values[0]])
def test_lists_are_printed(words):
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output


def every_option(command):
    for option in command.params:
        yield from option.opts
    for part in getattr(command, "commands", {}).values():
        yield from every_option(part)


PROSE = {page: page.read_text() for page in PAGES if "results" not in page.parts}


def test_options_quoted_in_prose_exist():
    known = {*every_option(typer.main.get_command(app)), "--help"}
    for page in (ROOT / "studies").glob("*.py"):
        known |= {*re.findall(r'"(--[a-z-]+)"', page.read_text())}
    for page, text in PROSE.items():
        assert {*re.findall(r"`(--[a-z-]+)[^`]*`", text)} <= known, page


def test_presets_and_scripts_quoted_in_prose_exist():
    presets, scripts = set(), set()
    for text in PROSE.values():
        presets |= {*re.findall(r"--preset ([a-z][\w-]*)", text)}
        scripts |= {*re.findall(r"(?:studies|packaging|tests)/[\w/]*\w\.py", text)}
    assert {"design", "judge", "mnist"} <= presets <= {*PRESETS}
    assert {"studies/hopkins.py", "tests/faults/check_coverage.py"} <= scripts
    assert not [script for script in scripts if not (ROOT / script).is_file()]
