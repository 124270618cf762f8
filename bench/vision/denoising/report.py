"""What `twinsolve denoise` says of a table."""

from functools import partial

import pandas as pd

from ...tables import Lines, number
from ..paired import COMPARED, Paired, judge, note_on_verdicts, paired_difference
from .entries import SOLVER

_EXACT = 1e-5  # dB


def means(table: pd.DataFrame) -> pd.DataFrame:
    """A row for each method and noise level: means over all images, best last.

    A method without a number for one of the images has no mean.
    """
    whole = partial(pd.Series.mean, skipna=False)
    keys = ["sigma", "method", "kind"]
    found = table.groupby(keys, sort=False).agg(
        family=("family", "first"),
        psnr=("psnr", whole),
        lowest=("psnr", partial(pd.Series.min, skipna=False)),
        highest=("psnr", partial(pd.Series.max, skipna=False)),
        ssim=("ssim", whole),
        seconds=("seconds", partial(pd.Series.sum, skipna=False)),
        megapixels=("megapixels", "sum"),
        parameters=("parameters", "first"),
        flops_per_pixel=("flops_per_pixel", "first"),
        n_images=("psnr", "size"),
    )
    found = found.reset_index()
    found["s_per_megapixel"] = found.seconds / found.megapixels
    order = found.sort_values(["sigma", "psnr"], kind="stable", na_position="first")
    return order.reset_index(drop=True)


def lines_of(found: pd.DataFrame) -> Lines:
    """Headings and cells, of one noise level."""
    head = ("method", "kind", "dB", "range", "SSIM", "s / MP", "parameters", "kFLOP / pixel")
    rows = []
    for row in found.itertuples():
        flops = None if pd.isna(row.flops_per_pixel) else row.flops_per_pixel / 1000
        cells = (
            row.method, row.kind, number(row.psnr, ".2f"),
            "-" if pd.isna(row.psnr) else f"{row.lowest:.2f} to {row.highest:.2f}",
            number(row.ssim, ".3f"), number(row.s_per_megapixel, ".3g"),
            number(row.parameters, ",.0f"),
            number(flops, ".3g"),
        )  # fmt: skip
        rows.append(tuple(map(str, cells)))
    return head, rows


def paired_lines(table: pd.DataFrame) -> Lines:
    """Headings and cells: `differences`, with verdicts. None is equal: there is no margin in dB."""
    best, apart = differences(table)
    rows = [
        (method, images, str(verdict.apart.n), *verdict.cells)
        for (method, images), verdict in judge(apart, margin=0).items()
    ]
    return ("method", "images", "number", f"dB beyond {best}", *COMPARED[1:]), rows


def note_on_pairs(table: pd.DataFrame) -> str:
    """How to read `paired_lines`."""
    _, apart = differences(table)
    return note_on_verdicts(apart, of="images, not other seeds of training,", margin=0)


def differences(table: pd.DataFrame) -> tuple[str, dict[tuple[str, str], Paired]]:
    """The best solved method or peer, and what each trained network has beyond it, in dB.

    Of one noise level, by method and images. Where names of images have a folder in front, each
    folder is compared too.
    """
    found = means(table).dropna(subset="psnr")
    classical = found[found.kind.isin(["solved", "peer"]) & ~found.method.str.endswith(SOLVER)]
    networks = found[found.kind.isin(["trained", "own"])].method
    if classical.empty or networks.empty:
        return "-", {}
    best = classical.method.iloc[-1]
    psnr = table.pivot(index="image", columns="method", values="psnr")
    folder = psnr.index.str.rpartition("/").get_level_values(0)
    parts = {name: psnr[folder == name] for name in folder.unique()} if len(set(folder)) > 1 else {}
    return best, {
        (method, name or "."): paired_difference(own[method], own[best])
        for method in networks
        for name, own in {**parts, "all": psnr}.items()
    }


def starts(table: pd.DataFrame) -> pd.DataFrame:
    """Networks at the start beside their solvers: largest difference in dB, images, and whether
    it is within 1e-5 dB."""
    place = ["sigma", "image", "network"]
    rows = table.assign(network=table.method.str.partition(",")[0])
    start = rows[rows.kind == "start"].set_index(place).psnr
    solved = rows[(rows.kind == "solved") & rows.method.str.endswith(SOLVER)].set_index(place).psnr
    both = start.index.intersection(solved.index)
    apart = (start[both] - solved[both]).abs().groupby("network", sort=False)
    found = apart.agg(worst="max", n_images="size")
    return found.assign(within=found.worst <= _EXACT)


def remarks(table: pd.DataFrame) -> list[str]:
    """Sentences: whether starts are their solvers' answers, distances, warnings, what failed."""
    said = [
        f"{row.Index}: at the start at most {row.worst:.1e} dB from its solver on "
        f"{row.n_images} images, {'within' if row.within else 'not within'} {_EXACT:g} dB."
        for row in starts(table).itertuples()
    ]
    proved = table[table.distance.notna()]
    for method, rows in proved.groupby("method", sort=False):
        said.append(
            f"{method}: certified distance from the minimiser, in grey levels: at most "
            f"{rows.distance.max():.1e} on {len(rows)} images."
        )
    for column, word in (("warning", "warned"), ("note", "failed")):
        for method, rows in table.dropna(subset=column).groupby("method", sort=False):
            said.append(f"{method} {word} on {len(rows)} images, first: {rows[column].iloc[0]}")
    return said
