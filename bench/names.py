"""Check and split names that a user types."""

import ast
import os
import re
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

_WORD = re.compile(r"[\w./-]+")  # a string that needs no quotes
_PART = re.compile(r"[\w./-]+(:\w+=[^,:=]+)+")  # a name with settings
_COMMA = re.compile(r",(?![^\[]*\])")  # a comma outside of brackets


def check_name(given: Any, argument: str) -> str:
    """Return the name or path as a str.

    Raises
    ------
    TypeError
        If `given` is neither; the message names the `argument`.
    """
    if not isinstance(given, str | os.PathLike):
        raise TypeError(f"{argument}: must be a name or a path, got {type(given).__name__}")
    return str(given)


def check_names(given: Any, argument: str) -> list[str] | None:
    """Return a sequence of names as a list; None stays None.

    Raises
    ------
    TypeError
        If `given` is a single name or holds other things; the message names the `argument`.
    ValueError
        If `given` is empty.
    """
    if given is None:
        return None
    if isinstance(given, str | os.PathLike) or not isinstance(given, Iterable):
        raise TypeError(f"{argument}: must be a sequence of names, got {given!r}")
    names = list(given)
    if not names:
        raise ValueError(f"{argument}: must name at least one")
    return [check_name(name, f"{argument}[{number}]") for number, name in enumerate(names)]


def close_names(given: str, known: Iterable[str]) -> str:
    """End of a message on an unknown name: similar names in any case, or nothing."""
    by_lower = {name.lower(): name for name in sorted(known)}
    longer = [name for name in by_lower if given and name.startswith(given.lower())]
    like = get_close_matches(given.lower(), by_lower, n=3, cutoff=0.6)
    close = [by_lower[name] for name in dict.fromkeys(longer + like)][:3]
    quoted = [repr(name) if "," in name else name for name in close]
    return f"; close ones are {', '.join(quoted)}" if close else ""


def split_settings(name: str, argument: str) -> tuple[str, dict[str, Any]]:
    """Split a name into the part before the colon and its settings NAME=VALUE.

    A value is a literal of Python, a word, or a list of these in brackets. It may be a name with
    settings: it stays a str, which `split_part` splits.

    Raises
    ------
    ValueError
        If settings cannot be read, or one is set twice; the message names the `argument`.
    """
    base, _, words = name.partition(":")
    settings: dict[str, Any] = {}
    for word in filter(None, _COMMA.split(words)):
        key, equals, value = (part.strip() for part in word.partition("="))
        if not equals:
            raise ValueError(
                f"{argument}: settings are NAME=VALUE, separated by commas; got {name!r}"
            )
        if key in settings:
            raise ValueError(f"{argument}: {key!r} is set twice in {name!r}")
        settings[key] = _read_value(value, f"{argument}: cannot read {value!r} in {name!r}")
    return base, settings


def _read_value(text: str, refusal: str) -> Any:
    """A literal of Python, a word, or a list of these in brackets."""
    try:
        return ast.literal_eval(text)
    except (SyntaxError, ValueError) as error:
        if _WORD.fullmatch(text) or _PART.fullmatch(text):
            return text
        if not (text.startswith("[") and text.endswith("]")):
            raise ValueError(refusal) from error
    return [_read_value(word.strip(), refusal) for word in text[1:-1].split(",")]


def split_part(value: str, argument: str) -> tuple[str, dict[str, Any]]:
    """Split a value NAME:KEY=VALUE:KEY=VALUE; within settings, colons stand for commas."""
    base, _, words = value.partition(":")
    return split_settings(f"{base}:{words.replace(':', ',')}", argument)
