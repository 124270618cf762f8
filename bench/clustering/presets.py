"""Presets by name: tuples of studies, made when asked for."""

from collections.abc import Callable
from functools import partial
from typing import Any

from .clusters import clusters_study
from .figures import draw_errors, draw_phases
from .methods import METHODS
from .study import Study

QUICK_DATA = (
    "digits:n_points=400",
    "synthetic:n_samples=40,n_subspaces=5,noise=0.3",
    "manifolds:n_samples=60,n_manifolds=4,noise=0.05",
)
QUICK_STEPS = ("PP-2a", "PP-2b, PP-2a", "PP-4")
_JOINT = {"LRR", "LRSSC"}  # a singular value decomposition in each of many iterations
_IMAGE_STEPS = ("PP-2a", "PP-2b, PP-2a", "PP-1 mass=0.7, PP-2", "PP-3", "PP-4", "keep-largest n=3")


def quick() -> tuple[Study, ...]:
    """Packaged data, every method at its first setting, two trials."""
    first = {name: method.settings[:1] for name, method in METHODS.items()}
    return (
        clusters_study(
            QUICK_DATA,
            list(METHODS),
            about="Every method at its default setting, on packaged and generated data.",
            steps=QUICK_STEPS,
            settings=first,
            n_trials=2,
            figures={"errors.png": draw_errors},
        ),
    )


def coil20() -> tuple[Study, ...]:
    """The turned objects: unit pixels and principal components, every method but the slowest."""
    methods = [name for name in METHODS if name not in _JOINT]
    return (
        clusters_study(
            ["coil20"],
            methods,
            about="COIL-20 by every method, settings chosen without labels.",
            features=("unit",),
            steps=_IMAGE_STEPS,
            n_fits=5,
            figures={"errors.png": draw_errors},
        ),
    )


def synthetic() -> tuple[Study, ...]:
    """All methods on a few generated problems, and phase transitions of the solved ones."""
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
            n_fits=5,
            figures={"errors.png": draw_errors},
        ),
        *(phase_study(name, **axes) for name, axes in PHASES.items()),
    )


PHASES: dict[str, dict[str, Any]] = {
    "noise-dimension": {
        "x": ("noise", (0.0, 0.2, 0.4, 0.6, 0.8)),
        "y": ("dimension", (2, 4, 6, 8)),
    },
    "angle-density": {
        "x": ("angle", (0.2, 0.4, 0.6, 0.9, 1.2)),
        "y": ("density", (2, 4, 8, 16)),
        "fixed": "n_subspaces=3,noise=0.1",
    },
    "number-dimension": {
        "x": ("n_subspaces", (2, 4, 8, 16)),
        "y": ("dimension", (2, 4, 6, 8)),
        "fixed": "noise=0.2",
    },
}
PHASE_METHODS = ("SSC", "EnSC", "OMP", "LSR", "TSC")


def phase_study(
    name: str,
    x: tuple[str, tuple[float, ...]],
    y: tuple[str, tuple[float, ...]],
    *,
    fixed: str = "",
    methods: tuple[str, ...] = PHASE_METHODS,
    n_trials: int = 3,
) -> Study:
    """Error over a grid of two parameters of `make_union_of_subspaces`, drawn as heat maps."""
    problems = [
        "synthetic:" + ",".join(filter(None, (f"{x[0]}={a}", f"{y[0]}={b}", fixed)))
        for b in y[1]
        for a in x[1]
    ]
    return clusters_study(
        problems,
        methods,
        name=name,
        about=f"Error by {x[0]} and {y[0]} of the subspaces, each method at its default setting.",
        steps=("PP-2a",),
        settings={method: METHODS[method].settings[:1] for method in methods},
        n_trials=n_trials,
        figures={f"{name}.png": partial(draw_phases, x=x[0], y=y[0])},
    )


def manifolds() -> tuple[Study, ...]:
    """Curved manifolds, from subspaces to strongly bent ones."""
    return (
        clusters_study(
            [
                f"manifolds:n_samples=60,n_manifolds=4,curvature={curvature},noise=0.05"
                for curvature in (0.0, 0.5, 1.0)
            ]
            + ["manifolds:n_samples=60,n_manifolds=3,shape='roll',curvature=0.5"],
            list(METHODS),
            about="Every method on closed curved manifolds and on rolled sheets.",
            n_fits=5,
            figures={"errors.png": draw_errors},
        ),
    )


def large() -> tuple[Study, ...]:
    """The 50,000 training images of CIFAR-10, without any matrix of all pairs of them."""
    settings: dict[str, list[dict[str, Any]]] = {
        "SSC": [{"gamma": 20.0, "tol": 1e-2}],
        "EnSC": [{"gamma": 20.0, "l1_ratio": 0.9, "tol": 1e-2}],
        "OMP": [{"n_nonzero": 5}],
        "kNN graph": [{"n_neighbors": 5}],
        "k-means": [{}],
    }
    return (
        clusters_study(
            ["cifar10"],
            [name for name in settings if name in METHODS],
            about="50,000 images; solved to a relative gap of 1e-2.",
            features=("unit-pca-200", "unit-fourier-500"),
            steps=("PP-2a", "PP-2b, PP-2a", "keep-largest n=3"),
            settings=settings,
            figures={"errors.png": draw_errors},
        ),
    )


PRESETS: dict[str, Callable[[], tuple[Study, ...]]] = {
    "quick": quick,
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
