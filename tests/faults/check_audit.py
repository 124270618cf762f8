"""Plant faults in transformers one at a time, and see whether the audit finds them."""

import ast
import gc
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import pandas as pd
import torch
import typer
from audit_history import BASES, HISTORY, audit_layer
from rich.progress import track
from torch import nn

from twinsolve import audit
from twinsolve.bench.options import Output
from twinsolve.bench.tables import markdown, write_summary, write_table
from twinsolve.bench.terminal import console
from twinsolve.twins import Report
from twinsolve.twins.audit.architectures import find_architecture

BATCHES = ("first", "second", "third")


@dataclass(frozen=True)
class Fault:
    """A mistake in a source file of transformers.

    Attributes
    ----------
    kind, name : str
    family : str
        An architecture that `audit` knows.
    old, new : str
        Source, and what is planted there.
    after : str
        Text before that source; without it the source stands once.
    file : str
        A module of transformers, by default that of the family.
    """

    kind: str
    name: str
    family: str
    old: str
    new: str
    after: str = ""
    file: str = ""

    @property
    def module(self) -> Any:
        """The module whose source is changed."""
        own: str = find_architecture(self.family).network.__module__
        return import_module(f"transformers.{self.file}" if self.file else own)

    def find(self, source: str) -> int:
        """Where the old source starts.

        Raises
        ------
        ValueError
            If it is not there, or more than once and the fault does not say where.
        """
        start = source.find(self.after)
        n = source.count(self.old, max(start, 0))
        if start < 0 or n == 0 or (n > 1 and not self.after):
            raise ValueError(f"{self.family}, {self.name}: {self.old!r} occurs {n} times")
        return source.index(self.old, start)


def read_faults(batch: str) -> list[Fault]:
    """Every fault of a batch, by kinds."""
    text = (Path(__file__).with_name("audit") / f"{batch}.toml").read_text()
    return [Fault(**fault) for fault in tomllib.loads(text)["fault"]]


@contextmanager
def planted(fault: Fault) -> Iterator[None]:
    """Within, the function whose source the fault changes runs the changed code."""
    path = fault.module.__file__
    source = Path(path).read_text()
    start = fault.find(source)
    changed = source[:start] + fault.new + source[start + len(fault.old) :]
    name = _find_function(ast.parse(source), source.count("\n", 0, start) + 1)
    code = next(x for x in _codes(compile(changed, path, "exec")) if x.co_qualname == name)
    functions = [x for x in gc.get_objects() if _is_of(x, path) and x.__code__.co_qualname == name]
    kept = [(function, function.__code__) for function in functions]
    assert kept
    try:
        for function in functions:
            function.__code__ = code
        yield
    finally:
        for function, sound in kept:
            function.__code__ = sound


def _find_function(tree: Any, line: int) -> str:
    """The qualified name of the outermost function around a line."""
    node = next(x for x in tree.body if x.lineno <= line <= x.end_lineno)
    inner = isinstance(node, ast.ClassDef)
    return f"{node.name}.{_find_function(node, line)}" if inner else str(node.name)


def _codes(code: CodeType) -> Iterator[CodeType]:
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield inner
            yield from _codes(inner)


def _is_of(x: Any, path: str) -> bool:
    return type(x) is FunctionType and x.__code__.co_filename == path


def audit_family(family: str, laws: tuple[str, ...] = ()) -> Report:
    """The audit of a tiny network of the family."""
    torch.manual_seed(0)
    found = find_architecture(family)
    return audit(found.network(found.config(**found.settings)), laws=laws)


@cache
def sound_verdicts(family: str, laws: tuple[str, ...]) -> dict[str, str]:
    """Of the family as it is."""
    return {x.law: x.verdict for x in audit_family(family, laws).findings}


def hold(fault: Fault, laws: tuple[str, ...] = ()) -> dict[str, Any]:
    """A row of the table: what the audit says of the fault, beyond what it says without it."""
    sound = sound_verdicts(fault.family, laws)
    row = {"kind": fault.kind, "subject": fault.family, "fault": fault.name}
    with planted(fault):
        try:
            return row | compare(audit_family(fault.family, laws), sound)
        except Exception as raised:  # before any law, at every call: loud
            return row | {"verdict": "refused", "broken": "", "refused": type(raised).__name__}


def compare(report: Report, sound: dict[str, str]) -> dict[str, Any]:
    """Laws that are broken or refused now, and were not."""
    changed = [x for x in report.findings if x.verdict != sound[x.law]]
    found = {
        verdict: [x.law for x in changed if x.verdict == verdict]
        for verdict in ("broken", "refused")
    }
    verdict = "caught" if found["broken"] else "refused" if found["refused"] else "missed"
    return {"verdict": verdict, **{name: ", ".join(laws) for name, laws in found.items()}}


@cache
def sound_layer(base: type[nn.Module], laws: tuple[str, ...]) -> dict[str, str]:
    """Verdicts on a layer that breaks no law."""
    report = audit_layer(base, laws)
    assert report, report
    return {x.law: x.verdict for x in report.findings}


def hold_layer(
    package: str, source: str, layer: type[nn.Module], laws: tuple[str, ...] = ()
) -> dict[str, Any]:
    """A row of the table for a fault that a package had."""
    base = next(base for base in layer.__mro__ if base in BASES)
    text = str(layer.__doc__)
    row = {"kind": "history", "subject": f"{package}, {source}", "fault": text.rstrip(".")}
    return row | compare(audit_layer(layer, laws), sound_layer(base, laws))


def summarise(table: pd.DataFrame) -> list[str]:
    """How many of each batch and kind are caught, and every fault with the laws that it breaks."""
    groups = table.groupby(["batch", "kind"], sort=False).verdict
    counts = groups.value_counts().unstack(fill_value=0)
    counts = counts.reindex(columns=["caught", "refused", "missed"], fill_value=0)
    lines = [(*names, str(sum(row)), *map(str, row)) for names, *row in counts.itertuples()]
    every = table[["kind", "subject", "fault", "verdict", "broken"]].itertuples(index=False)
    return [
        "A fault is caught if it breaks a law that holds without it. It is refused if it breaks "
        "none, and the network raises an error that it did not raise.", "",
        *markdown(("batch", "kind", "faults", "caught", "refused", "missed"), lines), "",
        *markdown(("kind", "in", "fault", "verdict", "laws that it breaks"), every),
    ]  # fmt: skip


def audit_faults(
    output: Output = Path("results/audit-faults"),
) -> None:
    """Plant faults in transformers one at a time, and see which break a law of the audit.

    Beside them stand faults that packages had, rebuilt in small. Exits with status 1 if more than
    one in twenty is not caught.
    """
    import transformers

    transformers.logging.set_verbosity_error()
    rows = []
    for batch in BATCHES:
        for fault in track(read_faults(batch), f"Auditing the {batch} batch", console=console()):
            rows.append({"batch": f"{batch} batch"} | hold(fault))
    rows += [{"batch": "history"} | hold_layer(*fault) for fault in HISTORY]
    table = pd.DataFrame(rows)
    lines = summarise(table)
    console().print(*lines[: lines.index("", 2)], sep="\n", markup=False)
    write_table(table, output)
    settings = {"transformers": transformers.__version__}
    write_summary("Faults that the audit finds", lines, settings, output)
    raise typer.Exit(code=int((table.verdict != "caught").mean() > 0.05))


if __name__ == "__main__":
    typer.run(audit_faults)
