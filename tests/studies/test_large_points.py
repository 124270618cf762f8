"""Clustering on Dask workers by number of points."""

import numpy as np
import pandas as pd
from large_points import growth_lines, write_points

from twinsolve.bench.clustering.filed_points import FiledPoints


def test_growth_is_that_of_each_step(tmp_path):
    rows = [
        {"step": step, "points": n, "subspaces": 20, "noise": 0.3, "seconds": 1.0,
         "processor_seconds": seconds, "worker_mib": 1.0, "caller_mib": 1.0}
        for n, found in ((100, (8.0, 3.0)), (10, (0.08, 0.3)))
        for step, seconds in zip(("codes", "graph"), found, strict=True)
    ]  # fmt: skip
    head, lines = growth_lines(pd.DataFrame(rows))
    at = head.index("growth")
    assert [(*line[2:4], line[at]) for line in lines] == [
        ("10", "codes", ""), ("10", "graph", ""),
        ("100", "codes", "2.00"), ("100", "graph", "1.00"),
    ]  # fmt: skip


def test_points_have_labels_beside_them(tmp_path):
    found = FiledPoints.open(str(write_points(2000, 20, 0.3, tmp_path / "points")))
    assert found.shape == (2000, 50)
    assert np.bincount(found.y).tolist() == [100] * 20
