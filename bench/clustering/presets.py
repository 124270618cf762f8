"""Presets of studies by name, and the function `cluster`, which runs a user's own study."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from numpy.typing import ArrayLike

from ...validation import check_folder
from ..jobs import Options
from ..names import check_names
from ..study import Study
from ..timing import Progress
from .clusters import clusters_study
from .given_points import points_file
from .methods import METHODS, find_method

DESIGN = (
    " Deep self-expression takes its settings without labels, as all do, but was designed with "
    "those of Yale B, COIL-20, digits and curved manifolds in sight."
)
SIX_STEPS = [
    "symmetrize", "unit-rows", "keep-mass 0.7, scale-rows", "low-rank", "svd-power",
    "keep-largest 3",
]  # fmt: skip
_QUICK = [
    "digits:n_points=200",
    "synthetic:n_samples=40,n_subspaces=5,noise=0.3",
    "manifolds:n_samples=50,n_manifolds=4,noise=0.05",
]
_ALL_BUT = (
    "Every method runs but LRSSC, which is slow, and those that train the longest take one setting."
)
_CIFAR_SETTINGS: dict[str, list[dict[str, Any]]] = {
    "SSC": [{"gamma": 20.0, "tol": 1e-2}],
    "OMP": [{"n_nonzero": 5}],
    "kNN graph": [{"n_neighbors": 5}],
}
_MNIST: dict[str, Any] = {
    "data": ["mnist:subset=all"],
    "features": ["unit-relative-scattering-500"],
    "affinity": ["nearest-rows 3", "unit-rows"],
}
_CIFAR: dict[str, Any] = {
    "data": ["cifar10"],
    "features": ["unit-pca-200"],
    "affinity": ["symmetrize", "keep-largest 3"],
}


def _list_parts(*parts: tuple[str, str, list[str], str, int]) -> list[dict[str, Any]]:
    """Arguments of the studies of the design set or of the judging set.

    The two sets share no person, object, video, image or shape of manifold. A part is the name of a
    study, what it is about, data, features and number of trials.
    """
    one = {f"unrolled ({name})": [{"gamma": 50.0}] for name in ("objective", "solution", "both")}
    held = {
        "label_tuned": True, "without": ["LRSSC"], "settings": one | {"SENet": [{"gamma": 200.0}]},
    }  # fmt: skip
    return [
        {"name": name, "about": about, "data": data, "features": features.split(), "n_trials": n}
        | held
        for name, about, data, features, n in parts
    ]


# For each preset, what it is about, and the arguments of `preset_study` for each study.
PRESETS: dict[str, dict[str, Any]] = {
    "quick": {
        "about": "Packaged data, every method but the slowest at its first setting.",
        "studies": [
            {
                "about": "Every method but LRSSC at its default setting, on packaged and generated "
                "data.",
                "data": _QUICK,
                "without": ["LRSSC"],
                "first": True,
                "settings": {"SENet": [{"gamma": 200.0, "max_iter": 300}]},
                "affinity": ["symmetrize", "unit-rows", "svd-power"],
                "n_trials": 1,
            },
        ],
    },
    "manifolds": {
        "about": "Curved manifolds, from subspaces to strongly bent ones, and handwritten digits.",
        "studies": [
            {
                "about": "Every method on closed curved manifolds and on rolled sheets." + DESIGN,
                "data": [
                    "manifolds:n_samples=60,n_manifolds=4,curvature=0.5,noise=0.05",
                    "manifolds:n_samples=60,n_manifolds=4,curvature=1.0,noise=0.05",
                    "manifolds:n_samples=60,n_manifolds=3,shape='roll',curvature=0.5",
                ],
                "gammas": [50.0, 5.0],
                "settings": {"k-subspaces": [{"dimension": 4}, {"dimension": 2}]},
                "n_trials": 3,
                "n_fits": 2,
            },
            {
                "name": "digits",
                "about": "The digits of scikit-learn by every method, settings chosen without "
                "labels." + DESIGN,
                "data": ["digits"],
                "without": ["LRR", "LRSSC"],
                "gammas": [50.0, 5.0],
                "affinity": SIX_STEPS,
            },
        ],
    },
    "large": {
        "about": "The 50,000 training images of CIFAR-10, without any matrix of all pairs of them.",
        "studies": [
            {
                "about": "All points fitted; solved to a relative gap of 1e-2. Learned methods "
                "train on pairs of points, and join on a part of them, below.",
                "methods": ["SSC", "OMP", "kNN graph", "k-means"],
                "settings": _CIFAR_SETTINGS,
                **_CIFAR,
            },
            {
                "name": "out-of-sample",
                "about": "3,000 random points fitted, the others labelled by them: by solving to a "
                "relative gap of 1e-2, or a forward pass.",
                "methods": ["SSC", "EnSC", "OMP", "kNN graph", "unrolled (objective)", "SENet",
                            "k-means"],
                "settings": _CIFAR_SETTINGS | {
                    "EnSC": [{"gamma": 20.0, "l1_ratio": 0.9, "tol": 1e-2}],
                    "unrolled (objective)": [{"gamma": 20.0}],
                    "SENet": [{"max_iter": 1000, "batch_size": 200}],
                },
                "n_fit_points": 3000,
                **_CIFAR,
            },
        ],
    },
    "mnist": {
        "about": "The 70,000 digits of MNIST by scattering features, certified.",
        "studies": [
            {
                "about": "All points fitted; solved to a relative gap of 1e-6 on every row. The "
                "features, EnSC at gamma 200 and l1_ratio 0.9 with nearest-rows 3, and OMP of 5 "
                "points with unit-rows are those of the code that You et al. published for MNIST, "
                "but that it resizes images and leaves points at their own lengths, on which OMP "
                "depends; SSC has the same gamma.",
                "methods": ["EnSC", "SSC", "kNN graph", "k-means", "OMP"],
                "settings": {
                    "EnSC": [{"gamma": gamma, "l1_ratio": 0.9} for gamma in (200.0, 50.0)],
                    "SSC": [{"gamma": 200.0}],
                    "OMP": [{"n_nonzero": 5}],
                    "kNN graph": [{"n_neighbors": 5}],
                    "k-means": [{"n_init": 5}],
                },
                **_MNIST,
            },
            {
                "name": "out-of-sample",
                "about": "5,000 random points fitted, the others labelled by them: by solving to a "
                "relative gap of 1e-6, by a forward pass, or by their three nearest points.",
                "methods": ["EnSC", "SSC", "kNN graph", "SENet", "k-means", "OMP"],
                "settings": {
                    "EnSC": [{"gamma": 200.0, "l1_ratio": 0.9}],
                    "SSC": [{"gamma": 200.0}],
                    "OMP": [{"n_nonzero": 5}],
                    "kNN graph": [{"n_neighbors": 3}],
                    "SENet": [{"max_iter": 1000, "batch_size": 200}],
                },
                "n_fit_points": 5000,
                **_MNIST,
            },
        ],
    },
    "design": {
        "about": "The design set: methods and rules may be built and chosen with its labels in "
        "sight, so that its errors prove nothing. The judging set is the preset judge. " + _ALL_BUT,
        "studies": _list_parts(
            ("faces", "Extended Yale B, persons 1 to 19: 3 random groups of 5.",
                ["yaleb:classes=1-19,n_classes=5"], "unit-pca-200", 3),
            ("objects", "COIL-20, objects 1 to 10: 3 random picks of 6.",
                ["coil20:classes=1-10,n_classes=6"], "unit-pca-200", 3),
            ("digits", "The digits of scikit-learn: 3 random subsets of 500.",
                ["digits:n_points=500"], "unit", 3),
            ("motion", "Hopkins 155: 12 random sequences of the first half.",
                ["hopkins:half=1"], "unit-2F+1", 12),
            ("generated", "Noisy subspaces and closed curves: 3 draws each.",
                ["synthetic:n_samples=50,n_subspaces=5,noise=0.3",
                 "manifolds:n_samples=60,n_manifolds=4,curvature=0.5,noise=0.05"], "unit", 3),
        ),
    },
    "judge": {
        "about": "The judging set, to be run ONCE, when all methods and rules are finished: "
        "nothing may be chosen by it, nor changed after it was seen. To design, use the preset "
        "design. " + _ALL_BUT,
        "studies": _list_parts(
            ("faces", "Extended Yale B, persons 20 to 38: 3 random groups of 5.",
                ["yaleb:classes=20-38,n_classes=5"], "unit-pca-200", 3),
            ("objects", "COIL-20, objects 11 to 20: 3 random picks of 6.",
                ["coil20:classes=11-20,n_classes=6"], "unit-pca-200", 3),
            ("digits", "MNIST, all 70,000: 3 random subsets of 1,000, by scattering and by pixels.",
                ["mnist:subset=all,n_points=1000"], "unit-scattering-200 unit-pca-200", 3),
            ("images", "The test images of CIFAR-10: 3 random subsets of 1,000.",
                ["cifar10:subset=test,n_points=1000"], "unit-scattering-200", 3),
            ("motion", "Hopkins 155: 12 random sequences of the second half.",
                ["hopkins:half=2"], "unit-2F+1", 12),
            ("generated",
                "Tori, and noisy subspaces of unequal dimensions and sizes: 3 draws each.",
                ["manifolds:shape=torus,n_samples=60,n_manifolds=4,curvature=0.5,noise=0.05",
                 "synthetic:n_subspaces=5,dimension=[2,3,4,5,6],n_samples=[24,36,48,60,72],noise=0.3"],
                "unit", 3),
        ),
    },
}  # fmt: skip


def find_preset(name: str, methods: Sequence[str] | None = None) -> tuple[Study, ...]:
    """The studies of a preset; `methods`, if given, replace those of the preset.

    Raises
    ------
    ValueError
        If there is no such preset; the message lists the names.
    """
    if name not in PRESETS:
        raise ValueError(f"preset: must be among {', '.join(PRESETS)}; got {name!r}")
    own = {"methods": methods} if methods else {}
    return tuple(preset_study(**given | own) for given in PRESETS[name]["studies"])


def preset_study(
    data: Sequence[str],
    methods: Sequence[str] = (),
    *,
    without: Sequence[str] = (),
    gammas: Sequence[float] = (),
    settings: dict[str, list[dict[str, Any]]] | None = None,
    first: bool = False,
    **given: Any,
) -> Study:
    """`clusters_study` of the methods named, or of all registered methods `without` some.

    `gammas` limits grids to these values, `first` to the first setting; `settings` replaces grids.
    """
    methods = methods or [name for name in METHODS if name not in without]
    grids = {name: find_method(name).settings for name in methods}
    for name, grid in grids.items():
        if name in METHODS and set(gammas) < {chosen.get("gamma") for chosen in grid}:
            grids[name] = [chosen for chosen in grid if not gammas or chosen["gamma"] in gammas]
        if first:
            grids[name] = grid[:1]
    return clusters_study(data, methods, settings=grids | (settings or {}), **given)


def cluster(
    data: str | Sequence[str] | ArrayLike | None = None,
    y: ArrayLike | None = None,
    *,
    n_clusters: int | None = None,
    methods: Sequence[str] | None = None,
    features: Sequence[str] | None = None,
    affinity: Sequence[str] | None = None,
    seed: int = 0,
    seeds: int = 10,
    n_trials: int | None = None,
    n_jobs: int = 1,
    label_tuned: bool = False,
    data_home: str | None = None,
    directory: str | Path | None = None,
    progress: Progress | None = None,
) -> pd.DataFrame:
    """Cluster data sets or points by solved and learned coefficients, and return one tidy table.

    Parameters
    ----------
    data : str, sequence of str, or array-like of shape (n_samples, n_features), optional
        Points: an array, a sparse matrix or a frame of numbers; images of shape (n_samples, height,
        width) become rows. Else data sets by name, such as ``"digits"``, ``"digits:n_points=500"``,
        ``"mnist:subset=test"`` or ``"synthetic:noise=0.3"``, or files with points and labels that
        `load_points` reads, such as ``"mine.npz"`` or ``"mine.h5:data_key=X,target_key=y"``. Points
        without labels need the number of clusters: ``"mine.npz:n_clusters=5"``. None is packaged
        and generated data.
    y : array-like of shape (n_samples,), optional
        Labels of points given as an array: whole numbers or words.
    n_clusters : int, optional
        Number of clusters of points given as an array. None is the number of different labels.
    methods : sequence of str, optional
        Names of methods, with settings if wanted, such as ``"SSC:gamma=10"``, or
        ``"package.module:Class"`` for any estimator with ``fit_predict``.
        None is all registered methods.
    features : sequence of str, optional
        None is ``["unit"]``: rows of unit norm.
    affinity : sequence of str, optional
        Chains of affinity steps, such as ``"keep-mass 0.7, scale-rows"``, which may end in
        ``"cluster-qr"`` instead of k-means; None takes each method's own.
    seed : int, default=0
        First seed of k-means; also seeds generated data, subsets and fits.
    seeds : int, default=10
        Number of seeds of k-means.
    n_trials : int, optional
        Random trials of each data set; None is all trials, or 5 for generated data.
    n_jobs : int, default=1
        Number of processes; ``joblib.parallel_config`` may name another backend.
    label_tuned : bool, default=False
        Append the settings with the best accuracy, marked ``labels`` in the column ``selection``.
    data_home : str, optional
        The data root.
    directory : str or Path, optional
        Folder that keeps finished jobs and fits, so that they are read instead of run again. A fit
        serves any number of seeds.
    progress : callable, optional
        ``progress(iterable, total)`` wraps the iteration over the jobs.

    Returns
    -------
    DataFrame
        A row for each problem, features, method, setting, fit, chain of steps and seed of k-means:
        accuracy, NMI and ARI; processor seconds and memory of the fit; objective and certified gap
        if the method has them; ``subspace_error`` (ME-2), ``connectivity`` (ME-3), distances to
        the certified solution (ME-4); ``selection_score`` and ``selection``, which is
        ``label-free`` in rows whose setting was chosen without labels. If a method fails, its rows
        have no numbers, and their ``note`` says why. Points without labels have no accuracy; a
        further column ``labels`` then holds their clusters. Points given as an array are the data
        ``X``.

    Raises
    ------
    FileNotFoundError
        If the files of a data set are missing.
    TypeError
        If names are not a sequence of str, or a folder is not a path.
    ValueError
        If a name or a number is not allowed, a file is broken, points are no finite numbers or too
        few, labels do not fit them, or neither labels nor a number of clusters is given.

    Examples
    --------
    >>> from twinsolve.bench import cluster
    >>> table = cluster(["digits:n_points=60"], methods=["k-means"], seeds=2)
    >>> table[["method", "seed", "selection"]].values.tolist()
    [['k-means', 0, 'label-free'], ['k-means', 1, 'label-free']]

    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> table = cluster(X, y, methods=["k-means"], features=["raw"], seeds=1)
    >>> print(f"{table.accuracy[0]:.3f}")
    0.893
    """
    folder = check_folder(directory, "directory")
    options = Options(seed, seeds, n_jobs, data_home, folder, progress)
    named = {"methods": methods, "features": features, "affinity": affinity}
    named = {name: check_names(given, name) for name, given in named.items()}
    asked: dict[str, Any] = {**named, "n_trials": n_trials, "label_tuned": label_tuned}
    if hasattr(data, "shape"):
        with points_file(data, y, n_clusters, folder) as name:
            table = custom_study([name], **asked).run(options)
        return table.replace({"data": {name: "X"}})
    if not (y is None and n_clusters is None):
        raise ValueError(
            "y, n_clusters: are for points given as an array or a frame; the name of a file takes "
            "n_clusters behind a colon, as in mine.npz:n_clusters=5"
        )
    names = [str(data)] if isinstance(data, str | Path) else check_names(data, "data")
    return custom_study(names, **asked).run(options)


def custom_study(data: Sequence[str] | None, methods: Sequence[str] | None, **given: Any) -> Study:
    """The study that a user asks for; empty arguments take the defaults of `cluster`."""
    data = data or _QUICK
    chosen = {name: value for name, value in given.items() if value}
    return clusters_study(data, methods or list(METHODS), **chosen)
