"""Run the code of pages: what it prints and draws.

``make.py`` writes, into ``out/`` beside it, what the blocks of ``families/NAME.md`` print, as
``NAME-1.txt`` and so on, and the figure ``NAME.png`` that the function of that name in
``drawings.py`` draws of the variables of the page. The pictures of ``first_hour/images.md`` are
those that its code and its commands write.
"""

import contextlib
import inspect
import io
import re
import runpy
import shlex
import shutil
import warnings
from pathlib import Path
from typing import Any
from unittest import mock

HERE = Path(__file__).parent
PAGES = HERE.parent / "families"
IMAGES = HERE.parent / "first_hour/images.md"
_RUN = ("twinsolve denoise ", "twinsolve segment ")  # commands of `IMAGES` that draw its pictures


def run_page(page: Path) -> tuple[dict[str, Any], list[str]]:
    """Run the Python blocks of a page in one namespace: that, and what each block prints.

    Commands that draw pictures run in their place.
    """
    names: dict[str, Any] = {"__name__": page.stem}
    outputs = []
    text = page.read_text(encoding="utf-8")
    for language, block in re.findall(r"```(python|sh)\n(.*?)```", text, re.DOTALL):
        if language == "python":
            with contextlib.redirect_stdout(io.StringIO()) as printed:
                exec(compile(block, str(page), "exec"), names)
            outputs.append(printed.getvalue())
        elif page == IMAGES and block.startswith(_RUN):
            _run_command(block)
    return names, outputs


def _run_command(line: str) -> None:
    from typer.testing import CliRunner

    from twinsolve.bench.cli import app

    words = shlex.split(line.replace("\\\n", " "))
    with mock.patch("sys.argv", words):  # the results keep the line
        done = CliRunner().invoke(app, words[1:], catch_exceptions=False)
    if done.exit_code:
        raise RuntimeError(f"{line}: {done.output}")


def make_images(folder: Path) -> None:
    """Write the pictures of the first hour with images."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with contextlib.chdir(folder):
        run_page(IMAGES)


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
    make_images(folder / "images")


if __name__ == "__main__":
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        make_all()
