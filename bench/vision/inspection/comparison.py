"""Compare the layers of several models in one table and one figure."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from ....unrolled.diagnostics import LogitParts
from ...figures import legend, panels, save
from ...tables import Lines, number
from ...timing import Progress
from .figures import label_panel, take_logs
from .measures import condition_columns, jacobian_columns, learned_columns, observe
from .sources import Source, find_source


class _Measure(NamedTuple):
    """Heading and format of a column, and title and unit of its panel."""

    heading: str
    form: str
    title: str
    unit: str
    log: bool = False


_TOKENS = {
    "token_cosine": _Measure(
        "token cosine", ".3f", "Tokens behind the block", "mean cosine of two tokens"
    ),
    "hc_share": _Measure("HC share", ".3f", "High frequencies behind the block", "|HC x| / |x|"),
    "high_bands": _Measure(
        "high bands", ".3f", "Spectrum of attention", "higher bands, mean / first band"
    ),
    "nonzero_mean": _Measure("non-zeros", ".3f", "Non-zeros of attention", "share of the weights"),
    "map_similarity": _Measure(
        "map cosine", ".3f", "Map similarity", "mean |cosine| of two columns"
    ),
    "map_similarity_to_previous": _Measure(
        "to layer before", ".3f", "Map similarity of layers", "mean |cosine| to the layer before"
    ),
    "head_redundancy": _Measure(
        "head cosine", ".3f", "Head redundancy", "mean |cosine| of two heads"
    ),
    "gradient_cosine": _Measure(
        "gradient cosine", ".3f", "Gradient cosine", "cosine with symmetric kernel's"
    ),
}
_MIXING = {
    f"mixing_{name}": _TOKENS[name]._replace(title=f"{_TOKENS[name].title}, mixing")
    for name in ("high_bands", "map_similarity", "map_similarity_to_previous", "head_redundancy")
}
_ENERGIES = {
    "log10_condition_branch": _Measure(
        "log10 condition, no skip", ".2f", "Condition of attention, no skip", "log10, median"
    ),
    "log10_condition_after": _Measure(
        "with skip", ".2f", "Condition with skip connection", "log10, median"
    ),
    "J": _Measure("J", ".3g", "Smoothness J", "per unit of kernel weight", log=True),
    "J_sum": _Measure(
        "J, undivided", ",.4g", "Smoothness J, undivided", "sum over pairs", log=True
    ),
}
_JACOBIANS = {
    f"jacobian_{part}{which}": _Measure(
        heading.format(part), form, f"Jacobian of the {part}", "condition, log10, one image"
    )
    for part in ("attention", "block")
    for which, heading, form in (
        ("", "{}, largest", ".3g"), ("_median", "{}, median", ".3g"),
        ("_smallest", "{}, smallest", ".3g"), ("_condition", "{}, log10 condition", ".2f"),
    )
}  # fmt: skip
_LOGITS = {
    f"logits_{part}": _Measure(part.replace("_", " to "), ".3f", "", "")
    for part in LogitParts._fields
}
_LEARNED = {
    "learned_omega": "Omega of AttnScale",
    "learned_t_minus_s": "t - s of FeatScale",
    "learned_lam": "Learned lam",
}
_COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000"]
_LEGEND_WIDTH, _LINE_WIDTH = 180, 8  # characters: of the figure, and of a line in the legend
_WORD = re.compile(r"\d+-steps|seed-\d+|[^-]+")
_CODE = re.compile(r"-[0-9a-f]{8}$")


def shorten_names(models: Sequence[str]) -> list[str]:
    """Short names of folders: the first word, and the words that not all folders share.

    Raises
    ------
    ValueError
        If a model is named twice.
    """
    names = [Path(model).name for model in models]
    without_code = [_CODE.sub("", name) for name in names]
    for tried in (without_code, names, models):
        if len(set(tried)) == len(models):
            words = [_WORD.findall(name) for name in tried]
            shared = set.intersection(*map(set, words))
            return ["-".join([own[0], *(x for x in own[1:] if x not in shared)]) for own in words]
    raise ValueError(f"MODEL: must be different models, got {', '.join(models)}")


def measure_models(
    models: Sequence[str], images: str | None, untrained: bool, progress: Progress
) -> tuple[pd.DataFrame, list[str]]:
    """A row for each model and layer, and a sentence for each model and its images.

    Raises
    ------
    ValueError, FileNotFoundError
        If a model is named twice, or as in `find_source`.
    """
    names = shorten_names(models)
    sources = [find_source(model, images=images, untrained=untrained) for model in models]
    rows: list[dict[str, Any]] = []
    for name, source in progress(list(zip(names, sources, strict=True)), len(names)):
        rows += [{"model": name, **row} for row in _measure_layers(source)]
    shown = [
        f"{name} is {model}, {source.weights}; shown {source.shown}."
        for name, model, source in zip(names, models, sources, strict=True)
    ]
    return pd.DataFrame(rows), shown


def _measure_layers(source: Source) -> Iterator[dict[str, Any]]:
    for place, layer in enumerate(observe(source.model, source.images), start=1):
        yield {
            "layer": place,
            "class": type(layer.seen.operator).__name__,
            **layer.measures,
            **condition_columns(layer),
            **jacobian_columns(layer),
            **learned_columns(layer),
        }


def comparison_parts(table: pd.DataFrame) -> dict[str, Lines]:
    """Headings and cells of the tables of the summary, by title."""
    return {
        "Tokens and attention": _make_lines(table, _TOKENS),
        "Mixing matrices, where they are not the attention matrices": _make_lines(
            table.dropna(subset=table.columns.intersection(list(_MIXING)), how="all"), _MIXING
        ),
        "Condition and energies": _make_lines(table, _ENERGIES),
        "Singular values of Jacobians, one image": _make_lines(table, _JACOBIANS),
        "Parts of the first layer's logits": _make_lines(table[table.layer == 1], _LOGITS),
        "Learned parameters, medians": _make_learned_lines(table),
    }


def _make_lines(table: pd.DataFrame, measures: dict[str, _Measure]) -> Lines:
    kept = {column: measure for column, measure in measures.items() if column in table}
    cells = [
        (row["model"], f"{row['layer']}", *(number(row[c], m.form) for c, m in kept.items()))
        for _, row in table.iterrows()
    ]
    headings = ("model", "layer", *(measure.heading for measure in kept.values()))
    return headings, cells if kept else []


def _make_learned_lines(table: pd.DataFrame) -> Lines:
    """A line for each model and learned parameter, with values layer by layer."""
    cells: list[tuple[str, ...]] = []
    for name, rows in table.groupby("model", sort=False):
        for column in rows.filter(like="learned_").dropna(axis=1, how="all"):
            values = ", ".join(number(value, ".3f") for value in rows[column])
            cells.append((str(name), column.removeprefix("learned_").replace("_", " "), values))
    return ("model", "parameter", "layer after layer"), cells


def draw_comparison(table: pd.DataFrame, directory: Path) -> None:
    """Draw compare.png and .pdf: a panel for each measure, a line for each model."""
    measures = _TOKENS | _MIXING | _ENERGIES
    measures |= {c: _JACOBIANS[c] for c in _JACOBIANS if c.endswith("_condition")}
    measures |= {c: _Measure("", "", title, "median") for c, title in _LEARNED.items()}
    drawn = {c: measure for c, measure in measures.items() if c in table and table[c].notna().any()}
    figure, axes = panels(len(drawn), (3.3, 2.7), columns=4)
    figure.get_layout_engine().set(w_pad=0.09)  # type: ignore[union-attr, call-arg]
    for own, (column, measure) in zip(axes, drawn.items(), strict=True):
        for place, (name, rows) in enumerate(table.groupby("model", sort=False)):
            own.plot(
                rows.layer, rows[column], "-" if place < len(_COLOURS) else "--",
                color=_COLOURS[place % len(_COLOURS)], marker="os^DvP*X"[place % 8], label=name,
                markersize=4.5, linewidth=1.4,
            )  # fmt: skip
        if measure.log:
            take_logs(own)
        if column in _LEARNED:
            own.axhline(0, color="0.5", linewidth=0.8)
        label_panel(own, measure.title, measure.unit)
    names = table["model"].unique()
    width = max(map(len, names)) + _LINE_WIDTH
    legend(figure, "lower center", ncols=max(1, min(len(names), _LEGEND_WIDTH // width)))
    save(figure, directory / "compare.png")
