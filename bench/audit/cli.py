"""Command `twinsolve audit`."""

from pathlib import Path
from typing import Annotated, Any

import typer

from ..options import Device, Jobs, ListAll, Output, report_mistakes
from ..terminal import console, progress

_VERDICTS = {"holds": "", "broken": "red", "refused": "yellow", "not judged": "dim"}


def audit(
    networks: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NETWORK]...",
            help='A model type or class of transformers ("mamba", "BertModel"), a folder that '
            'save_pretrained wrote, or "module:callable".',
        ),
    ] = None,
    law: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Only this law; may be given again.")
    ] = None,
    own_weights: Annotated[
        bool, typer.Option("--own-weights", help="Audit a module at its own weights.")
    ] = False,
    everything: Annotated[
        bool,
        typer.Option("--all", help="Audit every known architecture and layer that is installed."),
    ] = False,
    package: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="With --all: only this package; may be given again."),
    ] = None,
    list_all: ListAll = False,
    n_jobs: Jobs = 1,
    device: Device = "cpu",
    output: Output = Path("results/audit"),
) -> None:
    """Test whether networks that others wrote keep the laws that they promise.

    ```
    twinsolve audit mamba BertModel
    twinsolve audit my_module:build_network
    twinsolve audit --list
    ```

    Examples of laws: decoding token by token gives the outputs of the full pass; a row of a batch
    has the outputs that it has alone; tokens under a mask change nothing.

    **NETWORK** is one of

    - a model type or class of transformers, such as mamba or BertModel: it is built tiny, with
      random weights large enough to show faults (at a library's own initialisation, layers do
      nearly nothing)
    - a folder that save_pretrained wrote, with its own weights
    - module:callable, called without arguments: it returns a network, or a pair of a network and
      its inputs

    A network takes features (batch, tokens, width) or ids (batch, tokens). It returns outputs, or a
    pair of outputs and a state; it takes the state back as the argument state.

    For each broken law, DIR/scripts gets a program of plain torch that shows it. Where one known
    cause breaks several laws, only the first has a program. DIR also gets table.json, summary.md
    and settings.json. The status is 1 if a law is broken.
    """
    from ...twins.audit import LAWS
    from ..devices import find_device
    from .architectures import list_architectures
    from .networks import PEERS

    screen = console()
    if list_all:
        for known in LAWS:
            screen.print(f"{known.name}: {known.statement}", highlight=False)
        screen.print("", ", ".join([*list_architectures(), *PEERS]), sep="\n", highlight=False)
        raise typer.Exit
    if everything == bool(networks):
        raise typer.BadParameter("name networks, or give --all")
    with report_mistakes():
        place = find_device(device).type
    if everything:
        from .study import audit_networks

        table = audit_networks(
            _list_installed(package or []),
            laws=law or [],
            n_jobs=n_jobs,
            device=place,
            directory=output / "jobs",
            progress=progress("Auditing"),
        )
    else:
        table = _audit_named(networks or [], law or [], own_weights, place)
    settings = {
        "networks": networks or "all",
        "law": law,
        "own_weights": own_weights,
        "package": package,
        "device": place,
    }
    _write(table, settings, output)
    counts = table.verdict.value_counts()
    numbers = {verdict: counts.get(verdict, 0) for verdict in _VERDICTS}
    plural = {"holds": "hold"} if numbers["holds"] != 1 else {}
    words = (f"{n} {plural.get(verdict, verdict)}" for verdict, n in numbers.items())
    screen.print(f"Laws: {', '.join(words)}.")
    broken = bool(counts.get("broken", 0))
    where = f"; scripts that show each fault are in {output}/scripts/" if broken else ""
    screen.print(f"The table is in {output}/summary.md{where}.")
    raise typer.Exit(code=int(broken))


def _list_installed(packages: list[str]) -> list[str]:
    from .networks import PEERS
    from .study import AUDITED, find_versions

    unknown = set(packages) - set(AUDITED)
    if unknown:
        known = ", ".join(sorted(AUDITED))
        raise typer.BadParameter(
            f"--package: there is no {sorted(unknown)[0]!r}; must be among {known}"
        )
    installed = set(find_versions()) & set(packages or AUDITED)
    names = [name for name in PEERS if name.partition("/")[0] in installed]
    if "transformers" in installed:  # it loads triton, before which fla-core must set a variable
        from .architectures import list_architectures

        names += list_architectures()
    return names


def _audit_named(networks: list[str], laws: list[str], own_weights: bool, device: str) -> Any:
    import pandas as pd

    from ...twins.audit import audit
    from ...twins.report import Finding
    from .networks import PEERS, build_peer

    screen = console()

    def show(finding: Finding) -> None:
        text, style = f"  {finding}", _VERDICTS[finding.verdict]
        if finding.verdict == "broken":
            text = f"{text}\n    {finding.details['statement']}"
        screen.print(text, style=style, highlight=False)

    tables = []
    for name in networks:
        screen.print(name, style="bold")
        weights = "own" if own_weights or Path(name).is_dir() else "drawn"
        try:
            own = {"network": name, "weights": weights, "laws": tuple(laws)}
            given = build_peer(name, laws) if name in PEERS else own
            report = audit(**given, device=device, progress=show)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from error
        tables.append(report.to_frame().assign(network=name, package="", version=""))
    return pd.concat(tables, ignore_index=True)


def _write(table: Any, settings: dict[str, Any], output: Path) -> None:
    from ..tables import write_summary, write_table
    from .report import summary_lines, write_scripts

    write_scripts(table, output)
    tried = table[table.verdict != "not judged"]
    tried = tried.assign(why=tried.why.where(tried.verdict != "holds", ""))
    write_table(tried.drop(columns=["script", "statement"], errors="ignore"), output)
    write_summary("twinsolve audit", summary_lines(table), settings, output)
