"""Clustering methods by name: solved, baseline, learned and user methods."""

import inspect
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import Any, Literal

from ..names import close_names, split_settings
from ..sources import source_of

STEPS = (
    "symmetrize",
    "keep-mass 0.7, scale-rows",
    "unit-rows",
    "low-rank",
    "svd-power",
    "softmax-rows",
    "keep-largest 3",
)

Family = Literal["solved", "baseline", "learned", "user"]


@dataclass(frozen=True, eq=False)
class Method:
    """``make(n_clusters=, random_state=, n_jobs=, **settings)`` returns an estimator.

    Any estimator with ``fit_predict`` will do. If its fit sets ``coef_``, the chains of steps in
    `affinity` apply; if it sets ``affinity_matrix_`` alone, the spectral step; else its labels
    count, for each seed if it takes ``random_state``. `grid` lists the values of each setting, the
    default first. If coefficients approximate a solved problem, ``problem(estimator, X)`` gives the
    arguments ``lam`` and ``l1_ratio`` of the `sparse_self_expression` of the points, or of
    `unit_rows`. The fit of a `random` method depends on its seed. The source of `code`, by default
    `make`, identifies kept results of a user's method.
    """

    name: str
    family: Family
    make: Callable[..., Any]
    grid: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    affinity: Sequence[str] = STEPS
    problem: Callable[[Any, Any], dict[str, Any]] | None = None
    unit_rows: bool = False
    random: bool = False
    code: Callable[..., Any] | None = None

    @property
    def settings(self) -> list[dict[str, Any]]:
        """All combinations of the grid."""
        return [
            dict(zip(self.grid, values, strict=True)) for values in product(*self.grid.values())
        ]


def register_method(method: Method) -> None:
    """Add a method, so that `find_method` and the command find it by name.

    Raises
    ------
    ValueError
        If another method has that name.
    """
    if METHODS.get(method.name, method) is not method:
        raise ValueError(f"method: {method.name!r} is registered already")
    METHODS[method.name] = method


def find_method(name: str) -> Method:
    """The method of a name: ``SSC``, ``SSC:gamma=10``, or a class ``package.module:Class``.

    Raises
    ------
    ValueError
        If there is no such method; the message lists what is allowed.
    """
    if name in METHODS:
        return METHODS[name]
    base, colon, _ = name.partition(":")
    if known := METHODS.get(base) or _find_attention(base):
        if not colon:
            return known
        grid = {key: (value,) for key, value in split_settings(name, "method")[1].items()}
        _check_settings(base, known, grid)
        method = replace(known, name=name, grid=grid)
    elif colon:
        method = Method(name, "user", estimator(name))
    else:
        allowed, hint = ", ".join(METHODS), close_names(name, METHODS)
        raise ValueError(
            f"method: must be package.module:Class or among {allowed}; got {name!r}{hint}"
        )
    (settings,) = method.settings
    try:
        made = method.make(n_clusters=2, random_state=0, n_jobs=1, **settings)
    except (Exception, SystemExit) as error:  # whatever the user's code raises
        reason = f"{type(error).__name__}: {error}"
        raise ValueError(f"method: cannot make {name!r}: {reason}") from error
    if not hasattr(made, "fit_predict"):
        raise ValueError(f"method: {name!r} has no fit_predict")
    return method


@dataclass(frozen=True, eq=False)
class _ImportedEstimator:
    """Maker of estimators of a class ``package.module:Class``, imported when one is made."""

    path: str
    fixed: dict[str, Any]

    def find(self) -> Any:
        module, _, name = self.path.partition(":")
        return getattr(import_module(module), name)

    def __call__(
        self, n_clusters: int, random_state: int | None, n_jobs: int, **settings: Any
    ) -> Any:
        found = self.find()
        known = inspect.signature(found).parameters
        common = {"n_clusters": n_clusters, "random_state": random_state, "n_jobs": n_jobs}
        common = {key: value for key, value in common.items() if key in known}
        return found(**common | self.fixed | settings)


def _check_settings(name: str, method: Method, given: Iterable[str]) -> None:
    """Refuse settings that the estimator does not take, or that the command gives itself."""
    called = method.make.find() if isinstance(method.make, _ImportedEstimator) else method.make
    known = inspect.signature(called).parameters
    allowed = [key for key in known if key not in ("n_clusters", "random_state", "n_jobs")]
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in known.values()):
        allowed = list(method.grid)
    if not method.grid:
        return
    for key in given:
        if key not in allowed:
            raise ValueError(
                f"method: {name} has no setting {key!r}; it has "
                f"{', '.join(allowed) or 'none'}{close_names(key, allowed)}"
            )


def estimator(path: str, **fixed: Any) -> Callable[..., Any]:
    """Maker of estimators of a class ``package.module:Class``, imported when one is made.

    Number of clusters, seed and processes go to the constructor if it takes them; settings always.
    """
    return _ImportedEstimator(path, fixed)


def code_of(method: Method) -> str | None:
    """Hash of the source and the content of a user's method, as a key of its kept results."""
    if method.name.partition(":")[0] in BUILT_IN:
        return None
    source = method.code or method.make
    if isinstance(source, _ImportedEstimator):
        source = partial(source.find(), **source.fixed)
    return source_of(source)


def know(methods: Sequence[Method]) -> None:
    """Register users' methods in a worker, and let it import from the current folder."""
    here = str(Path.cwd())
    if methods and here not in sys.path:
        sys.path.append(here)
    METHODS.update({method.name: method for method in methods if ":" not in method.name})


_SOLVERS = "twinsolve.solvers"
_LEARNED = "twinsolve.unrolled.clustering"
_GAMMAS = {"gamma": (50.0, 5.0, 20.0, 200.0)}
_NEIGHBORS = {"n_neighbors": (5, 3, 10)}
_LAMS = {"lam": (None, 1e-3, 1e-1)}


def _solved(name: str, path: str, grid: Mapping[str, Sequence[Any]], **fixed: Any) -> Method:
    return Method(name, "solved", estimator(f"{_SOLVERS}:{path}", **fixed), grid)


def _baseline(name: str, path: str, grid: Mapping[str, Sequence[Any]], **fixed: Any) -> Method:
    return Method(name, "baseline", estimator(path, **fixed), grid)


def _relative_penalty(model: Any, X: Any) -> dict[str, Any]:
    """The Lasso with ``lam_i = 2 max_{j != i} |x_i . x_j| / gamma``."""
    from ...solvers.sparse_coding import lam_max

    largest = lam_max(X, X, zero_diagonal=True)
    return {"lam": (largest + (largest <= 0)) / model.gamma_}


def _network_penalty(model: Any, X: Any) -> dict[str, Any]:
    """The elastic net of unit rows with ``lam = 2 / gamma``."""
    return {"lam": 2 / model.gamma, "l1_ratio": model.l1_ratio}


def _unrolled(train_on: str) -> Method:
    path = f"{_LEARNED}:UnrolledSubspaceClustering"
    return Method(
        f"unrolled ({train_on})",
        "learned",
        estimator(path, train_on=train_on),
        _GAMMAS,
        problem=_relative_penalty,
        random=True,
    )


def _attention(name: str, make: Callable[..., Any]) -> Method:
    return Method(f"attention ({name})", "learned", make, {"temperature": (10.0, 3.0, 30.0)})


def _make_attention_estimator(operator: Callable[..., Any]) -> Callable[..., Any]:
    """Maker of attention estimators; settings but the temperature go to `operator`."""

    def make(
        n_clusters: int, random_state: int | None, n_jobs: int, temperature: float = 1.0, **own: Any
    ) -> Any:
        path = f"{_LEARNED}:AttentionSubspaceClustering"
        settings = {"operator": operator(**own), "temperature": temperature}
        return estimator(path)(n_clusters, random_state, n_jobs, **settings)

    return make


def _find_attention(name: str) -> Method | None:
    """The method ``attention (NAME)`` of a named operator; its factory goes to workers with it.

    Raises
    ------
    ValueError
        If the name has that form, but there is no such operator.
    """
    if not (said := re.fullmatch(r"attention \((.*)\)", name)):
        return None
    from ...unrolled.attention.names import operator_factory
    from ...unrolled.named_operators import operator_names

    operator, known = said[1], operator_names()
    if operator not in known:
        methods = [name for name in METHODS if name.startswith("attention (")]
        raise ValueError(
            f"method: there is no operator {operator!r} for attention (NAME), it must be among "
            f"{', '.join(known)}, or one of {', '.join(methods)}{close_names(operator, known)}; "
            "register_operator adds one, in a file that --load names"
        )
    factory = operator_factory(operator)
    make = _make_attention_estimator(lambda: lambda heads, dim: factory(heads, dim))
    return replace(_attention(operator, make), code=factory)


def _operator(name: str, *parameters: Any, **settings: Any) -> Any:
    """An operator with a fixed penalty: the named operator's penalty ignores the temperature."""
    from ... import unrolled

    return getattr(unrolled, name)(*parameters, **settings)


def _attention_penalty(model: Any, X: Any) -> dict[str, Any]:
    """The Lasso of unit rows; queries and keys are unit rows times ``n_features ** (1 / 4)``."""
    return {"lam": float(model.operator.lam()) / X.shape[1] ** 0.5}


METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        _solved("SSC", "SparseSubspaceClustering", _GAMMAS),
        _solved("SSC affine", "SparseSubspaceClustering", _GAMMAS, affine=True),
        _solved("SSC outliers", "OutlierSubspaceClustering", {"alpha": (20.0, 5.0, 50.0)}),
        _solved("SSC nonnegative", "SparseSubspaceClustering", _GAMMAS, nonnegative=True),
        _solved("EnSC", "ElasticNetSubspaceClustering", _GAMMAS | {"l1_ratio": (0.9, 0.5)}),
        _solved("OMP", "OMPSubspaceClustering", {"n_nonzero": (5, 3, 10)}),
        _solved("LSR", "LeastSquaresSubspaceClustering", _LAMS),
        _solved("LSR zero diagonal", "LeastSquaresSubspaceClustering", _LAMS, zero_diagonal=True),
        _solved("LRR", "LowRankRepresentationClustering", {"lam": (None,)}),
        _solved("LRSC", "LowRankSubspaceClustering", _LAMS),
        _solved("LRSSC", "LowRankSparseSubspaceClustering", {"beta": (1.0, 0.3)}, tol=1e-4),
        _solved("LLE weights", "LocallyLinearSubspaceClustering", _NEIGHBORS),
        _baseline("k-means", "sklearn.cluster:KMeans", {}, n_init=20),
        _baseline(
            "spectral RBF", "sklearn.cluster:SpectralClustering", {"gamma": (1.0, 0.1, 10.0)}
        ),
        _baseline("kNN graph", f"{_SOLVERS}:NearestNeighborClustering", _NEIGHBORS),
        _baseline("TSC", f"{_SOLVERS}:ThresholdingSubspaceClustering", _NEIGHBORS),
        _baseline("k-subspaces", f"{_SOLVERS}:KSubspaces", {"dimension": (4, 2, 8)}),
        *(_unrolled(train_on) for train_on in ("objective", "solution", "both")),
        _attention("softmax", _make_attention_estimator(lambda: "softmax")),
        _attention("sparsemax", _make_attention_estimator(lambda: "sparsemax")),
        _attention("ridge", _make_attention_estimator(partial(_operator, "Ridge", 1.0))),
        _attention("low rank", _make_attention_estimator(partial(_operator, "LowRank", 1.0))),
        Method(
            "attention (ISTA)",
            "learned",
            _make_attention_estimator(partial(_operator, "SparseCoding", zero_diagonal=True)),
            {"n_iter": (10, 50), "lam": (0.2, 1.0)},
            problem=_attention_penalty,
            unit_rows=True,
        ),
        Method(
            "SENet",
            "learned",
            estimator(f"{_LEARNED}:SelfExpressiveSubspaceClustering"),
            {"gamma": (200.0, 50.0)},
            (*STEPS, "nearest-rows 3"),
            problem=_network_penalty,
            unit_rows=True,
            random=True,
        ),
        Method(
            "learned affinity", "learned", estimator(f"{_LEARNED}:LearnedAffinityClustering"), {}
        ),
        Method(
            "deep self-expression",
            "learned",
            estimator(f"{_LEARNED}:DeepSubspaceClustering"),
            {"n_layers": (2, 1, 4), "shrinkage": (0.1, 100.0)},
        ),
    )
}
BUILT_IN = frozenset(METHODS)
