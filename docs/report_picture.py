"""The picture of the report: the page of the runs in the first hour with images.

Run it from anywhere, with the extras `report` and `browser`: it writes `report_picture.png` beside
itself. `CHROMIUM` names the program if it is not on the path.
"""

import contextlib
import io
import os
import runpy
import shutil
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright
from typer.testing import CliRunner

from twinsolve.bench.cli import app

DOCS = Path(__file__).parent
SIZE = {"width": 1100, "height": 900}


def main() -> None:
    path = os.environ.get("CHROMIUM") or shutil.which("chromium")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        made = Path(folder, "images")
        runpy.run_path(str(DOCS / "figures/make.py"))["make_images"](made)
        with contextlib.chdir(made):
            CliRunner().invoke(app, ["report"], catch_exceptions=False)
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        page = browser.new_page(viewport=SIZE)
        page.goto((made / "results/report.html").as_uri())
        page.wait_for_timeout(2000)  # charts are drawn by scripts
        picture = Image.open(io.BytesIO(page.screenshot()))
        browser.close()
    few_colours = picture.convert("RGB").quantize(256, dither=Image.Dither.NONE)
    few_colours.save(Path(__file__).with_suffix(".png"), optimize=True)


if __name__ == "__main__":
    main()
