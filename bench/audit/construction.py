"""How a network of another package is made, as data: it is built, and it is written down."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Any

from ...twins.audit.scripts import write_sources

_OWN = ("twinsolve.twins.audit", "twinsolve.bench.audit")  # scripts contain their source


@dataclass(frozen=True, repr=False)
class Name:
    """What another module has, such as ``Name("torch.nn:GRU")``; called, it is a `Call`."""

    place: str

    def __call__(self, *args: Any, **options: Any) -> Call:
        """The call as data."""
        return Call(self, args, options)

    def __repr__(self) -> str:
        return self.place.partition(":")[2]


@dataclass(frozen=True, repr=False)
class Call:
    """A call; arguments may be calls and names."""

    name: Name
    args: tuple[Any, ...]
    options: dict[str, Any]

    def __repr__(self) -> str:
        options = [f"{name}={value!r}" for name, value in self.options.items()]
        return f"{self.name!r}({', '.join([*map(repr, self.args), *options])})"


def build(part: Any) -> Any:
    """Make what the data say."""
    if isinstance(part, Name):
        return resolve_name(part.place)
    if isinstance(part, Call):
        options = {name: build(value) for name, value in part.options.items()}
        return build(part.name)(*map(build, part.args), **options)
    return part


def write(part: Call) -> str:
    """Lines of plain Python that make ``network`` as `build` does."""
    names = dict.fromkeys(_names(part))
    own = [name for name in names if name.place.startswith(_OWN)]
    lines = [
        f"from {name.place.partition(':')[0]} import {name!r}" for name in names if name not in own
    ]
    sources = [write_sources([build(name) for name in own])] if own else []
    return "\n\n\n".join([*filter(None, ["\n".join(lines)]), *sources, f"network = {part!r}"])


def _names(part: Any) -> Iterator[Name]:
    if isinstance(part, Name):
        yield part
    elif isinstance(part, Call):
        for child in (part.name, *part.args, *part.options.values()):
            yield from _names(child)
