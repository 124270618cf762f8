"""A small table as it was before the harness became one: what is computed has not changed."""

from pathlib import Path

import numpy as np
import pandas as pd
from numpy.testing import assert_allclose

from twinsolve.bench import cluster

REFERENCE = Path(__file__).parent / "reference" / "clusters.csv"
NUMBERS = ["accuracy", "nmi", "objective", "nonzeros", "connectivity", "selection_score"]


def test_clusters_are_those_of_the_reference():
    expected = pd.read_csv(REFERENCE).fillna({"selection": "", "settings": ""})
    table = cluster(
        list(expected.data.unique()),
        methods=list(expected.method.unique()),
        steps=[name for name in expected.steps.unique() if name != "none"],
        n_seeds=1,
        n_trials=1,
    )
    words = [name for name in expected if name not in NUMBERS]
    assert table[words].to_numpy().tolist() == expected[words].to_numpy().tolist()
    for name in NUMBERS:
        assert_allclose(table[name].astype(np.float64), expected[name], rtol=1e-8, atol=1e-8)
