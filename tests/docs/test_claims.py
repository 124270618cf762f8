"""What sentences of pages claim of results holds: a claim stands below its sentence.

It is a comment of the page, ``% holds: EXPRESSION``, in the words of this file.
"""

import re
from functools import partial
from pathlib import Path

import pandas as pd
import pytest

pytest.importorskip("sphinx")
from method_comparison import joined, overview_lines
from method_tables import rows_of
from result_values import find_rows, find_table, number_of

from twinsolve.bench.paired import judge, paired_difference
from twinsolve.bench.tables import read_table
from twinsolve.bench.vision.classification.measures import hits
from twinsolve.bench.vision.classification.report import differences
from twinsolve.bench.vision.segmentation import report as segmentation

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs/results"
faults = pd.read_csv(ROOT / "tests/faults/listed.csv", keep_default_na=False)
CLAIMS = [
    pytest.param(claim, id=f"{page.stem}: {claim[:60]}")
    for page in sorted((*(ROOT / "docs").glob("*.md"), *(ROOT / "docs/first_hour").glob("*.md")))
    for claim in re.findall(r"^ *% holds: (.*)$", page.read_text(), re.M)
]


def number(name):
    """The number of a summary that the role `result` reads, without its interval."""
    return float(number_of(name).split()[0])


def column(folder, name, *cells):
    """Numbers of a column of summaries, without intervals, in the rows that have these cells."""
    values = find_rows(find_table(folder.split(), [name]), [*cells])[name]
    return pd.to_numeric(values[~values.isin(["-", ""])].str.split().str[0])


def told(word, folder, *cells):
    """Rows of summaries whose verdict this is."""
    rows = find_rows(find_table(folder.split(), ["verdict"]), [*cells])
    return {*rows[rows.verdict.str.startswith(word)].iloc[:, 0].str.removesuffix(", trained")}


ahead, behind, equal = (partial(told, word) for word in ("ahead", "behind", "equal"))


def untold(*folders):
    """Whether all verdicts are inconclusive."""
    return not any(told(word, x) for word in ("ahead", "behind", "equal") for x in folders)


def data(folder, index=None, columns=None, values=None):
    """The table behind a summary, or one column of it by two others."""
    table = read_table(RESULTS / folder / "table.json")
    return table if values is None else table.pivot(index=index, columns=columns, values=values)


def verdicts(values, pairs):
    """On paired columns, corrected for these pairs."""
    return judge({pair: paired_difference(values[pair[0]], values[pair[1]]) for pair in pairs})


def verdicts_of_runs(*folders):
    """On the rows of several runs, corrected for all of them."""
    return judge({(x, row): d for x in folders for row, d in differences(data(x)).items()})


def lower_than_plain(folder, measure):
    """Share of layers in which a measure is lower than in the plain network, by model."""
    table = data(folder)
    model = table.model.str.split("-seed-", expand=True)
    values = table.assign(row=model[0], seed=model[1]).pivot(
        index=["seed", "layer"], columns="row", values=measure
    )
    return values.drop(columns="ViT").lt(values.ViT, axis=0).mean()


def verdicts_on_hits(folder, pairs):
    """On test images that a network classifies, paired by seed and image."""
    table = data(folder)
    return [*verdicts({row: hits(table, row) for pair in pairs for row in pair}, pairs).values()]


def segmented(folder, baselines):
    """Differences of rows of segmentation to others, at one scale and three."""
    found = segmentation.differences(data(folder), baselines)
    return [found[row, x] for row in baselines for x in ("miou", "miou_multi_scale")]


def verdicts_on_psnr(folder, pairs):
    """On images that networks denoise, named without their last word."""
    psnr = data(folder, "image", "method", "psnr").rename(
        columns=lambda name: name.removesuffix("Denoiser, trained")
    )
    return [*verdicts(psnr, pairs).values()]


pictures, generated = ("digits", "yaleb-10", "coil20"), ("Gaussian", "synthetic:")
tenth, hundredth = "time at gap 0.1, batch", "time at gap 0.01, batch"
never = float("inf")


def layers(name, data, methods="learned"):
    """Numbers of cluster-synthetic, on data and of methods that begin so; never is infinite."""
    table = find_table(["cluster-synthetic"], [name])
    rows = table[table.data.str.startswith(data) & table.method.str.startswith(methods)]
    assert len(rows) > 0
    return rows[name].replace("never", "inf").astype(float)


def means_of_methods(preset, family):
    """Errors on all data of a preset, of methods of a family."""
    rows = rows_of(RESULTS / f"cluster-{preset}")
    _, lines = overview_lines(joined([rows[rows.family == family]]))
    return pd.Series({line[0]: line[-1] for line in lines}).pipe(pd.to_numeric, errors="coerce")


@pytest.mark.parametrize("claim", CLAIMS)
def test_a_claim_holds(claim):
    assert eval(claim, globals())


def test_a_claim_can_fail():
    assert len(CLAIMS) > 20
    assert ahead("classify-digits") != {"ALiBi"}
    assert not column("inspect", "J").is_monotonic_increasing
