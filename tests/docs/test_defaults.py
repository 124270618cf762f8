"""Defaults that docstrings and pages quote are those of the signatures."""

import ast
import inspect
import re
from pathlib import Path

from ..public import public

ROOT = Path(__file__).parents[2]
WINGS = ("solvers", "unrolled", "twins", "datasets", "bench")
NAMES = {name: x for wing in WINGS for name, x in public(wing).items()}
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *(ROOT / "docs").glob("[!r]*/*.md"),
    *(ROOT / "docs").glob("*.md"),
]
STATED = re.compile(r"^\s*(\w+(?:, \w+)*) : .*\bdefault=(.+?)\.?$", re.MULTILINE)
CALL = re.compile(r"`(\w+)\(([^`]*)\)`")


def default_of(function, name):
    """The default of a parameter, or of a field of a dataclass."""
    return inspect.signature(function).parameters[name].default


def find_stated(thing):
    """Parameters of a docstring with the default that it states."""
    for names, text in STATED.findall(inspect.getdoc(thing) or ""):
        parameters, values = names.split(", "), re.split(" and |, (?![^(]*\\))", text)
        yield from zip(parameters, values * (len(parameters) // len(values)), strict=True)


def test_docstrings_state_the_defaults_of_the_signatures():
    count = 0
    for thing in NAMES.values():
        methods = filter(inspect.isfunction, vars(thing).values() if inspect.isclass(thing) else ())
        for function in (thing, *methods):
            for name, text in find_stated(function):
                if name in inspect.signature(function).parameters:
                    assert default_of(function, name) == eval(text, dict(NAMES)), (function, name)
                    count += 1
    assert count > 400


def find_sentences(text):
    """Sentences of prose with the word default and a number."""
    prose = re.sub(r"^```.*?^```|^\|.*?$", "", text, flags=re.MULTILINE | re.DOTALL)
    for sentence in re.split(r"(?<=[.:;])\s+|\n\s*\n|\n- ", prose):
        if re.search(r"\bdefaults?\b", sentence) and re.search(r"(?<![\w.-])\d", sentence):
            yield " ".join(sentence.split())


def test_pages_quote_defaults_as_a_call_with_the_values_of_the_signature():
    """Such as: `NonLocalMeansAttention(patch_size=5)` by default."""
    for sentence in (x for page in PAGES for x in find_sentences(page.read_text())):
        calls = CALL.findall(sentence)
        assert calls, sentence
        for name, arguments in calls:
            for keyword in ast.parse(f"{name}({arguments})").body[0].value.keywords:
                quoted = ast.literal_eval(keyword.value)
                assert default_of(NAMES[name], keyword.arg) == quoted, sentence
