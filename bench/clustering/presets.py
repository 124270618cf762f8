"""Presets by name, tuples of studies made when asked for, and the study of what a user asks for."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from ..jobs import Options
from ..timing import Progress
from .clusters import clusters_study
from .figures import draw_errors
from .methods import METHODS
from .study import Study

Settings = dict[str, list[dict[str, Any]]]
QUICK_DATA = (
    "digits:n_points=200",
    "synthetic:n_samples=40,n_subspaces=5,noise=0.3",
    "manifolds:n_samples=50,n_manifolds=4,noise=0.05",
)
QUICK_STEPS = ("symmetrize", "unit-rows", "svd-power")
_SLOWEST = "LRSSC"
_JOINT = {"LRR", _SLOWEST}  # a singular value decomposition in each of many iterations
_IMAGE_STEPS = (
    "symmetrize",
    "unit-rows",
    "keep-mass 0.7, scale-rows",
    "low-rank",
    "svd-power",
    "keep-largest 3",
)
_DESIGN = (
    "Deep self-expression takes its settings without labels, as all do, but was designed with "
    "those of Yale B, COIL-20, digits and curved manifolds in sight."
)


def _at_gammas(*gammas: float) -> Settings:
    """The grids over gamma cut down to these, for data on which layers train for a minute."""
    return {
        name: [chosen for chosen in method.settings if chosen["gamma"] in gammas]
        for name, method in METHODS.items()
        if set(gammas) < {chosen.get("gamma") for chosen in method.settings}
    }


def quick() -> tuple[Study, ...]:
    """Packaged data, every method but the slowest at its first setting."""
    first = {name: METHODS[name].settings[:1] for name in METHODS if name != _SLOWEST}
    first["SENet"] = [settings | {"max_iter": 300} for settings in first["SENet"]]
    return (
        clusters_study(
            QUICK_DATA,
            list(first),
            about=f"Every method but {_SLOWEST} at its default setting, on packaged and generated "
            "data.",
            steps=QUICK_STEPS,
            settings=first,
            n_trials=1,
            figures={"errors.png": draw_errors},
        ),
    )


def coil20() -> tuple[Study, ...]:
    """The turned objects of COIL-20 by every method but the slowest."""
    from .studies.out_of_sample import out_of_sample_study

    methods = [name for name in METHODS if name not in _JOINT]
    return (
        clusters_study(
            ["coil20"],
            methods,
            about=f"COIL-20 by every method, settings chosen without labels. {_DESIGN}",
            features=("unit-pca-200",),
            steps=_IMAGE_STEPS,
            settings=_at_gammas(50.0, 5.0, 20.0),
            n_fits=2,
            figures={"errors.png": draw_errors},
        ),
        clusters_study(
            ["coil20"],
            ["SSC", "LSR"],
            name="recipes",
            about="The recipes of EQUATIONS PP-R: SSC by unit-rows, LSR by svd-power. Their "
            "settings were chosen with labels.",
            features=("unit",),
            steps=("unit-rows", "svd-power 4 8"),
            settings={"SSC": [{"gamma": 10.0}], "LSR": [{"lam": 0.01}]},
            tuned=True,
        ),
        out_of_sample_study(("coil20",)),
    )


def hopkins() -> tuple[Study, ...]:
    """All 155 sequences by the recipes, by every solved method and by motion segmentation."""
    from .studies.motion import frames_study, motion_study

    return motion_study(), frames_study()


def yaleb() -> tuple[Study, ...]:
    """Faces: the recipes on the standard trials, and every method on 10 and on 38 persons."""
    from .studies.coefficients import coefficient_study
    from .studies.faces import admm_study, faces_study
    from .studies.out_of_sample import out_of_sample_study

    methods = [name for name in METHODS if name not in _JOINT]
    return (
        faces_study(),
        admm_study(),
        clusters_study(
            ["yaleb-10", "yaleb-38"],
            methods,
            about=f"10 and 38 persons by every method, settings chosen without labels. {_DESIGN}",
            features=("unit-pca-200",),
            steps=_IMAGE_STEPS,
            settings=_at_gammas(50.0, 5.0),
            figures={"errors.png": draw_errors},
        ),
        out_of_sample_study(("yaleb-10",)),
        coefficient_study(("yaleb-10",)),
    )


def synthetic() -> tuple[Study, ...]:
    """Generated subspaces: every method, phase transitions, layers and held-out points."""
    from .studies.layers import layers_study
    from .studies.out_of_sample import out_of_sample_study
    from .studies.phase import phase_study
    from .studies.scaling import scaling_study
    from .studies.self_expressive import self_expressive_study
    from .studies.splits import NOISY

    problems = [
        "synthetic:n_samples=50,n_subspaces=5,noise=0.3",
        "synthetic:n_samples=50,n_subspaces=5,noise=0.3,affine=True",
        "synthetic:n_samples=50,n_subspaces=4,n_features=40,angle=0.6,noise=0.2",
    ]
    return (
        clusters_study(
            problems,
            list(METHODS),
            about="Every method on unions of random, affine and close subspaces.",
            settings=_at_gammas(50.0, 5.0),
            n_trials=2,
            figures={"errors.png": draw_errors},
        ),
        phase_study(n_draws=2),
        layers_study(),
        out_of_sample_study((NOISY, "digits")),
        self_expressive_study(),
        scaling_study(),
    )


def manifolds() -> tuple[Study, ...]:
    """Curved manifolds, from subspaces to strongly bent ones, and handwritten digits."""
    return (
        clusters_study(
            [
                f"manifolds:n_samples=60,n_manifolds=4,curvature={curvature},noise=0.05"
                for curvature in (0.5, 1.0)
            ]
            + ["manifolds:n_samples=60,n_manifolds=3,shape='roll',curvature=0.5"],
            list(METHODS),
            about=f"Every method on closed curved manifolds and on rolled sheets. {_DESIGN}",
            settings=_at_gammas(50.0, 5.0) | {"k-subspaces": [{"dimension": 4}, {"dimension": 2}]},
            n_trials=3,
            n_fits=2,
            figures={"errors.png": draw_errors},
        ),
        clusters_study(
            ["digits"],
            [name for name in METHODS if name not in _JOINT],
            name="digits",
            about="The digits of scikit-learn by every method, settings chosen without labels. "
            + _DESIGN,
            steps=_IMAGE_STEPS,
            settings=_at_gammas(50.0, 5.0),
            figures={"digits-errors.png": draw_errors},
        ),
    )


def large(data: str = "cifar10", n_fit_points: int = 3000) -> tuple[Study, ...]:
    """The 50,000 training images of CIFAR-10, without any matrix of all pairs of them."""
    scalable: Settings = {
        "SSC": [{"gamma": 20.0, "tol": 1e-2}],
        "OMP": [{"n_nonzero": 5}],
        "kNN graph": [{"n_neighbors": 5}],
        "k-means": [{}],
    }
    inductive: Settings = {
        "SSC": [{"gamma": 20.0, "tol": 1e-2}],
        "EnSC": [{"gamma": 20.0, "l1_ratio": 0.9, "tol": 1e-2}],
        "OMP": [{"n_nonzero": 5}],
        "kNN graph": [{"n_neighbors": 5}],
        "unrolled (objective)": [{"gamma": 20.0}],
        "SENet": [{"max_iter": 1000, "batch_size": 200}],
        "k-means": [{}],
    }
    return (
        _large(
            data,
            "clusters",
            "All points fitted; solved to a relative gap of 1e-2. Learned methods train on pairs "
            "of points, and join on a part of them, below.",
            scalable,
        ),
        _large(
            data,
            "out-of-sample",
            f"{n_fit_points:,} random points fitted, the others labelled by them: by solving to a "
            "relative gap of 1e-2, or a forward pass.",
            inductive,
            n_fit_points=n_fit_points,
        ),
    )


def _large(data: str, name: str, about: str, settings: Settings, **more: Any) -> Study:
    return clusters_study(
        [data],
        list(settings),
        name=name,
        about=about,
        features=("unit-pca-200",),
        steps=("symmetrize", "keep-largest 3"),
        settings=settings,
        figures={f"{name}-errors.png": draw_errors},
        **more,
    )


PRESETS: dict[str, Callable[[], tuple[Study, ...]]] = {
    "quick": quick,
    "hopkins": hopkins,
    "yaleb": yaleb,
    "coil20": coil20,
    "synthetic": synthetic,
    "manifolds": manifolds,
    "large": large,
}


def find_preset(name: str) -> tuple[Study, ...]:
    """The studies of a preset.

    Raises
    ------
    ValueError
        If there is none of that name; the message lists what is allowed.
    """
    if name not in PRESETS:
        raise ValueError(f"preset: must be among {', '.join(PRESETS)}; got {name!r}")
    return PRESETS[name]()


def cluster(
    data: Sequence[str] | None = None,
    *,
    methods: Sequence[str] | None = None,
    features: Sequence[str] | None = None,
    steps: Sequence[str] | None = None,
    seed: int = 0,
    n_seeds: int = 10,
    n_trials: int | None = None,
    n_jobs: int = 1,
    label_tuned: bool = False,
    data_home: str | None = None,
    directory: Path | None = None,
    progress: Progress | None = None,
) -> pd.DataFrame:
    """Cluster data sets by solved and learned coefficients: one tidy table.

    Parameters
    ----------
    data : sequence of str, optional
        Data sets by name, such as ``"digits"``, ``"digits:n_points=500"``,
        ``"mnist:subset=test"`` or ``"synthetic:noise=0.3"``, or files with points and labels that
        `load_points` reads, such as ``"mine.npz"`` or ``"mine.h5:data_key=X,target_key=y"``; of
        points without labels the number of clusters, as in ``"mine.npz:n_clusters=5"``. None is
        packaged and generated data.
    methods : sequence of str, optional
        Names of methods, which may have settings as ``"SSC:gamma=10"``, or
        ``"package.module:Class"`` for any estimator with ``fit_predict``.
        None is all that are registered.
    features : sequence of str, optional
        None is ``["unit"]``: rows of unit norm.
    steps : sequence of str, optional
        Chains of affinity steps, such as ``"keep-mass 0.7, scale-rows"``, which may end in
        ``"cluster-qr"`` instead of k-means; None takes each method's own.
    seed : int, default=0
        First seed of k-means; also seeds generated data, subsets and fits.
    n_seeds : int, default=10
        Seeds of k-means.
    n_trials : int, optional
        Random trials of each data set; None is all of them, or 5 of generated data.
    n_jobs : int, default=1
        Processes; ``joblib.parallel_config`` may name another backend.
    label_tuned : bool, default=False
        Append the settings with the best accuracy, marked ``labels`` in the column ``selection``.
    data_home : str, optional
        The data root.
    directory : Path, optional
        Folder that keeps finished jobs, and fits whatever the number of seeds, which are read
        instead of run again.
    progress : callable, optional
        ``progress(iterable, total)`` wraps the iteration over the jobs.

    Returns
    -------
    DataFrame
        A row for each problem, features, method, setting, fit, chain of steps and seed of k-means:
        accuracy, NMI and ARI; processor seconds and memory of the fit; objective and certified gap
        where the method has them; ``subspace_error`` (ME-2), ``connectivity`` (ME-3), distances to
        the certified solution (ME-4); ``selection_score`` and ``selection``, which is
        ``label-free`` in rows whose setting was chosen without labels. A method that fails has
        rows without numbers, whose ``note`` says why. Points without labels have no accuracy, and
        the clusters found stand in a further column ``labels``.

    Raises
    ------
    FileNotFoundError
        If the files of a data set are missing.
    ValueError
        If a name or a number is not allowed, or a file is broken.

    Examples
    --------
    >>> from twinsolve.bench import cluster
    >>> table = cluster(["digits:n_points=60"], methods=["k-means"], n_seeds=2)
    >>> table[["method", "seed", "selection"]].values.tolist()
    [['k-means', 0, 'label-free'], ['k-means', 1, 'label-free']]
    """
    if seed < 0 or n_seeds < 1:
        raise ValueError(f"seed: must be >= 0 and n_seeds >= 1, got {seed} and {n_seeds}")
    study = custom_study(data, methods, features, steps, n_trials, label_tuned)
    return study.run(Options(seed, n_seeds, n_jobs, data_home, directory, progress))


def custom_study(
    data: Sequence[str] | None,
    methods: Sequence[str] | None,
    features: Sequence[str] | None,
    steps: Sequence[str] | None,
    n_trials: int | None,
    label_tuned: bool,
) -> Study:
    """The study of what a user asks for; what is left out has the defaults of `cluster`."""
    return clusters_study(
        data or QUICK_DATA,
        methods or list(METHODS),
        features=features or ("unit",),
        steps=steps,
        n_trials=n_trials,
        label_tuned=label_tuned,
        figures={"errors.png": draw_errors},
    )
