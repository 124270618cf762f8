"""Report of `twinsolve inspect`: sentences and tables."""

import pandas as pd

from ...tables import Lines, Results, number
from .measures import UNDETERMINED

_Columns = dict[str, tuple[str, str]]  # heading and format
_LAYER: _Columns = {"layer": ("layer", ".0f"), "class": ("operator", "s")}
_CHECKED: _Columns = _LAYER | {
    "twin": ("held against", "s"),
    "equation": ("equation", "s"),
    "evidence": ("evidence", "s"),
    "deviation": ("deviation", ".1e"),
    "tolerance": ("tolerance", ".0e"),
}
_DEPTH: _Columns = _LAYER | {
    "token_cosine": ("token cosine", ".3f"),
    "hc_share": ("HC share", ".3f"),
    "hc_attention": ("behind attention", ".3f"),
    "hc_attention_sharp": ("bound by matrices", ".3g"),
    "hc_attention_bound": ("bound by theorem", ".3g"),
    "J": ("J", ".3g"),
    "J_sum": ("J, undivided", ".3g"),
    "E": ("E", ".3g"),
}
_SPECTRA: _Columns = _LAYER | {
    "log10_condition_before": ("log10 condition: tokens", ".2f"),
    "log10_condition_branch": ("attention, no skip", ".2f"),
    "log10_condition_after": ("with skip", ".2f"),
    "singular_value_2": ("2nd singular value", ".3f"),
    "eigenvalue_2": ("2nd eigenvalue", ".3f"),
    "jacobian_attention": ("Jacobian of attention", ".3g"),
    "jacobian_block": ("of block", ".3g"),
    "jacobian_block_median": ("median", ".3g"),
    "jacobian_block_smallest": ("smallest", ".2g"),
    "nonzero_share": ("non-zeros", ".0%"),
    "head_redundancy": ("head redundancy", ".3f"),
    "mixing_singular_value_2": ("2nd singular value of mixing", ".3f"),
    "mixing_eigenvalue_2": ("2nd eigenvalue of mixing", ".3f"),
    "mixing_head_redundancy": ("head redundancy of mixing", ".3f"),
}
_ORIGINS: _Columns = _LAYER | {
    "origin": ("solves on its q, k", "s"),
    "origin_distance": ("distance left", ".1e"),
    "nearest": ("nearest on the tokens", "s"),
    "nearest_distance": ("distance left", ".3f"),
    "nearest_baseline": ("without problem", ".3f"),
}
_NULLS = {
    "": "as it is", "permuted_": "on permuted tokens", "random_": "with random weights",
}  # fmt: skip
_COSINES = {
    "gaussian": "cosine with C*: Gaussian", "least_squares": "least squares",
    "low_rank": "low rank", "sparse": "sparse",
}  # fmt: skip


def add_parts(results: Results, table: pd.DataFrame, shown: str) -> None:
    """Print and write the sentence `shown`, the verdicts and the tables on a model."""
    results.add_sentences([shown, *verdicts(table)])
    for title, lines in parts(table).items():
        results.add_table(title, lines)


def parts(table: pd.DataFrame) -> dict[str, Lines]:
    """Headings and cells of each table of the summary, by title."""
    layers = table[table["kind"] == "layer"]
    tables = {
        "Layers against their solvers": _make_lines(layers, _CHECKED),
        "Tokens over depth": _make_lines(layers, _DEPTH),
        "Conditioning and spectra": _make_lines(layers, _SPECTRA),
        "Classical problems": _make_lines(_add_head_means(layers, table), _ORIGINS),
        "Heads beside classical problems, and by chance": _make_null_lines(table),
        "Parameters, learned and fitted": _make_parameter_lines(table),
        "Other parts against their solvers": _make_module_lines(table),
    }
    return {title: lines for title, lines in tables.items() if lines[1]}


def verdicts(table: pd.DataFrame) -> list[str]:
    """Sentences on agreement with solvers, and on heads that classical problems explain.

    A problem explains a head if its distance is less than half that of the nearest
    ``a I + b 1 1^T``, see `Origin.fits`.
    """
    said = [_say_agreement(table)]
    unknown = table[(table["kind"] == "layer") & table.verdict.isna()]
    if len(unknown):
        said.append(f"No solver judges {', '.join(unknown.name)} on these tokens.")
    if explained := _count_explained(table):
        first, *others = explained.items()
        by_chance = "; ".join(f"{words}, {count}" for words, count in others)
        said.append(
            "A classical problem on the tokens that enter the layer explains "
            f"{first[1]} heads. By chance: {by_chance}."
        )
    return said


def _count_explained(table: pd.DataFrame) -> dict[str, str]:
    """Number of heads that a problem explains, in the network and under each null."""
    counts = {}
    for null, words in _NULLS.items():
        if f"{null}nearest_fits" in table:
            fits = table[f"{null}nearest_fits"].dropna().astype(bool)
            counts[words] = f"{fits.sum()} of {len(fits)}"
    return counts


def _make_null_lines(table: pd.DataFrame) -> Lines:
    """Counts and means over all heads, for the network and under each null."""
    head = (
        "heads", "explained", "parameter determined", "distance left", "without problem",
        *_COSINES.values(),
    )  # fmt: skip
    lines: list[tuple[str, ...]] = []
    explained = _count_explained(table)
    for null, words in _NULLS.items():
        if words in explained:
            own = table[table[f"{null}nearest_fits"].notna()]
            n_known = (own[f"{null}nearest_parameter"] != UNDETERMINED).sum()
            means = [
                number(own[f"{null}nearest_{x}"].mean(), ".3f") for x in ("distance", "baseline")
            ]
            cosines = [number(own[f"{null}{name}_cosine"].mean(), ".2f") for name in _COSINES]
            lines.append((words, explained[words], f"{n_known} of {len(own)}", *means, *cosines))
    return head, lines


def _say_agreement(table: pd.DataFrame) -> str:
    judged = table[table.verdict.notna()]
    broken = judged[judged.verdict == "broken"]
    if len(broken):
        each = [
            f"{r['name']} {r.deviation:.1e} above {r.tolerance:.0e}" for _, r in broken.iterrows()
        ]
        return f"NOT as their solvers: {', '.join(each)}."
    worst = (judged.deviation / judged.tolerance).max()
    return (
        f"All {len(judged)} parts that have a solver agree with it: the largest deviation is "
        f"{worst:.0e} of its tolerance."
    )


def _add_head_means(layers: pd.DataFrame, table: pd.DataFrame) -> pd.DataFrame:
    """The layers with means over their heads, and the problem nearest to most heads."""
    heads = table[table["kind"] == "head"].groupby("layer")
    means = heads.mean(numeric_only=True)
    rows = layers.copy()
    for column in means.columns.intersection(list(_ORIGINS)).difference(list(_LAYER)):
        rows[column] = rows[column].fillna(rows.layer.map(means[column]))
    if "nearest" in rows:
        rows["nearest"] = rows.layer.map(heads.nearest.agg(lambda names: names.mode().get(0)))
    return rows


def _make_parameter_lines(table: pd.DataFrame) -> Lines:
    heads = table[table["kind"] == "head"]
    layers = table[table["kind"] == "layer"].set_index("layer")
    cells: list[tuple[str, ...]] = []
    for column in [c for c in table if c.startswith(("learned_", "fitted_"))]:
        way, _, name = column.partition("_")
        for layer, value in layers[column].dropna().items():
            each = heads[heads.layer == layer][column].dropna()
            said = ", ".join(f"{x:.4g}" for x in each) if len(each) else f"{value:.4g}, median"
            words = name.replace("_", " ")
            cells.append((f"{layer:.0f}", str(layers["class"][layer]), words, way, said))
    return ("layer", "operator", "parameter", "way", "each head"), sorted(cells)


def _make_module_lines(table: pd.DataFrame) -> Lines:
    """The worst part of each class, besides attention layers."""
    cells: list[tuple[str, ...]] = []
    for kind, group in table[table["kind"] == "module"].groupby("class", sort=False):
        worst = group.loc[(group.deviation / group.tolerance).idxmax()]
        cells.append(
            (
                str(kind), str(len(group)), str(worst.twin), f"{worst.deviation:.1e}",
                f"{worst.tolerance:.0e}",
            )
        )  # fmt: skip
    return ("part", "number", "held against", "worst deviation", "tolerance"), cells


def _make_lines(rows: pd.DataFrame, columns: _Columns) -> Lines:
    kept = [c for c in columns if c in rows and rows[c].notna().any()]
    cells = [tuple(number(row[c], columns[c][1]) for c in kept) for _, row in rows.iterrows()]
    return tuple(columns[c][0] for c in kept), cells
