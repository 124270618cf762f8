"""Audit networks one by one; what is done is kept."""

from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pandas as pd

from ...twins.audit import audit
from ...validation import check_folder
from ..jobs import Options, run_jobs
from ..timing import Progress
from .networks import PEERS, build_peer

AUDITED = ("transformers", "torch", *sorted({name.partition("/")[0] for name in PEERS}))


def audit_networks(
    networks: Sequence[str],
    *,
    laws: Sequence[str] = (),
    n_jobs: int = 1,
    device: str = "cpu",
    directory: str | Path | None = None,
    progress: Progress | None = None,
) -> pd.DataFrame:
    """Audit networks in processes of their own, and keep the rows of each when it is done.

    Parameters
    ----------
    networks : sequence of str
        Names that `twinsolve.audit` takes, or of `PEERS`.
    laws : sequence of str, optional
        Names of the laws; all by default.
    n_jobs : int, default=1
    device : str, default="cpu"
    directory : path, optional
        Where finished rows are kept, so that the same call goes on.
    progress : callable, optional
        Wrapper of the jobs that shows how many are done.

    Returns
    -------
    DataFrame
        A row for each finding. A network that cannot be built or called has one row with the
        law "build" and the verdict "refused".
    """
    common = {"laws": list(laws), "packages": find_versions(), "device": device}
    jobs = [{"network": name, **common} for name in networks]
    folder = check_folder(directory, "directory")
    options = Options(n_jobs=n_jobs, directory=folder, progress=progress)
    modules = ("twinsolve.twins.audit",)
    return run_jobs(_audit_one, jobs, options, modules=modules)


def _audit_one(
    network: str, laws: list[str], packages: dict[str, str], device: str
) -> list[dict[str, Any]]:
    package = network.partition("/")[0] if network in PEERS else "transformers"
    kind = {"package": package, "version": packages.get(package, "")}
    try:
        named = {"network": network, "laws": tuple(laws)}
        given = build_peer(network, laws) if network in PEERS else named
        report = audit(**given, device=device)
    except Exception as error:  # of a package that another wrote
        why = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        row = {"law": "build", "statement": "", "verdict": "refused", "error": None}
        return [{"network": network, **kind, **row, "tolerance": None, "why": why}]
    return [{"network": network, **kind, **finding.as_row()} for finding in report.findings]


def find_versions() -> dict[str, str]:
    """Versions of the packages whose networks can be audited, as far as they are installed."""
    versions = {}
    for package in AUDITED:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return versions
