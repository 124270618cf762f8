"""Programs of plain torch that show a broken law."""

from __future__ import annotations

import ast
import inspect
from dataclasses import dataclass
from pprint import pformat
from types import FunctionType
from typing import Any

from . import weights
from .architectures import Architecture
from .laws import NetworkLaw
from .model import Model

_DRAW: Any = weights.draw_weights


@dataclass(frozen=True)
class Origin:
    """What builds a network: an architecture of transformers, or the source of the caller's own."""

    architecture: Architecture | None = None
    source: str = ""
    drawn: bool = True


def write_script(law: NetworkLaw, model: Model, origin: Origin, error: float) -> str:
    """Write a program that builds the network, holds it to the law and prints the error."""
    check: Any = law.check
    source = "\n\n\n".join(_source(f) for f in _functions_of(check))
    parts = [
        f'"""{_title(origin, model)}: {law.name}.\n\n{law.statement} Error: {error:.1e}.\n"""',
        _imports(origin),
        source,
        _adapter(model, source),
        _network(origin, model),
        f"found, expected = {check.__name__}(Model(network), inputs)\n" + _PRINT,
    ]
    return "\n\n\n".join(parts) + "\n"


_PRINT = """if found.shape != expected.shape:
    print("shapes", tuple(found.shape), "and", tuple(expected.shape))
elif expected.is_floating_point():
    print("relative error", ((found - expected).abs().max() / expected.abs().max()).item())
else:
    print("share of entries that differ", (found != expected).double().mean().item())"""


def _title(origin: Origin, model: Model) -> str:
    if origin.architecture is None:
        name: str = getattr(model.network, "__name__", type(model.network).__name__)
        return name
    import transformers

    return f"{origin.architecture.network.__name__} of transformers {transformers.__version__}"


def _imports(origin: Origin) -> str:
    lines = [
        "import copy",
        "import math",
        "import sys",
        "",
        "import torch",
        "import torch.nn.functional as F",
    ]
    if origin.architecture:
        names = sorted({origin.architecture.config.__name__, origin.architecture.network.__name__})
        lines += ["import transformers", f"from transformers import {', '.join(names)}"]
    return "\n".join(lines)


def _network(origin: Origin, model: Model) -> str:
    if origin.architecture is None:
        lines = ["torch.manual_seed(0)", origin.source or "network = ...  # in eval mode"]
        if origin.drawn:
            lines.append("draw_weights(network.eval())")
    else:
        found = origin.architecture
        settings = pformat(found.settings, width=96, compact=True)
        lines = [
            f"settings = {settings}",
            "torch.manual_seed(0)",
            f"network = {found.network.__name__}({found.config.__name__}(**settings)).eval()",
            "draw_weights(network)",
        ]
    if "inputs" in origin.source:
        return _with_draw(origin, lines)
    shape = ", ".join(map(str, model.inputs.shape))
    if model.inputs.is_floating_point():
        lines.append(f"inputs = torch.randn({shape}, generator=torch.Generator().manual_seed(1))")
    else:
        top = getattr(model.config, "vocab_size", int(model.inputs.max()) + 1)
        draw = "generator=torch.Generator().manual_seed(1)"
        lines.append(f"inputs = torch.randint(3, {top}, ({shape}), {draw})")
    return _with_draw(origin, lines)


def _with_draw(origin: Origin, lines: list[str]) -> str:
    if not origin.drawn:
        return "\n".join(lines)
    sources = [_source(f) for f in _functions_of(_DRAW)]
    return "\n\n\n".join(
        [f"SEED = {weights.SEED}\nGATES = {weights.GATES}", *sources, "\n".join(lines)]
    )


def _adapter(model: Model, source: str) -> str:
    """A class that laws can call as they call `Model`, with the attributes that they use."""
    names = model.convention
    values = {
        "cache_name": names.cache, "chunks": model.chunks, "longest": model.longest,
        "mask_of_call": model.mask_of_call, "offers": sorted(model.offers),
    }  # fmt: skip
    lines = [f"    {name} = {x!r}" for name, x in values.items() if f"model.{name}" in source]
    lines += [
        "    def __init__(self, network):",
        "        self.network = network",
        "",
        "    def of(self, network):",
        "        return Model(network)",
        "",
        "    def __call__(self, inputs, *, cache=None, mask=None, positions=None, grad=False):",
        f"        given = {dict.fromkeys(names.asks, True)}",
    ]
    if not names.returns_cache:
        lines += ["        if cache is None:"]
        lines += ["            cache = transformers.DynamicCache(config=self.network.config)"]
    given = {"cache": names.cache, "mask": names.mask, "positions": names.positions}
    for ours, theirs in given.items():
        value = {
            "positions": f"positions + {names.first_position}",
            "mask": "mask == 0" if names.mask_hides else "mask",
        }.get(ours, ours)
        if theirs:
            lines += [f"        if {ours} is not None:", f'            given["{theirs}"] = {value}']
    cache = f"output.{names.cache}" if names.cache and names.returns_cache else "cache"
    lines += [
        "        with torch.set_grad_enabled(grad):",
        "            output = self.network(inputs, **given)",
        f"        return {_output_of(model, cache)}",
    ]
    return "\n".join(["class Model:", *lines])


def _output_of(model: Model, cache: str) -> str:
    if model.config is not None:
        name = "logits" if "generate" in model.offers else "last_hidden_state"
        return f"output.{name}, {cache}"
    return "output if isinstance(output, tuple) else (output, None)"


def _functions_of(function: FunctionType) -> list[FunctionType]:
    """The function, after those of its module that it calls."""
    module = inspect.getmodule(function)
    called = [getattr(module, name, None) for name in function.__code__.co_names]
    own = [
        f
        for f in called
        if inspect.isfunction(f) and inspect.getmodule(f) is module and f is not function
    ]
    before = dict.fromkeys(g for f in own for g in _functions_of(f))
    return [*before, function]


def _source(function: FunctionType) -> str:
    """The source without decorators and annotations."""
    tree = ast.parse(inspect.getsource(function)).body[0]
    assert isinstance(tree, ast.FunctionDef)
    tree.decorator_list = []
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            node.returns = None
        elif isinstance(node, ast.arg):
            node.annotation = None
    return ast.unparse(tree)
