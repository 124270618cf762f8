"""Hold a network to one law: the verdict, and where a broken law shows first."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from .heads import find_mixing_maps
from .inputs import cast, convert, difference
from .laws import NetworkLaw, NotApplicable
from .model import Model
from .report import Row, Verdict
from .scripts import Origin, write_script

_LEAST = 2e-9  # of a tolerance: rounding of differences in float64
_FACTOR = 10  # of a tolerance to the noise
_WORST: list[Verdict] = ["not applicable", "holds", "refused", "broken"]


@dataclass(frozen=True)
class _Trial:
    """What one case of a law gave."""

    verdict: Verdict
    why: str
    error: float | None = None
    tolerance: float | None = None
    case: tuple[Any, ...] = ()
    found: Any = None
    expected: Any = None


def hold(law: NetworkLaw, model: Model, origin: Origin) -> Row:
    """Try every case of a law; the worst is the row."""
    lacks = [need for need in law.needs if need not in model.offers]
    if lacks:
        return Row(law.name, law.statement, "not applicable", why=f"needs {lacks[0]}")
    trials = [_try(law, model, case) for case in law.cases]
    worst = max(trials, key=lambda x: (_WORST.index(x.verdict), x.error or 0))
    row = Row(law.name, law.statement, worst.verdict, worst.error, worst.tolerance, worst.why)
    if worst.verdict != "broken":
        return row
    script = write_script(law, model, origin, worst.case, worst.found, worst.expected)
    return replace(row, start=_find_start(law, model, worst), script=script)


def _try(law: NetworkLaw, model: Model, case: tuple[Any, ...]) -> _Trial:
    model.calls.clear()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found, expected, *differences = check(law, model, case)
    except NotApplicable as reason:
        return _Trial("not applicable", str(reason))
    except Exception as raised:  # whatever a network raises is loud
        return _Trial("refused", f"{type(raised).__name__}: {' '.join(str(raised).split())[:200]}")
    error = difference(found, expected)
    tolerance, why = _find_tolerance(law, model, differences)
    if error <= tolerance:
        if law.tolerance is not None and tolerance > law.tolerance:
            return _Trial("not applicable", f"{why}, more than {law.tolerance:.0e}")
        return _Trial("holds", why, error, tolerance)
    if law.seeded and model.is_explained_by_draws(error):
        drawn = f"it draws random numbers, which change the output by {model.randomness:.1e}"
        return _Trial("not applicable", drawn)
    return _Trial("broken", why, error, tolerance, case, found, expected)


def check(law: NetworkLaw, model: Model, case: tuple[Any, ...]) -> Any:
    """What the law finds and expects of the model, in the dtype and mode that it needs."""
    held = replace(model, seed=model.seed if law.seeded else None, grad=law.grad)
    inputs = model.inputs.clone()
    if law.exact:
        held, inputs = convert(held, torch.float64), cast(inputs, torch.float64)
    inputs.requires_grad_(law.grad and inputs.is_floating_point())
    return law.check(held, inputs, *case)


def _find_tolerance(law: NetworkLaw, model: Model, differences: list[Tensor]) -> tuple[float, str]:
    if law.tolerance is None:
        tolerance, why = model.tolerance
        return law.growth * tolerance, why if law.growth == 1 else f"{law.growth} x {why}"
    if not differences:
        return law.tolerance, law.why
    noise = measure_noise(*differences)
    why = f"{_FACTOR} x the noise, {noise:.1e}; smaller errors are not seen"
    return max(_FACTOR * noise, _LEAST), why


def measure_noise(differences: Tensor) -> float:
    """How far a difference and that of half the size are apart, relative, where they agree best.

    A difference that is zero beside others may be rounded away. Of directions the largest counts:
    that all three agree better than a tenth of their noise by chance is one case in 10,000.
    """
    gaps = (differences[:, ::2] - differences[:, 1::2]).abs()
    gaps[(differences[:, ::2] == 0) & differences.any(1, keepdim=True)] = torch.inf
    return (gaps.amin(1).max() / differences.abs().amin(1).max()).item()


def _find_start(law: NetworkLaw, model: Model, trial: _Trial) -> str:
    found, expected = trial.found, trial.expected
    if found.shape != expected.shape:
        return f"shape {tuple(found.shape)}, expected {tuple(expected.shape)}"
    if found.ndim < 2 or found.shape[1] < 2:
        return ""
    tokens = zip(found.unbind(1), expected.unbind(1), strict=True)
    wrong = [difference(*pair) > (trial.tolerance or 0) for pair in tokens]
    layer = _find_layer(law, model, trial.case)
    return f"token {wrong.index(True)}{layer}" if any(wrong) else ""


def _find_layer(law: NetworkLaw, model: Model, case: tuple[Any, ...]) -> str:
    """Hold the hidden states to the law; name the first layer after which it is broken."""
    if "hidden states" not in model.offers or law.tolerance is not None or "generate" in law.needs:
        return ""
    for layer in range(1, getattr(model.config, "num_hidden_layers", 0) + 1):
        inner = replace(model, layer=layer)
        try:
            found, expected, *_ = check(law, inner, case)
            if difference(found, expected) > model.tolerance[0]:
                return f", layer {layer - 1}{_find_heads(law, model, layer - 1, case)}"
        except Exception:  # a network need not give hidden states
            return ""
    return ""


def _find_heads(law: NetworkLaw, model: Model, layer: int, case: tuple[Any, ...]) -> str:
    """Hold the heads of a layer to the law; name those that break it, where they can be told."""
    try:
        n = model.config.num_attention_heads
        for name in find_mixing_maps(model, layer):
            inner = replace(model, module=name)
            found, expected, *_ = check(law, inner, case)
            pairs = zip(found.chunk(n, -1), expected.chunk(n, -1), strict=True)
            wrong = [str(i) for i, x in enumerate(pairs) if difference(*x) > model.tolerance[0]]
            if wrong:
                return f", head {', '.join(wrong)}" if len(wrong) < n else ", every head"
    except Exception:  # a network need not have heads
        return ""
    return ""
