"""Run the Python of a page, and of every page on a family: its output and its figure.

``make.py`` writes, into ``out/`` beside it, what the blocks of ``families/NAME.md`` print, as
``NAME-1.txt`` and so on, and the figure ``NAME.png`` that the function of that name in
``drawings.py`` draws of the variables of the page.
"""

import contextlib
import inspect
import io
import re
import runpy
import warnings
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PAGES = HERE.parent / "families"


def run_page(page: Path) -> tuple[dict[str, Any], list[str]]:
    """Run the Python blocks of a page in one namespace: that, and what each block prints."""
    names: dict[str, Any] = {"__name__": page.stem}
    outputs = []
    for block in re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(compile(block, str(page), "exec"), names)
        outputs.append(printed.getvalue())
    return names, outputs


def make_page(page: Path, folder: Path) -> None:
    """Write what a page on a family prints and the figure of it."""
    import matplotlib

    matplotlib.use("Agg")
    names, outputs = run_page(page)
    for number, text in enumerate(outputs, 1):
        (folder / f"{page.stem}-{number}.txt").write_text(text or "\n", encoding="utf-8")
    draw = runpy.run_path(str(HERE / "drawings.py"))[page.stem]
    figure = draw(**{name: names[name] for name in inspect.signature(draw).parameters})
    figure.savefig(folder / f"{page.stem}.png", dpi=110)


def make_all(folder: Path = HERE / "out") -> None:
    """Make every page's output and figure."""
    folder.mkdir(parents=True, exist_ok=True)
    for page in sorted(PAGES.glob("*.md")):
        make_page(page, folder)


if __name__ == "__main__":
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        make_all()
