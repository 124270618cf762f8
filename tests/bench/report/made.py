"""Results folders as the commands write them, with numbers that tests know."""

import json

import numpy as np
import pandas as pd
from PIL import Image

from twinsolve.bench.clustering.matrix_files import write_matrices
from twinsolve.bench.clustering.problems import Problem
from twinsolve.bench.tables import markdown, write_summary, write_table

NAMES, ERRORS = (
    ("softmax", "ridge", "twicing", "<b>local</b>", "GRC"),
    (2.5, 10.0, 3.25, 100.0, 1.0),
)
LABELS, NUMBERS = np.array([1, 0, 1, 0]), np.array([70, 71, 72, 73])
COEF = 1.0 + np.arange(16.0).reshape(4, 4)  # of point i by point j


def make_classified(folder):
    """As `twinsolve classify` writes: a table in the summary, a figure and a row for each seed."""
    cells = [(name, f"{error:,.2f} ± 1") for name, error in zip(NAMES, ERRORS, strict=True)]
    text = [*markdown(("row", "error %"), cells), "", "![errors](errors.png)"]
    settings = {"data": "digits", "seeds": 2, "note": "</script><script>alert(1)</script>"}
    write_summary("twinsolve classify", text, settings, folder)
    rows = [
        {"row": name, "seed": seed, "learning_rate": 0.003 * (1 + seed), "top1": 100 - error}
        for name, error in zip(NAMES, ERRORS, strict=True) for seed in (0, 1)
    ]  # fmt: skip
    write_table(pd.DataFrame(rows), folder)
    Image.new("RGB", (1600, 400), "teal").save(folder / "errors.png")
    return folder


def make_chosen(folder, images=True):
    """As `twinsolve cluster --auto` writes: the choice, clusters, candidates and matrices."""
    folder.mkdir(parents=True)
    choice = {
        "data": "mine.csv", "features": "unit", "n_clusters": 2, "method": "SSC",
        "settings": {"gamma": 5.0}, "affinity": "symmetrize", "score": 0.75, "agreement": 0.5,
        "run": {"command": "twinsolve cluster mine.csv --auto", "typed_in": "/home/me/own",
                "settings": {"seed": 0},
                "versions": {"twinsolve": "0.3", "torch": "2.13"}},
    }  # fmt: skip
    (folder / "choice.json").write_text(json.dumps(choice))
    pd.DataFrame({"point": NUMBERS, "cluster": LABELS}).to_csv(folder / "labels.csv", index=False)
    candidates = {"method": ["SSC", "LSR"], "settings": ["gamma=5.0", "lam=0.1"], "nmi": [0.9, 0.8]}
    frame = pd.DataFrame(candidates | {"accuracy": [0.75, 0.5]})
    frame.to_csv(folder / "candidates.csv", index=False)
    points = np.arange(16.0).reshape(4, 4)
    problem = Problem(
        "", "", points, LABELS, 2, NUMBERS, points.reshape(4, 2, 2) if images else None
    )
    found = {"SSC, gamma=5.0\nsymmetrize": (COEF, COEF + COEF.T)}
    path = folder / "matrices.npz"
    write_matrices(
        found, LABELS, problem, title="Mine, sorted by cluster", word="cluster", path=path
    )
    return folder
