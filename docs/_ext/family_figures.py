"""Runs the pages of the families and the first hour with images before a build."""

import runpy
from pathlib import Path

from sphinx.application import Sphinx


def make_figures(app: Sphinx) -> None:
    """Write what is not there, or older than a page or the drawings."""
    figures = Path(app.srcdir) / "figures"
    make, out = runpy.run_path(str(figures / "make.py")), figures / "out"
    out.mkdir(exist_ok=True)
    for page in sorted((Path(app.srcdir) / "families").glob("*.md")):
        if _is_old(out / f"{page.stem}.png", page, *figures.glob("*.py")):
            make["make_page"](page, out)
    if _is_old(out / "images/results/segment/scenes.png", make["IMAGES"], figures / "make.py"):
        make["make_images"](out / "images")


def _is_old(picture: Path, *sources: Path) -> bool:
    """Whether the picture is missing, or older than a source."""
    newest = max(source.stat().st_mtime for source in sources)
    return not picture.exists() or picture.stat().st_mtime < newest


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    app.connect("builder-inited", make_figures)
    return {"parallel_read_safe": True}
