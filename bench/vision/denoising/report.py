"""What `twinsolve denoise` says of a table."""

import pandas as pd

from ...tables import Lines, number
from .study import SOLVER

_EXACT = 1e-5  # dB


def means(table: pd.DataFrame) -> pd.DataFrame:
    """A row for each method and noise level: means over the images, best last."""
    whole = table[table.note.isna()] if table.note.notna().any() else table
    keys = ["sigma", "method", "kind", "family"]
    groups = whole.groupby(keys, sort=False, dropna=False)
    found = groups.agg(
        psnr=("psnr", "mean"),
        lowest=("psnr", "min"),
        highest=("psnr", "max"),
        ssim=("ssim", "mean"),
        seconds=("seconds", "sum"),
        megapixels=("megapixels", "sum"),
        parameters=("parameters", "first"),
        flops_per_pixel=("flops_per_pixel", "first"),
        n_images=("image", "count"),
    ).reset_index()
    found["s_per_megapixel"] = found.seconds / found.megapixels
    return found.sort_values(["sigma", "psnr"], kind="stable").reset_index(drop=True)


def lines_of(found: pd.DataFrame) -> Lines:
    """Headings and cells, of one noise level."""
    head = ("method", "kind", "dB", "range", "SSIM", "s / MP", "parameters", "kFLOP / pixel")
    rows = []
    for row in found.itertuples():
        flops = None if pd.isna(row.flops_per_pixel) else row.flops_per_pixel / 1000
        cells = (
            row.method, row.kind, f"{row.psnr:.2f}", f"{row.lowest:.2f} to {row.highest:.2f}",
            f"{row.ssim:.3f}", f"{row.s_per_megapixel:.3g}", number(row.parameters, ",.0f"),
            number(flops, ".3g"),
        )  # fmt: skip
        rows.append(tuple(map(str, cells)))
    return head, rows


def remarks(table: pd.DataFrame) -> list[str]:
    """Sentences: whether starts are their solvers' answers, distances, and what failed."""
    said = []
    place = ["sigma", "image", "network"]
    rows = table.assign(network=table.method.str.partition(",")[0])
    start = rows[rows.kind == "start"].set_index(place).psnr
    solved = rows[rows.method.str.endswith(SOLVER)].set_index(place).psnr
    both = start.index.intersection(solved.index)
    apart = (start[both] - solved[both]).abs()
    for network, differences in apart.groupby("network", sort=False):
        worst = differences.max()
        verdict = "within" if worst <= _EXACT else "not within"
        said.append(
            f"{network}: at the start at most {worst:.1e} dB from its solver on "
            f"{len(differences)} images, {verdict} {_EXACT:g} dB."
        )
    proved = table[table.distance.notna()]
    for method, rows in proved.groupby("method", sort=False):
        each = ", ".join(f"{row.image} {row.distance:.1e}" for row in rows.itertuples())
        said.append(f"{method}: certified distance from the minimiser, in grey levels: {each}.")
    for method, note in table.dropna(subset="note").groupby("method").note.first().items():
        said.append(f"{method} failed: {note}")
    return said
