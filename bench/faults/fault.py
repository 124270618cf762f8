"""A fault: a piece of the package's source, and what stands in its place."""

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


class Faults:
    """The faults of one kind, as they are listed."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.listed: list[Fault] = []

    def add(
        self, file: str, name: str, old: str, new: str, *twins: str, survives: str = ""
    ) -> None:
        self.listed.append(Fault(self.kind, name, file, old, new, twins, survives))
