"""The summaries that are kept say what their tables say."""

from functools import partial
from pathlib import Path

import adaptation
import classify_path
import pytest
import routers

from twinsolve.bench.longrange import report as longrange
from twinsolve.bench.tables import markdown, read_table
from twinsolve.bench.vision.classification import report as classification
from twinsolve.bench.vision.denoising import report as denoising
from twinsolve.bench.vision.segmentation import report as segmentation

RESULTS = Path(__file__).parents[2] / "docs/results"
OF_CLASSIFICATION = ([classification.lines_of], [classification.remarks, classification.notes])
OF_SEGMENTATION = (
    [
        segmentation.lines_of,
        partial(segmentation.lines_of, column="miou_multi_scale"),
        segmentation.class_lines,
    ],
    [segmentation.notes],
)
OF_DENOISING = ([denoising.paired_lines], [lambda table: [denoising.note_on_pairs(table)]])
WITH_ATTACKS = (OF_CLASSIFICATION[0] + [classification.matched_lines], OF_CLASSIFICATION[1])
KEPT = {
    **{path.name: OF_CLASSIFICATION for path in sorted(RESULTS.glob("classify-*"))},
    "classify-digits": WITH_ATTACKS,
    "classify-cifar10": WITH_ATTACKS,
    "classify-path": (
        OF_CLASSIFICATION[0] + [classify_path.path_lines],
        OF_CLASSIFICATION[1] + [classify_path.notes_of_path],
    ),
    "classify-adaptation": ([adaptation.adapted_lines], [adaptation.adapted_notes]),
    "segment": OF_SEGMENTATION,
    "segment-parts": OF_SEGMENTATION,
    "longrange-listops": ([longrange.lines_of], [longrange.notes]),
    "denoise": OF_DENOISING,
    "denoise-held-out": OF_DENOISING,
    "denoise-routing": OF_DENOISING,
}


@pytest.mark.parametrize("name", KEPT)
def test_tables_and_notes_of_a_summary_are_those_of_its_rows(name):
    summary = (RESULTS / name / "summary.md").read_text()
    table = read_table(RESULTS / name / "table.json")
    lines, notes = KEPT[name]
    for write in lines:
        assert "\n".join(markdown(*write(table))) in summary
    for write in notes:
        assert all(sentence in summary for sentence in write(table))


def test_tables_of_routers_are_those_of_their_rows():
    summary = (RESULTS / "classify-routers/summary.md").read_text()
    table = read_table(RESULTS / "classify-routers/routers.json")
    for lines in routers.router_parts(table).values():
        assert "\n".join(markdown(*lines)) in summary
