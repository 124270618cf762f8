"""Charts of results by Bokeh: measures against settings, and matrices with their entries."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
from bokeh.layouts import column, row
from bokeh.models import (
    ColumnDataSource,
    CustomJS,
    CustomJSHover,
    HoverTool,
    Legend,
    LegendItem,
    LinearColorMapper,
    Select,
    TapTool,
)
from bokeh.palettes import Category20_20, Greys256
from bokeh.plotting import figure
from bokeh.transform import factor_cmap

from ..clustering.matrix_files import DrawnMatrices, Matrix

_MOST_ROWS, _MOST_GROUPS, _MOST_VALUES, _MOST_COLOURS = 2000, 10_000, 60, 12


def _same(values: Any) -> Any:
    return values


def _error(values: Any) -> Any:
    return 100 - values


# Columns of numbers that may be drawn, with words for them; the first in a table is drawn first.
_MEASURES: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "miou": ("mean IoU, %", _same),
    "accuracy": ("error, %", _error),
    "top1": ("error, %", _error),
    "psnr": ("PSNR, dB", _same),
    "clean": ("loss", _same),
    "deviation": ("deviation", _same),
    "inference_ratio": ("time of inference, ratio", _same),
    "training_ratio": ("time of training, ratio", _same),
    "ratio": ("time, ratio", _same),
    "error": ("error", _same),
    "top5": ("error of the best five, %", _error),
    "validation": ("validation", _same),
    "nmi": ("NMI", _same),
    "ari": ("ARI", _same),
    "selection_score": ("score without labels", _same),
    "agreement": ("agreement", _same),
    "connectivity": ("connectivity (ME-3)", _same),
    "subspace_error": ("subspace error (ME-2)", _same),
    "distance": ("distance to the solution (ME-4)", _same),
    "gap_max": ("largest gap", _same),
    "gap": ("gap", _same),
    "ssim": ("SSIM", _same),
    "fit_seconds": ("seconds of a fit", _same),
    "seconds": ("seconds", _same),
    "ms": ("ms", _same),
    "ms_per_row": ("ms a row", _same),
    "memory_mib": ("MiB", _same),
    "token_cosine": ("cosine of tokens", _same),
    "log10_condition": ("log10 of the condition number", _same),
    "loss": ("loss", _same),
}  # fmt: skip
_AVERAGED = {"seed", "fit_seed", "trial"}
_NO_SETTINGS = _AVERAGED | {"note", "rank", "kernel", "selection", "family", "n_test", "labels"}
_FIRST = ("settings", "sigma", "row", "method", "operator", "solver", "layer", "case", "twin")
_COLOURED = ("method", "row", "operator", "solver", "model")


def draw_chart(table: pd.DataFrame) -> Any | None:
    """A chart of a measure against a setting, both to be chosen; None if there is nothing to draw.

    Above 2,000 rows, values are means over seeds and trials.
    """
    table = _split_settings(table)
    if "accuracy" in table and {"nmi", "selection_score"} & {*table}:  # of clusters: a share of 1
        table = table.assign(accuracy=100 * table.accuracy)
    measures = {
        words: change(table[name])
        for name, (words, change) in reversed(_MEASURES.items())
        if name in table
        and pd.api.types.is_numeric_dtype(table[name])
        and table[name].nunique() > 1
    }
    measures = dict(reversed(measures.items()))
    settings = {name: _write(table[name]) for name in table if _is_setting(table[name])}
    if not measures or not settings:
        return None
    drawn = pd.DataFrame({**settings, **measures})
    if len(drawn) > _MOST_ROWS:
        drawn = drawn.groupby(list(settings), sort=False).mean().reset_index()
    if len(drawn) > _MOST_GROUPS:
        return None
    return _lay_out(drawn, list(measures), {name: _order(drawn[name]) for name in settings})


def _split_settings(table: pd.DataFrame) -> pd.DataFrame:
    """The table with a column for each setting in the words of its column `settings`."""
    if "settings" not in table:
        return table
    words = [
        dict(part.split("=", 1) for part in str(text).split(", ") if "=" in part)
        for text in table.settings.fillna("")
    ]
    own = pd.DataFrame(words, index=table.index)
    return table.join(own[[name for name in own if name not in table]])


def _is_setting(values: pd.Series) -> bool:
    """Whether values were set: a few words or round numbers."""
    name = str(values.name)
    if name in _NO_SETTINGS or name in _MEASURES or name.endswith(("_lowest", "_highest")):
        return False
    if values.map(lambda value: isinstance(value, (list, dict))).any():
        return False
    numbers = values.dropna() if pd.api.types.is_float_dtype(values) else []
    if any(float(f"{number:.4g}") != number for number in numbers):
        return False
    return 2 <= values.nunique(dropna=False) <= _MOST_VALUES


def _write(values: pd.Series) -> pd.Series:
    """Values as words."""
    return values.map(
        lambda value: "-" if value in ("", None) or value != value
        else format(value, ",.6g") if isinstance(value, float) else str(value)
    )  # fmt: skip


def _order(words: pd.Series) -> list[str]:
    """The different words: numbers, and settings such as "gamma=5", by size; else as they come."""
    every = pd.Series(list(dict.fromkeys(words)))
    named = every.str.extract(r"^(?:(\w+)=)?(.*)$")
    sizes = pd.to_numeric(named[1].str.replace(",", ""), errors="coerce")
    if not (sizes.notna() | (every == "-")).all():
        return list(every)
    order = named.assign(size=sizes).sort_values([0, "size"], kind="stable", na_position="last")
    return list(every[order.index])


_UPDATE = """
const colours = orders[colour.value] ?? ["all"], settings = orders[setting.value]
const named = source.data[colour.value] ?? Array(source.length).fill("all")
const apart = Math.min(0.08, 0.8 / colours.length)
const shifts = named.map((name) => apart * (colours.indexOf(name) - (colours.length - 1) / 2))
source.data = {
  ...source.data,
  _x: source.data[setting.value].map((word, k) => settings.indexOf(word) + shifts[k]),
  _y: source.data[measure.value],
  _colour: named,
}
mapper.factors = colours
legend.visible = colours.length > 1 && colours.length <= most
xaxis.ticker.ticks = settings.map((_, place) => place)
xaxis.major_label_overrides = new Map(settings.map((word, place) => [place, word]))
xaxis.axis_label = setting.value
yaxis.axis_label = measure.value
x_range.setv({ start: -0.5, end: settings.length - 0.5 })
"""


def _lay_out(drawn: pd.DataFrame, measures: list[str], orders: dict[str, list[str]]) -> Any:
    first = next((name for name in _FIRST if name in orders), next(iter(orders)))
    coloured = [name for name in _COLOURED if name in orders and name != first]
    setting = Select(title="setting", value=first, options=list(orders))
    measure = Select(title="measure", value=measures[0], options=measures)
    colour = Select(title="colours", value=next(iter(coloured), "none"), options=["none", *orders])
    named = list(drawn[colour.value]) if coloured else ["all"] * len(drawn)
    names, words = orders.get(colour.value, ["all"]), orders[first]
    apart = min(0.08, 0.8 / len(names))
    places = drawn[first].map(words.index) + apart * (
        np.array([names.index(name) for name in named]) - (len(names) - 1) / 2
    )
    columns = {name: drawn[name].to_numpy() for name in drawn}
    source = ColumnDataSource(
        {**columns, "_x": places.to_numpy(), "_y": columns[measures[0]], "_colour": named}
    )
    plot = figure(
        x_range=(-0.5, len(words) - 0.5), height=480, sizing_mode="stretch_width",
        tools="pan,wheel_zoom,box_zoom,reset,save", active_scroll=None, toolbar_location="above",
        x_axis_label=first, y_axis_label=measures[0],
    )  # fmt: skip
    plot.toolbar.logo = None
    plot.xaxis.ticker = list(range(len(words)))
    plot.xaxis.major_label_overrides = dict(enumerate(words))
    plot.xaxis.major_label_orientation = 0.8
    plot.xgrid.grid_line_color = None
    fill = factor_cmap("_colour", Category20_20 * 3, names)
    dots = plot.scatter("_x", "_y", size=8, color=fill, alpha=0.8, source=source)
    legend = Legend(
        items=[LegendItem(label={"field": "_colour"}, renderers=[dots])],
        orientation="horizontal", ncols=3, border_line_color=None,
        visible=1 < len(names) <= _MOST_COLOURS,
    )  # fmt: skip
    plot.add_layout(legend, "above")
    said = [(name, f"@{{{name}}}") for name in orders if name != "settings"]
    plot.add_tools(HoverTool(renderers=[dots], tooltips=[("value", "@_y"), *said]))
    update = CustomJS(
        args={
            "source": source, "setting": setting, "measure": measure, "colour": colour,
            "orders": orders, "mapper": fill.transform, "legend": legend, "most": _MOST_COLOURS,
            "x_range": plot.x_range, "xaxis": plot.xaxis[0], "yaxis": plot.yaxis[0],
        },
        code=_UPDATE,
    )  # fmt: skip
    for choice in (setting, measure, colour):
        choice.js_on_change("value", update)
        choice.sizing_mode = "stretch_width"
    choices = row(setting, measure, colour, sizing_mode="stretch_width")
    return column(choices, plot, sizing_mode="stretch_width")


_TOOLTIPS = [("entry", "@value{0.0000}"), ("row", "@row{custom}"), ("column", "@column{custom}")]
_QUANTILE = 0.99  # of the sizes, as the end of the colour scale
_SHOW = "showEntry(key, source.data.column[k], source.data.row[k], source.data.value[k])"


def draw_matrix(drawn: DrawnMatrices, matrix: Matrix, key: str) -> Any:
    """The entries of a matrix as squares; the page shows the points of the one under the mouse."""
    n, sizes = len(drawn.numbers), np.abs(matrix.values)
    source = ColumnDataSource(
        {"row": matrix.rows, "column": matrix.columns, "value": matrix.values, "size": sizes}
    )
    plot = figure(
        x_range=(-0.5, n - 0.5), y_range=(n - 0.5, -0.5), aspect_ratio=1,
        sizing_mode="stretch_width", tools="pan,wheel_zoom,box_zoom,reset,save",
        active_scroll=None, match_aspect=True,
    )  # fmt: skip
    plot.toolbar.logo = None
    plot.grid.visible = False
    high = float(np.quantile(sizes, _QUANTILE)) if len(sizes) else 1.0
    grey = {"field": "size", "transform": LinearColorMapper(Greys256[::-1], low=0, high=high)}
    squares = plot.rect("column", "row", 1, 1, fill_color=grey, line_color=grey, source=source)
    edges = np.flatnonzero(np.diff(drawn.labels)) + 0.5
    across, along = [[-0.5, n - 0.5]] * len(edges), [[edge, edge] for edge in edges]
    plot.multi_line(along + across, across + along, color="#1f77b4", alpha=0.6)
    middles = (np.concatenate([[-0.5], edges]) + np.concatenate([edges, [n - 0.5]])) / 2
    names = drawn.labels[np.concatenate([[0], np.ceil(edges).astype(int)])]
    for axis in (plot.xaxis, plot.yaxis):
        axis.ticker = middles.tolist()
        axis.major_label_overrides = {
            middle: str(name) for middle, name in zip(middles.tolist(), names, strict=True)
        }
    args = {name: getattr(drawn, name).tolist() for name in ("numbers", "labels")}
    code = f"return `${{numbers[value]}}, {drawn.word} ${{labels[value]}}`"
    point = CustomJSHover(args=args, code=code)
    show = CustomJS(
        args={"source": source, "key": key},
        code=f"const k = (cb_data.index ?? source.inspected).indices[0]; if (k >= 0) {_SHOW}",
    )
    plot.add_tools(
        HoverTool(
            renderers=[squares],
            tooltips=_TOOLTIPS,
            formatters={"@row": point, "@column": point},
            callback=show,
            visible=False,
        ),
        TapTool(behavior="inspect", renderers=[squares], callback=show, visible=False),
    )  # fmt: skip
    return plot
