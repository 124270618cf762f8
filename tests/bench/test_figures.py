"""Figures can be read: of one row or of many, no text is cut or covered, and no mark is cut."""

from itertools import pairwise, product

import numpy as np
import pandas as pd
import pytest
from matplotlib.text import Text

from twinsolve.bench import figures
from twinsolve.bench.check.lines import draw_deviations
from twinsolve.bench.clustering.figures import draw_errors, draw_matrices
from twinsolve.bench.comparison import draw_differences
from twinsolve.bench.paired import Paired
from twinsolve.bench.vision.denoising.figures import draw_quality


def matrices(path):
    C = np.eye(6)
    title = "Digits, 300 points: coefficients and affinities, points sorted by class"
    draw_matrices({"SSC:affine=True,gamma=20,l1_ratio=0.7": (C, C)}, [0, 1] * 3, path, title)


def errors(path):
    rows = [{"method": "SSC", "steps": "symmetrize", "seed": seed} for seed in range(3)]
    about = {"data": "digits", "features": "unit", "selection": "label-free", "fit_seed": 0}
    draw_errors(pd.DataFrame(rows).assign(accuracy=1.0, **about), path)


def differences(path, n=2):
    apart = {f"row {i}": Paired(-1.17 + 0.3 * i, 0.4, 5) for i in range(n)}
    names = ["softmax", *apart]
    table = pd.DataFrame({"row": names, "token_cosine": np.linspace(0.832, 0.999, len(names))})
    draw_differences(
        table.assign(against="softmax"), path, differences=lambda _: apart, score="top-1, points to"
    )


def several_differences(path):
    differences(path, n=6)


def quality(path):
    rows = [("non-local means", "solved", 28.65, 0.13, None), ("my", "own", 29.97, 1.3, 12965)]
    columns = ["method", "kind", "psnr", "s_per_megapixel", "parameters"]
    draw_quality(pd.DataFrame(rows, columns=columns), path, sigma=25)


def deviations(path, n_twins=4):
    rows = [
        {"family": f"family_{f}", "twin": f"twin-number-{f}-{i}", "dtype": dtype, "task": task}
        for f, i, dtype, task in product(
            range(3), range(n_twins), ["float64", "float32"], ["vision", None]
        )
    ]
    draw_deviations(pd.DataFrame(rows).assign(deviation=1e-7, tolerance=1e-4), path)


def many_deviations(path):
    deviations(path, n_twins=60)


@pytest.mark.parametrize(
    "draw",
    [
        matrices, errors, differences, several_differences, quality, deviations, many_deviations
    ],
    ids=lambda draw: draw.__name__,
)  # fmt: skip
def test_a_figure_can_be_read(draw, monkeypatch, tmp_path):
    kept, texts = [], []
    monkeypatch.setattr(figures, "write_png", lambda figure, path, dpi: kept.append(figure))
    draw(tmp_path / "figure.png")
    (figure,) = kept
    real = Text.draw
    monkeypatch.setattr(Text, "draw", lambda text, to: (real(text, to), texts.append(text)))
    figure.savefig(tmp_path / "figure.png", dpi=figure.dpi)
    written = {text for text in texts if text.get_visible() and text.get_text().strip()}
    assert len(written) > 3
    assert [text.get_text() for text in written if not inside(text, figure.bbox)] == []
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            labels = [x.label1 for x in axis.get_major_ticks() if x.label1 in written]
            assert list(covered(labels)) == []
        assert list(cut_marks(axes)) == []


def test_errors_of_nothing_but_0_stand_at_the_left(monkeypatch, tmp_path):
    kept = []
    monkeypatch.setattr(figures, "write_png", lambda figure, path, dpi: kept.append(figure))
    errors(tmp_path / "figure.png")
    (axes,) = kept.pop().axes
    left, right = axes.get_xlim()
    assert -0.1 < left < 0
    assert right >= 1


def inside(text, around):
    box = text.get_window_extent()
    return (box.p0 >= around.p0 - 1).all() and (box.p1 <= around.p1 + 1).all()


def covered(labels):
    """Neighbours of which one covers the other, or nearly so."""
    boxes = sorted((label.get_window_extent() for label in labels), key=lambda box: tuple(box.p0))
    room = [box.padded(box.height / 4, 0) for box in boxes]
    return ((one, after) for one, after in pairwise(room) if one.overlaps(after))


def cut_marks(axes):
    """Marks of lines of which a part is outside of the axes."""
    for line in axes.lines:
        if line.get_marker() != "None" and len(line.get_xdata()):
            places = line.get_transform().transform(line.get_xydata())
            half = line.get_markersize() / 2 * axes.figure.dpi / 72
            if (places - half < axes.bbox.p0).any() or (places + half > axes.bbox.p1).any():
                yield places
