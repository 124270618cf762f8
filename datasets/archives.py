"""Files in archives, read from front to back; nothing is unpacked onto the disk."""

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
    """Name parts and content of the wanted files in a folder or an archive."""
    if path.is_dir():
        for file in sorted(path.rglob("*")):
            names = list(file.relative_to(path.parent).parts)
            if wanted(names) and file.is_file():
                yield names, file.read_bytes()
        return
    unpack = gzip.open if path.suffix == ".gz" else lzma.open
    # The files are decoded outside of `naming`, so that a damaged one is named itself.
    with ExitStack() as stack:
        with naming(path, "tar archive"):
            stream = stack.enter_context(unpack(path))
            archive = stack.enter_context(tarfile.open(fileobj=stream, mode="r|"))
        while (found := _next_file(path, archive, wanted)) is not None:
            yield found
        with naming(path, "tar archive"):
            while stream.read(1 << 20):  # to the end, where the checksum is
                pass


def _next_file(
    path: Path, archive: tarfile.TarFile, wanted: Callable[[list[str]], bool]
) -> tuple[list[str], bytes] | None:
    with naming(path, "tar archive"):
        while (member := archive.next()) is not None:
            names = member.name.split("/")
            if member.isfile() and wanted(names):
                content = archive.extractfile(member)
                assert content is not None
                return names, content.read()
    return None
