"""The page of all results: tables, figures, charts and matrices in one file."""

import base64
import re
from pathlib import Path
from typing import Any

import numpy as np
from bokeh.embed import json_item
from bokeh.resources import Resources
from jinja2 import Environment, PackageLoader, StrictUndefined
from markdown_it import MarkdownIt
from markupsafe import Markup, escape

from ... import __version__
from ...datasets.files import write_whole
from ..clustering.matrix_files import DrawnMatrices
from .charts import draw_chart, draw_matrix
from .folders import Run

_MOST_ROWS = 5000  # of a table
_BOKEH = ["bokeh", "bokeh-widgets"]


def write_page(runs: list[Run], path: Path) -> None:
    """Write one page of all runs, which needs no other file."""
    here = Path(__file__).parent
    pages = Environment(loader=PackageLoader(__package__, "."), autoescape=True,
                        undefined=StrictUndefined, trim_blocks=True)  # fmt: skip
    pages.policies["json.dumps_kwargs"] = {}  # Bokeh's objects stand before what refers to them
    page = pages.get_template("page.html").render(
        version=__version__,
        runs=[_parts(run, f"run-{number}") for number, run in enumerate(runs)],
        bokeh=Markup(Resources(mode="inline", components=_BOKEH).render_js()),
        style=Markup((here / "page.css").read_text()),
        script=Markup((here / "page.js").read_text()),
    )
    write_whole(path, page)


def _parts(run: Run, name: str) -> dict[str, Any]:
    """What the template shows of a run; `name` is the id of its section."""
    record = run.record
    kept = {"settings", "versions", "command", "typed_in"}
    about = {**record["versions"], **{n: v for n, v in record.items() if n not in kept}}
    text, shown = _render(run)
    shown |= {f"{Path(file).stem}.png" for file in run.matrices}  # shown as charts
    others = sorted(path for path in run.folder.glob("*.png") if path.name not in shown)
    given = {n: v for n, v in record["settings"].items() if v is not None and v is not False}
    drawn = {file: draw_chart(rows) for file, rows in run.rows.items()}
    return {
        "id": name,
        "folder": str(run.folder),
        "title": run.title,
        "command": record.get("command"),
        "typed_in": record.get("typed_in"),
        "versions": record["versions"],
        "machine": record.get("machine", "-"),
        "settings": [(n, _write(v)) for n, v in given.items()],
        "about": [(n, _write(v)) for n, v in about.items()],
        "text": text,
        "pictures": [_picture(path) for path in others],
        "tables": [
            (file, Markup(table[:_MOST_ROWS].to_html(index=False, border=0)), _count(len(table)))
            for file, table in run.tables.items()
        ],
        "charts": [(file, json_item(chart)) for file, chart in drawn.items() if chart],
        "matrices": [
            _matrices(drawn, f"{name}-{file.removesuffix('.npz')}")
            for file, drawn in run.matrices.items()
        ],
    }  # fmt: skip


def _write(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name}={one}" for name, one in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _count(n_rows: int) -> str:
    return f": {n_rows:,} rows" + f", the first {_MOST_ROWS:,}" * (n_rows > _MOST_ROWS)


def _render(run: Run) -> tuple[Markup, set[str]]:
    """The summary as HTML, with its pictures, and the names of these."""
    reader = MarkdownIt("commonmark", {"html": False}).enable("table")
    shown: set[str] = set()

    def picture(renderer: Any, tokens: Any, place: int, *_: Any) -> str:
        source = tokens[place].attrs["src"]
        shown.add(source)
        path = run.folder / source
        known = path.parent == run.folder and path.is_file()
        return str(_picture(path) if known else escape(f"({source} is not in the folder.)"))

    reader.add_render_rule("image", picture)
    reader.add_render_rule("table_open", lambda *_: '<div class="table"><table>')
    reader.add_render_rule("table_close", lambda *_: "</table></div>")
    text = run.text.rpartition("\nSettings: ")[0] or run.text  # what follows is shown above
    below = re.sub(r"^#", "##", text, flags=re.M)  # under the heading of the run
    return Markup(reader.render(below)), shown


def _picture(path: Path) -> Markup:
    content = base64.b64encode(path.read_bytes()).decode()
    return Markup(
        '<button class="picture" title="Enlarge"><img alt="{}" src="data:image/png;base64,{}">'
        "</button>"
    ).format(path.stem, content)


def _matrices(drawn: DrawnMatrices, key: str) -> dict[str, Any]:
    return {
        "key": key,
        "title": drawn.title,
        "points": _points(drawn),
        "matrices": [
            {
                "name": matrix.name,
                "note": "" if len(matrix.values) == matrix.n_entries else (
                    f"The {len(matrix.values):,} largest of {matrix.n_entries:,} entries."
                ),
                "plot": json_item(draw_matrix(drawn, matrix, key)),
            }
            for matrix in drawn.matrices
        ],
    }  # fmt: skip


def _points(drawn: DrawnMatrices) -> dict[str, Any]:
    """Numbers, labels and, in 256 grey levels from the smallest to the largest, the points."""
    found: dict[str, Any] = {
        "word": drawn.word,
        "numbers": drawn.numbers.tolist(),
        "labels": drawn.labels.tolist(),
    }
    if drawn.points is None:
        return found
    points = drawn.points - drawn.points.min()
    levels = np.round(255 * points / (points.max() or 1)).astype(np.uint8)
    content = base64.b64encode(levels.tobytes()).decode()
    return {**found, "shape": points.shape[1:], "levels": content}
