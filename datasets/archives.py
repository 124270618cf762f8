"""Read the files in an archive from front to back, without unpacking it onto the disk."""

import gzip
import lzma
import tarfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

from .files import naming


def packed_files(
    path: Path, wanted: Callable[[list[str]], bool]
) -> Iterator[tuple[list[str], bytes]]:
    """Yield the path, in parts, and the content of each wanted file of a folder or an archive."""
    if path.is_dir():
        for file in sorted(path.rglob("*")):
            names = list(file.relative_to(path.parent).parts)
            if wanted(names) and file.is_file():
                yield names, file.read_bytes()
        return
    unpack = gzip.open if path.suffix == ".gz" else lzma.open
    # The caller decodes each file outside of `naming`, so that an error names that file.
    with ExitStack() as stack:
        with naming(path, "tar archive"):
            stream = stack.enter_context(unpack(path))
            archive = stack.enter_context(tarfile.open(fileobj=stream, mode="r|"))
        while (named_content := _next_file(path, archive, wanted)) is not None:
            yield named_content
        with naming(path, "tar archive"):
            while stream.read(1 << 20):  # read to the end, where the checksum is
                pass


def _next_file(
    path: Path, archive: tarfile.TarFile, wanted: Callable[[list[str]], bool]
) -> tuple[list[str], bytes] | None:
    """Return the path and content of the next wanted file, or None at the archive's end."""
    with naming(path, "tar archive"):
        while (member := archive.next()) is not None:
            names = member.name.split("/")
            if member.isfile() and wanted(names):
                content = archive.extractfile(member)
                assert content is not None
                return names, content.read()
    return None
