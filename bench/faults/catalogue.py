"""Faults, pieces of the package's source and what stands in their place: a TOML file a kind."""

import tomllib
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Fault:
    """A mistake that could be in a layer, and where it must show.

    Attributes
    ----------
    kind, name : str
    file : str
        Below ``unrolled``.
    old, new : str
        Source that occurs once in the file, and what is planted there.
    twins : tuple of str
        Twins that the check is held to: the layers that the fault changes are theirs.
    survives : str
        Why the check does not catch it; empty if it must.
    """

    kind: str
    name: str
    file: str
    old: str
    new: str
    twins: tuple[str, ...]
    survives: str = ""

    def plant(self, package: Path) -> None:
        """Change the file of a copy of the package.

        Raises
        ------
        ValueError
            If the old source does not occur exactly once.
        """
        path = package / "unrolled" / self.file
        source = path.read_text()
        if source.count(self.old) != 1:
            raise ValueError(f"{self.name}: {self.old!r} occurs {source.count(self.old)} times")
        path.write_text(source.replace(self.old, self.new))


def catalogue() -> list[Fault]:
    """Every fault of every kind, which the name of its file says."""
    return [
        Fault(path.stem.replace("-", " "), **fault | {"twins": tuple(fault["twins"])})
        for path in sorted(Path(__file__).parent.glob("*.toml"))
        for fault in tomllib.loads(path.read_text())["fault"]
    ]
