"""Build the source archive and the wheel of the last commit into dist/: build.py [ADDRESS].

ADDRESS is the public address of the repository. With it the archives name it, the links of their
README are absolute, and their CITATION.cff resolves; without it they have no address. Files that
are not committed are left out. The wheel is built from the source archive, and knows the commit.
"""

import re
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parents[1]
_LINK = re.compile(r"(!?\[[^\]]*\])\((?![a-z]+:|#)([^)]+)\)")
_BUILD = "from setuptools import build_meta; build_meta.build_{}({!r})"


def main(address: str = "", to: Path = ROOT / "dist") -> None:
    """Build both archives, and print their names and sizes in MB."""
    to.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as name:
        sources, unpacked = Path(name, "sources"), Path(name, "unpacked")
        sources.mkdir()
        _copy_commit(sources)
        if address:
            _name_address(sources, address.rstrip("/"))
        archive = _build(sources, "sdist", to)
        unpacked.mkdir()
        subprocess.run(["tar", "-xf", archive, "-C", unpacked], check=True)
        wheel = _build(next(unpacked.iterdir()), "wheel", to)
    for path in (archive, wheel):
        print(f"{path} {path.stat().st_size / 1e6:.1f} MB")


def _copy_commit(folder: Path) -> None:
    git = ["git", "-C", ROOT]
    with (folder.parent / "commit.tar").open("wb") as file:
        subprocess.run([*git, "archive", "HEAD"], stdout=file, check=True)
    subprocess.run(["tar", "-xf", folder.parent / "commit.tar", "-C", folder], check=True)
    commit = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
    (folder / "commit").write_text(commit.stdout)


def _name_address(folder: Path, address: str) -> None:
    version = re.search(r'__version__ = "(.+)"', (folder / "__init__.py").read_text())[1]

    def absolute(link: re.Match[str]) -> str:
        kind = "raw" if link[1].startswith("!") else "blob"
        return f"{link[1]}({address}/{kind}/v{version}/{link[2]})"

    readme, citation, setup = (folder / n for n in ("README.md", "CITATION.cff", "setup.cfg"))
    readme.write_text(_LINK.sub(absolute, readme.read_text()))
    citation.write_text(f"{citation.read_text()}repository-code: {address}\n")
    urls = f"Source = {address}\n    Changes = {address}/blob/v{version}/CHANGELOG.md"
    named = f"[metadata]\nurl = {address}\nproject_urls =\n    {urls}\n"
    setup.write_text(setup.read_text().replace("[metadata]\n", named, 1))


def _build(folder: Path, kind: str, to: Path) -> Path:
    before = {path: path.stat().st_mtime_ns for path in to.iterdir()}
    command = [sys.executable, "-c", _BUILD.format(kind, str(to.resolve()))]
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    return next(p for p in to.iterdir() if before.get(p) != p.stat().st_mtime_ns)


if __name__ == "__main__":
    main(*sys.argv[1:2])
