"""Runs the pages of the families before a build, for what they print and draw."""

import runpy
from pathlib import Path

from sphinx.application import Sphinx


def make_figures(app: Sphinx) -> None:
    """Write what is not there, or older than a page or the drawings."""
    figures = Path(app.srcdir) / "figures"
    make = runpy.run_path(str(figures / "make.py"))
    (figures / "out").mkdir(exist_ok=True)
    for page in sorted((Path(app.srcdir) / "families").glob("*.md")):
        picture = figures / "out" / f"{page.stem}.png"
        sources = (page, *figures.glob("*.py"))
        if not picture.exists() or picture.stat().st_mtime < max(
            s.stat().st_mtime for s in sources
        ):
            make["make_page"](page, figures / "out")


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    app.connect("builder-inited", make_figures)
    return {"parallel_read_safe": True}
