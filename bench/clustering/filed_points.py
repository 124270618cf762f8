"""One file of points, clustered on the workers of a Dask cluster: `twinsolve cluster --dask`."""

import json
import re
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from typing import Any, NamedTuple
from uuid import uuid4

import joblib
import numpy as np
import pandas as pd
from sklearn.preprocessing import normalize

from ...datasets.files import naming, whole_file
from ...datasets.labels import count_labels
from ...datasets.numpy_files import files_beside, read_array
from ...solvers.clustering import FiledClustering
from ...solvers.inputs import Array
from ..names import split_settings
from ..tables import Lines, number
from ..terminal import progress
from ..timing import resident
from .fitting import scores
from .methods import find_method

METHOD = "SSC:gamma=50"
_PATIENCE = 10  # seconds that a scheduler or a worker has to answer
_COSTS, _FINISHED = ("seconds", "processor_seconds", "worker_mib", "caller_mib"), "finished"
_BETWEEN_LOOKS = 0.5  # seconds
_LOCAL = re.compile(r"local:([1-9]\d*)")


@dataclass(frozen=True, eq=False)
class FiledPoints:
    """Points of a file, scaled to unit norm where they are read, and their labels if known."""

    path: Path
    X: Array
    y: Array | None

    @classmethod
    def open(cls, name: str) -> "FiledPoints":
        """Map the points of a ``.npy`` file, and read the labels of the file beside it.

        ``points.npy:target_key=mine.npy`` names the file of labels, and ``target_key=False`` none.

        Raises
        ------
        ValueError
            If this is no such file, a setting is unknown, several files may hold the labels, or
            there is not one for each point.
        """
        base, settings = split_settings(name, "data")
        path, target_key = Path(base), settings.pop("target_key", None)
        if settings:
            raise ValueError(f"data: --dask knows the setting target_key alone, got {name}")
        if path.suffix != ".npy" or not path.is_file():
            raise ValueError(f"data: --dask takes the path of one .npy file of points, got {name}")
        with naming(path, "NumPy file"):
            X = np.load(path, mmap_mode="r")
        found = files_beside(path, target_key)
        if len(found) > 1:
            names = " and ".join(file.name for file in found)
            raise ValueError(f"data: {names} may hold the labels; name one by target_key")
        y = read_array(found[0]) if found else None
        if y is not None and y.shape != X.shape[:1]:
            raise ValueError(f"{found[0]}: must hold a label for each of the {len(X)} points")
        return cls(path, X, None if y is None else count_labels(str(found[0]), y)[1])

    @property
    def shape(self) -> tuple[int, ...]:
        return self.X.shape

    def __getitem__(self, rows: slice) -> Array:
        piece: Array = normalize(self.X[rows])
        return piece


def cluster_filed(
    points: FiledPoints,
    method: str,
    n_clusters: int | None,
    seed: int,
    folder: Path,
    watch: "Watch",
) -> tuple[Array, pd.DataFrame]:
    """Cluster points on the workers of the active joblib backend; return labels and steps.

    A row of the table has a step, its costs and what it found. The costs of an interrupted step
    count too, and those of a finished step are those of its first run.

    Raises
    ------
    TypeError, ValueError
        As `FiledClustering`.
    """
    k = n_clusters
    if k is None:
        if points.y is None:
            raise ValueError("n_clusters: say how many clusters to look for, by --n-clusters")
        k = int(points.y.max()) + 1
    way = find_method(method)
    model = way.make(n_clusters=k, random_state=seed, n_jobs=None, **way.settings[0])
    job, rows = FiledClustering(model, points, folder), []

    def step(name: str, run: Any, about: Any, *parameters: int) -> Any:
        key = " ".join(map(str, (name, *parameters)))
        with watch.step(key):
            found = run()
        rows.append(
            {"step": name} | {cost: watch.costs[key][cost] for cost in _COSTS} | about(found)
        )
        return found

    step("points", lambda: job.points, lambda _: dict(zip(("n", "p"), points.shape, strict=True)))
    watch.go_on(job.folder / "costs" / "steps.json")
    step("cells", lambda: job.cells, lambda serve: {"cells": "serve" if serve else "do not serve"})
    step("lam_max", lambda: job.lam_max(progress("blocks")), lambda _: {})
    step("codes", lambda: job.codes(progress("blocks")), _describe_codes)
    step("graph", lambda: job.graph, lambda graph: {"components": int(graph.part.max()) + 1})
    step("embedding", lambda: job.embedding, lambda found: {"tied": found.tied}, k)
    labels = step("labels", job.labels, lambda found: _describe_labels(points.y, found), k, seed)
    return labels, pd.DataFrame(rows)


def _describe_codes(found: dict[str, Array]) -> dict[str, Any]:
    return {
        "gap": float(found["gap"].max()),
        "nonzeros": float(found["nnz"].mean()),
        "passes": float(found["n_passes"].mean()),
        "looked": float(found["n_looked"].sum() / max(found["n_passes"].sum(), 1)),
    }


def _describe_labels(true: Array | None, found: Array) -> dict[str, Any]:
    return {} if true is None else {"error": 100 * (1 - scores(true, found)["accuracy"])}


def step_lines(table: pd.DataFrame) -> Lines:
    """Headings and cells of the table of steps."""
    words = {
        "cells": ("cells", ""), "gap": ("largest gap", ".1e"),
        "nonzeros": ("non-zeros a row", ".1f"), "passes": ("passes a row", ".1f"),
        "looked": ("atoms a pass", ",.0f"), "components": ("components", ".0f"),
        "error": ("error, %", ".2f"),
    }  # fmt: skip
    lines: list[tuple[str, ...]] = []
    for row in table.to_dict("records"):
        costs = [number(row[n], ",.1f") for n in _COSTS]
        known = [(word, number(row.get(name), form)) for name, (word, form) in words.items()]
        found = "; ".join(f"{word} {value}" for word, value in known if value != "-")
        lines.append((row["step"], *costs, found))
    return ("step", "s", "processor s", "MiB of a worker", "MiB here", "found"), lines


def write_labels(labels: Array, folder: Path) -> None:
    """Write the label of each point to ``labels.npy``."""
    with whole_file(folder / "labels.npy") as file:
        np.save(file, labels)


class Watch:
    """Watches seconds, processor seconds and private memory of steps, on workers and here.

    Mapped files do not count as memory.
    """

    def __init__(self, client: Any) -> None:
        self.costs: dict[str, dict[str, float]] = {}
        self._client = client
        self._file: Path | None = None
        self._seen = self._now()

    def go_on(self, file: Path) -> None:
        """Add to the costs that the file holds, and keep it up to date."""
        if file.is_file():
            self.costs |= json.loads(file.read_text())
        self._file = file

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Count what happens inside as costs of a step, unless it has been finished before."""
        costs = self.costs.setdefault(name, dict.fromkeys((*_COSTS, _FINISHED), 0.0))
        if costs[_FINISHED]:
            yield
            return
        self._seen = self._now()
        ended = Event()
        thread = Thread(target=self._watch, args=(costs, ended), daemon=True)
        thread.start()
        try:
            yield
            costs[_FINISHED] = 1.0
        finally:
            ended.set()
            thread.join()
            self._count(costs)

    def _watch(self, costs: dict[str, float], ended: Event) -> None:
        while not ended.wait(_BETWEEN_LOOKS):
            self._count(costs)

    def _count(self, costs: dict[str, float]) -> None:
        before, now = self._seen, self._now()
        self._seen = now
        costs["seconds"] += now.at - before.at
        costs["processor_seconds"] += sum(
            seconds - before.busy.get(name, 0.0) for name, seconds in now.busy.items()
        )
        costs["worker_mib"] = max(costs["worker_mib"], now.worker_mib)
        costs["caller_mib"] = max(costs["caller_mib"], now.caller_mib)
        if self._file:
            with whole_file(self._file) as file:
                file.write(json.dumps(self.costs, indent=1).encode())

    def _now(self) -> "_Look":
        workers = self._client.run(_look, on_error="ignore")
        busy = {name: seconds for name, (seconds, _) in workers.items()}
        mib = max((memory for _, memory in workers.values()), default=0.0)
        seconds, memory = _look()
        return _Look(time.perf_counter(), busy | {"": seconds}, mib, memory)


class _Look(NamedTuple):
    at: float
    busy: dict[str, float]  # processor seconds of each process until now
    worker_mib: float
    caller_mib: float


def _look() -> tuple[float, float]:
    """Processor seconds and private memory of this process."""
    return time.process_time(), resident("RssAnon")


@contextmanager
def dask_workers(address: str, folder: Path) -> Iterator[Any]:
    """Let joblib use the workers of a scheduler, or of ``local:N``: N processes started here.

    Yields the client.

    Raises
    ------
    ValueError
        If `distributed` is missing, no scheduler or worker answers, or a worker does not see the
        folder.
    """
    try:
        from distributed import Client, LocalCluster
    except ImportError as error:
        raise ValueError("dask: --dask needs distributed: pip install distributed") from error
    local = _LOCAL.fullmatch(address)
    if not local and not re.fullmatch(r"\w+://\S+:\d+", address):
        raise ValueError(
            f"dask: must be local:N for N processes, or the address of a scheduler such as "
            f"tcp://host:8786; got {address!r}"
        )
    if local:
        # Mapped files count as memory of a worker, though the system can drop them: no limit.
        with (
            LocalCluster(
                n_workers=int(local[1]), threads_per_worker=1, memory_limit=0,
                dashboard_address="localhost:0",
            ) as cluster,
            Client(cluster) as client,
        ):  # fmt: skip
            client.run(_ignore_interrupts)
            yield from _use(client, folder)
        return
    try:
        client = Client(address, timeout=_PATIENCE)
    except (OSError, ValueError) as error:
        raise ValueError(f"dask: no scheduler answers at {address} ({error})") from error
    with client:
        yield from _use(client, folder)


def _ignore_interrupts() -> None:
    """Ctrl-C in a terminal reaches all processes: the caller alone stops, and then its workers."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _use(client: Any, folder: Path) -> Iterator[Any]:
    try:
        client.wait_for_workers(1, timeout=_PATIENCE)
    except TimeoutError as error:
        raise ValueError("dask: the scheduler has no workers") from error
    folder.mkdir(parents=True, exist_ok=True)
    sign = folder.resolve() / f"{uuid4().hex}.part"
    sign.touch()
    try:
        blind = [worker for worker, sees in client.run(sign.is_file).items() if not sees]
    finally:
        sign.unlink()
    if blind:
        raise ValueError(
            f"dask: the worker at {blind[0]} does not see {folder.resolve()}: all machines must "
            "share the folder of --output, under the same name"
        )
    with joblib.parallel_config("dask"):
        yield client
