"""Checks of whole models: each layer is judged on the tokens that reach it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from torch import nn

from ...unrolled.attention import Attention, check_count
from ..heads import Tensors
from ..laws import worst
from ..report import Finding, Report
from .calls import Judgement, NotJudgedError
from .modules import ModuleJudge
from .recording import bind_arguments, modules_of, run_watched
from .subjects import LawsTried, settings_of, try_laws


def check_model(model: nn.Module, batch: Any, *, n_rows: int = 8, random_state: int = 0) -> Report:
    """Run a model once in evaluation mode and judge every module with a twin; see `check`."""
    checked = _ModelCheck(model, ModuleJudge(check_count(n_rows, "n_rows", 1), random_state))
    if not checked.judges:
        raise LookupError(
            f"no twin is registered for {type(model).__name__} or any module in it; "
            "twinsolve.twins.register adds one, or put in an operator by replace_attention(model, "
            '"softmax"), or by attach_huggingface for a model of Hugging Face'
        )
    run_watched(model, batch, checked.watch)
    return Report(type(model).__name__, tuple(checked.findings()))


@dataclass
class _ModelCheck:
    """Judges modules while the model runs, so that their inputs need not be stored."""

    model: nn.Module
    judge: ModuleJudge
    judgements: dict[str, list[Judgement]] = field(default_factory=dict)
    laws: dict[str, LawsTried] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    ran: set[str] = field(default_factory=set)
    tried: list[tuple[Any, LawsTried]] = field(default_factory=list)

    def __post_init__(self) -> None:
        ways = ((name, self.judge.way_of(module)) for name, module in modules_of(self.model))
        self.judges = {name: way for name, way in ways if way is not None}

    def watch(self, name: str, module: nn.Module, inputs: Any, keywords: Any, output: Any) -> None:
        """Judge one call of a module, or keep the reason why it is not judged."""
        self.ran.add(name)
        if name not in self.judges:
            return
        try:
            arguments = bind_arguments(module, inputs, keywords)
            judged, tokens = self.judges[name](module, arguments, output)
            self.judgements.setdefault(name, []).extend(judged)
            if tokens is not None:
                self.laws.setdefault(name, self._try_laws(module, tokens))
        except NotJudgedError as error:
            self.reasons.setdefault(name, str(error))
        except LookupError as error:
            if type(error) is not LookupError:  # an IndexError or KeyError is a bug
                raise
            self.reasons.setdefault(name, str(error))

    def _try_laws(self, layer: nn.Module, inputs: Tensors) -> LawsTried:
        """Try the laws that a layer declares; layers with the same settings are tried once."""
        settings = settings_of(layer)
        for tried, laws in self.tried:
            if tried == settings:
                return laws
        self.tried.append((settings, try_laws(layer, inputs)))
        return self.tried[-1][1]

    def findings(self) -> Iterator[Finding]:
        """Yield the findings on each module, in the order of the model."""
        for name, module in modules_of(self.model):
            if self.judgements.get(name):
                laws = self.laws.get(name, LawsTried([]))
                yield _summarize(self.judgements[name]).finding(module, name, laws.share)
                yield from (replace(law, where=name) for law in laws.findings)
            elif (why := self._explain_omission(name, module)) is not None:
                kind = {"class": type(module).__name__}
                yield Finding("", "not judged", why=why, where=name, details=kind)

    def _explain_omission(self, name: str, module: nn.Module) -> str | None:
        """Say why a module is not judged; None for modules that only call others."""
        if name in self.reasons:
            return self.reasons[name]
        if name in self.judges and name not in self.ran:
            return "did not run on this batch"
        holder = self.model.get_submodule(name.rpartition(".")[0]) if name else None
        if isinstance(holder, Attention):
            return None  # projections, judged with the shell
        leaf = next(module.children(), None) is None
        has_parameters = next(module.parameters(recurse=False), None) is not None
        if not (leaf or has_parameters) or isinstance(module, nn.Identity | nn.ModuleList):
            return None
        if name not in self.ran:
            return "did not run on this batch"
        if isinstance(module, nn.modules.dropout._DropoutNd):
            return "does nothing in evaluation mode"
        return "has no twin"


def _summarize(judgements: list[Judgement]) -> Judgement:
    """Return the worst judgement of all calls of a module, with the rows of all."""
    measured = worst([x.measured for x in judgements])
    judgement = next(x for x in judgements if x.measured is measured)
    return judgement._replace(n_rows=sum(x.n_rows for x in judgements))
