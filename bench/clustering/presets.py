"""Presets by name, tuples of studies made when asked for, and the study of what a user asks for."""

import tomllib
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import pandas as pd

from ...solvers.solution import check_folder
from ..jobs import Options
from ..names import check_names
from ..timing import Progress
from .clusters import clusters_study
from .methods import METHODS, find_method
from .study import Study

PRESETS: dict[str, dict[str, Any]] = {
    name: preset
    for file in ("presets.toml", "sets.toml")
    for name, preset in tomllib.loads((Path(__file__).parent / file).read_text()).items()
}
_OWN = ("about", "studies")  # of a preset; what else it says holds for all of its studies
_DESIGN = (
    " Deep self-expression takes its settings without labels, as all do, but was designed with "
    "those of Yale B, COIL-20, digits and curved manifolds in sight."
)


def find_preset(name: str, methods: Sequence[str] | None = None) -> tuple[Study, ...]:
    """The studies of a preset, with these methods instead of its own if they are given.

    Raises
    ------
    ValueError
        If there is none of that name; the message lists what is allowed. If methods are given and
        not all of its studies are of clusters.
    """
    if name not in PRESETS:
        raise ValueError(f"preset: must be among {', '.join(PRESETS)}; got {name!r}")
    of_all = {key: value for key, value in PRESETS[name].items() if key not in _OWN}
    studies = [of_all | given for given in PRESETS[name]["studies"]]
    if methods and any("study" in given for given in studies):
        raise ValueError(f"preset: {name} leaves no choice of --method")
    own = {"methods": methods} if methods else {}
    return tuple(_study(**given | own) for given in studies)


def _study(study: str = "", **given: Any) -> Study:
    if not study:
        return _clusters(**given)
    module, _, function = study.partition(".")
    made: Study = getattr(import_module(f"{__package__}.studies.{module}"), function)(**given)
    return made


def _clusters(
    data: Sequence[str],
    about: str,
    methods: Sequence[str] = (),
    without: Sequence[str] = (),
    gammas: Sequence[float] = (),
    settings: dict[str, list[dict[str, Any]]] | None = None,
    first: bool = False,
    designed: bool = False,
    **given: Any,
) -> Study:
    methods = methods or [name for name in METHODS if name not in without]
    grids = {name: find_method(name).settings for name in methods}
    for name, grid in grids.items():
        if name in METHODS and set(gammas) < {chosen.get("gamma") for chosen in grid}:
            grids[name] = [chosen for chosen in grid if not gammas or chosen["gamma"] in gammas]
        if first:
            grids[name] = grid[:1]
    about += _DESIGN if designed else ""
    return clusters_study(data, methods, about=about, settings=grids | (settings or {}), **given)


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
    directory: str | Path | None = None,
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
    directory : str or Path, optional
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
    TypeError
        If names are no sequence of str, or a folder no path.
    ValueError
        If a name or a number is not allowed, or a file is broken.

    Examples
    --------
    >>> from twinsolve.bench import cluster
    >>> table = cluster(["digits:n_points=60"], methods=["k-means"], n_seeds=2)
    >>> table[["method", "seed", "selection"]].values.tolist()
    [['k-means', 0, 'label-free'], ['k-means', 1, 'label-free']]
    """
    folder = check_folder(directory, "directory")
    options = Options(seed, n_seeds, n_jobs, data_home, folder, progress)
    named = {"data": data, "methods": methods, "features": features, "steps": steps}
    named = {name: check_names(given, name) for name, given in named.items()}
    study = custom_study(**named, n_trials=n_trials, label_tuned=label_tuned)
    return study.run(options)


def custom_study(data: Sequence[str] | None, methods: Sequence[str] | None, **given: Any) -> Study:
    """The study of what a user asks for; what is left out has the defaults of `cluster`."""
    data = data or PRESETS["quick"]["studies"][0]["data"]
    chosen = {name: value for name, value in given.items() if value}
    return clusters_study(data, methods or list(METHODS), **chosen)
