"""Names that a user types."""

import ast
import re
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

_PARAMETER = re.compile(
    r"(?<![\w'\",:.(-])(data_key|target_key|n_clusters|transpose=True|transpose(?=:))(?![\w=])"
)
_WORD = re.compile(r"[\w./-]+")  # a string that needs no quotes
_COMMA = re.compile(r",(?![^\[]*\])")  # outside of brackets


def as_options(message: str) -> str:
    """A message in the words of the command line: of files' settings, not of their values."""
    return _PARAMETER.sub(lambda name: f"--{name[1].partition('=')[0].replace('_', '-')}", message)


def close_names(given: str, known: Iterable[str]) -> str:
    """What to add behind an unknown name: those like it, whatever their case, if there are any."""
    by_lower = {name.lower(): name for name in sorted(known)}
    longer = [name for name in by_lower if given and name.startswith(given.lower())]
    like = get_close_matches(given.lower(), by_lower, n=3, cutoff=0.6)
    close = [by_lower[name] for name in dict.fromkeys(longer + like)][:3]
    return f"; close ones are {', '.join(close)}" if close else ""


def split_settings(name: str, argument: str) -> tuple[str, dict[str, Any]]:
    """What stands before the colon, and the settings NAME=VALUE behind it.

    Raises
    ------
    ValueError
        If they cannot be read; the message names the `argument`.
    """
    base, _, words = name.partition(":")
    settings: dict[str, Any] = {}
    for word in filter(None, _COMMA.split(words)):
        key, equals, value = (part.strip() for part in word.partition("="))
        if not equals:
            raise ValueError(
                f"{argument}: settings are NAME=VALUE, separated by commas; got {name!r}"
            )
        try:
            settings[key] = ast.literal_eval(value)
        except (SyntaxError, ValueError) as error:
            if not _WORD.fullmatch(value):
                raise ValueError(f"{argument}: cannot read {value!r} in {name!r}") from error
            settings[key] = value
    return base, settings
