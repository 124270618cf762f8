"""Hold a network to one law: the verdict, and where a broken law shows first."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..report import Finding, Verdict
from .heads import find_mixing_maps
from .inputs import cast, convert, difference
from .laws import NetworkLaw, NotApplicable
from .model import Model
from .scripts import NetworkOrigin, write_script

_LEAST = 2e-9  # of a tolerance: rounding of differences in float64
_FACTOR = 10  # of a tolerance to the noise
_WORST: list[Verdict] = ["not judged", "holds", "refused", "broken"]


@dataclass(frozen=True)
class _Outcome:
    """The verdict and the numbers of one case of a law."""

    verdict: Verdict
    why: str
    error: float | None = None
    tolerance: float | None = None
    case: tuple[Any, ...] = ()
    output: Any = None
    expected: Any = None


def hold(law: NetworkLaw, model: Model, origin: NetworkOrigin) -> Finding:
    """Try every case of a law; the worst is the finding."""
    lacks = [need for need in law.needs if need not in model.offers]
    if lacks:
        why = f"needs {lacks[0]}"
        return Finding(law.name, "not judged", why=why, details={"statement": law.statement})
    outcomes = [_try(law, model, case) for case in law.cases]
    worst = max(outcomes, key=lambda x: (_WORST.index(x.verdict), x.error or 0))
    where, details = "", {"statement": law.statement}
    if worst.verdict == "broken":
        where = _find_start(law, model, worst)
        details["script"] = write_script(
            law, model, origin, worst.case, worst.output, worst.expected
        )
    numbers = worst.error, worst.tolerance
    return Finding(law.name, worst.verdict, *numbers, worst.why, where, details)


def _try(law: NetworkLaw, model: Model, case: tuple[Any, ...]) -> _Outcome:
    """Hold the model to one case of a law; return the verdict and the numbers."""
    model.calls.clear()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            output, expected, *differences = check(law, model, case)
    except NotApplicable as reason:
        return _Outcome("not judged", str(reason))
    except Exception as raised:  # whatever a network raises is loud
        return _Outcome(
            "refused", f"{type(raised).__name__}: {' '.join(str(raised).split())[:200]}"
        )
    error = difference(output, expected)
    tolerance, why = _find_tolerance(law, model, differences)
    if error <= tolerance:
        if law.tolerance is not None and tolerance > law.tolerance:
            return _Outcome("not judged", f"{why}, more than {law.tolerance:.0e}")
        return _Outcome("holds", why, error, tolerance)
    if law.seeded and model.is_explained_by_draws(error):
        drawn = f"it draws random numbers, which change the output by {model.randomness:.1e}"
        return _Outcome("not judged", drawn)
    return _Outcome("broken", why, error, tolerance, case, output, expected)


def check(law: NetworkLaw, model: Model, case: tuple[Any, ...]) -> Any:
    """Return what the law finds and expects, with the model in the dtype and mode it needs."""
    prepared = replace(model, seed=model.seed if law.seeded else None, grad=law.grad)
    inputs = model.inputs.clone()
    if law.exact:
        prepared, inputs = convert(prepared, torch.float64), cast(inputs, torch.float64)
    inputs.requires_grad_(law.grad and inputs.is_floating_point())
    return law.check(prepared, inputs, *case)


def _find_tolerance(law: NetworkLaw, model: Model, differences: list[Tensor]) -> tuple[float, str]:
    """Return the largest allowed error, and where it comes from, in words."""
    if law.tolerance is None:
        tolerance, why = model.tolerance
        return law.growth * tolerance, why if law.growth == 1 else f"{law.growth} x {why}"
    if not differences:
        return law.tolerance, law.why
    noise = measure_noise(*differences)
    why = f"{_FACTOR} x the noise, {noise:.1e}; smaller errors are not seen"
    return max(_FACTOR * noise, _LEAST), why


def measure_noise(differences: Tensor) -> float:
    """Return the relative gap between a central difference and that of half its step, where least.

    A difference that is zero beside others may be rounded away. Of directions the largest counts:
    that all three agree better than a tenth of their noise by chance is one case in 10,000.
    """
    gaps = (differences[:, ::2] - differences[:, 1::2]).abs()
    gaps[(differences[:, ::2] == 0) & differences.any(1, keepdim=True)] = torch.inf
    return (gaps.amin(1).max() / differences.abs().amin(1).max()).item()


def _find_start(law: NetworkLaw, model: Model, outcome: _Outcome) -> str:
    """Say at which token, layer and heads a law is first broken, as far as can be told."""
    output, expected = outcome.output, outcome.expected
    if output.shape != expected.shape:
        return f"shape {tuple(output.shape)}, expected {tuple(expected.shape)}"
    if output.ndim < 2 or output.shape[1] < 2:
        return ""
    tokens = zip(output.unbind(1), expected.unbind(1), strict=True)
    wrong = [difference(*pair) > (outcome.tolerance or 0) for pair in tokens]
    layer = _find_layer(law, model, outcome.case)
    return f"token {wrong.index(True)}{layer}" if any(wrong) else ""


def _find_layer(law: NetworkLaw, model: Model, case: tuple[Any, ...]) -> str:
    """Name the first layer whose hidden states break the law."""
    if "hidden states" not in model.offers or law.tolerance is not None or "generate" in law.needs:
        return ""
    for layer in range(1, getattr(model.config, "num_hidden_layers", 0) + 1):
        inner = replace(model, layer=layer)
        try:
            output, expected, *_ = check(law, inner, case)
            if difference(output, expected) > model.tolerance[0]:
                return f", layer {layer - 1}{_find_heads(law, model, layer - 1, case)}"
        except Exception:  # a network need not give hidden states
            return ""
    return ""


def _find_heads(law: NetworkLaw, model: Model, layer: int, case: tuple[Any, ...]) -> str:
    """Name the heads of a layer that break the law, if they can be told apart."""
    try:
        n = model.config.num_attention_heads
        for name in find_mixing_maps(model, layer):
            inner = replace(model, module=name)
            output, expected, *_ = check(law, inner, case)
            pairs = zip(output.chunk(n, -1), expected.chunk(n, -1), strict=True)
            wrong = [str(i) for i, x in enumerate(pairs) if difference(*x) > model.tolerance[0]]
            if wrong:
                return f", head {', '.join(wrong)}" if len(wrong) < n else ", every head"
    except Exception:  # a network need not have heads
        return ""
    return ""
