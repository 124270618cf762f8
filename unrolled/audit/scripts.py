"""Programs of plain torch that show a broken law."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pprint import pformat
from types import FunctionType
from typing import Any

from torch import Tensor

from . import laws, weights
from .architectures import Architecture
from .laws import NetworkLaw
from .model import Convention, Model, difference


@dataclass(frozen=True)
class Origin:
    """What builds a network: an architecture of transformers, or the source of the caller's own."""

    architecture: Architecture | None = None
    source: str = ""
    drawn: bool = True


def write_script(
    law: NetworkLaw,
    model: Model,
    origin: Origin,
    case: tuple[Any, ...],
    found: Tensor,
    expected: Tensor,
) -> str:
    """Write a program that builds the network, holds it to the law and prints the error."""
    error = difference(found, expected)
    check: Any = law.check
    source = write_sources([check])
    given = ", ".join([_model(model), "inputs", *map(repr, case)])
    body = [
        source,
        _adapter(model, source),
        _network(origin, model) + _move(model),
        f"found, expected, *_ = {check.__name__}({given})\n" + _PRINT,
    ]
    title = f'"""{_title(origin, model)}: {law.name}.\n\n{law.statement} Error: {error:.1e}.\n"""'
    return "\n\n\n".join([title, _imports(origin, "\n".join(body)), *body]) + "\n"


_PRINT = """if found.shape != expected.shape:
    print("shapes", tuple(found.shape), "and", tuple(expected.shape))
elif expected.is_floating_point():
    print("relative error", ((found - expected).abs().max() / expected.abs().max()).item())
else:
    print("share of entries that differ", (found != expected).double().mean().item())"""


def _move(model: Model) -> str:
    """Lines that move what was made to the GPU, and make what laws make there; none on the CPU."""
    if model.inputs.device.type == "cpu":
        return ""
    moved = ["network", "inputs", *(["source"] if model.source is not None else [])]
    pairs = (f"{name} = {name}.to({model.inputs.device.type!r})" for name in moved)
    return "\n".join(["", *pairs, f"torch.set_default_device({model.inputs.device.type!r})"])


def _title(origin: Origin, model: Model) -> str:
    if origin.architecture is None:
        name: str = getattr(model.network, "__name__", type(model.network).__name__)
        return name
    import transformers

    return f"{origin.architecture.network.__name__} of transformers {transformers.__version__}"


def _imports(origin: Origin, body: str) -> str:
    modules = ("copy", "importlib", "math", "os", "sys")
    lines = [f"import {name}" for name in modules if re.search(rf"\b{name}\.", body)]
    lines += ["", "import torch", "import torch.nn.functional as F", "from torch import nn"]
    if origin.architecture:
        names = sorted({origin.architecture.config.__name__, origin.architecture.network.__name__})
        lines += ["import transformers", f"from transformers import {', '.join(names)}"]
    return "\n".join(lines).strip()


def _network(origin: Origin, model: Model) -> str:
    drawn = origin.drawn and any(True for _ in model.network.parameters())
    if origin.architecture is None:
        source = origin.source or "network = ...  # put yours here, in eval mode"
        lines = [re.sub(r"^network\b", "torch.manual_seed(0)\n\\g<0>", source, flags=re.M)]
        if drawn:
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
    ids: Any = getattr(model.config, "vocab_size", None)
    if model.source is not None:
        both = model.source[:1].expand(2, *model.source.shape[1:])
        lines.append(f"source = {_draw(both, 3, ids, 2)}[:{len(model.source)}]")
    if "inputs" not in origin.source and model.source is not None:
        rows = f"torch.arange({len(model.inputs)})[:, None]"
        lines.append(f"inputs = 2 * {_draw(model.inputs, 2, ids // 2, 1)} + {rows}")
    elif "inputs" not in origin.source:
        lines.append(write_inputs(model.inputs, ids))
    if not drawn:
        return "\n".join(lines)
    constants = f"SEED = {weights.SEED}\nGATES = {weights.GATES}"
    return "\n\n\n".join([constants, write_sources([weights.draw_weights]), "\n".join(lines)])


def write_inputs(inputs: Tensor, top: int | None = None) -> str:
    """A line that draws features, or ids below `top`."""
    return f"inputs = {_draw(inputs, 3, top or 0, 1)}"


def _draw(x: Tensor, least: int, top: int, seed: int) -> str:
    shape, draw = ", ".join(map(str, x.shape)), f"generator=torch.Generator().manual_seed({seed})"
    if x.is_floating_point():
        return f"torch.randn({shape}, {draw})"
    return f"torch.randint({least}, {top or int(x.max()) + 1}, ({shape}), {draw})"


def _model(model: Model) -> str:
    return "Model(network)" if model.source is None else "Model(network, source)"


def _adapter(model: Model, source: str) -> str:
    """A class that laws can call as they call `Model`, with the attributes that they use."""
    names = model.convention
    values = {
        "cache_name": names.cache, "chunks": model.chunks, "longest": model.longest,
        "mask_of_call": model.mask_of_call, "offers": sorted(model.offers),
    }  # fmt: skip
    lines = [f"    {name} = {x!r}" for name, x in values.items() if f"model.{name}" in source]
    paired = _SOURCE.replace("SOURCE", str(names.source)).replace("MASK", str(names.source_mask))
    lines += [*(paired if names.source else _NO_SOURCE).splitlines(), ""]
    if "model.source" in source and not names.source:
        lines += ["    source, source_of = None, lambda self, inputs: {}", ""]
    lines += [
        "    def __call__(self, inputs, *, cache=None, mask=None, positions=None, grad=False):",
        f"        given = {dict.fromkeys(names.asks, True)}",
    ]
    if names.source:
        lines += ["        given |= self.source_of(inputs)"]
    if not names.returns_cache:
        lines += ["        if cache is None:"]
        lines += ["            cache = transformers.DynamicCache(config=self.network.config)"]
    given = {"cache": names.cache, "mask": names.mask, "positions": names.positions}
    for ours, theirs in given.items():
        value = {
            "positions": f"positions + {names.first_position}",
            "mask": _mask_of(names),
        }.get(ours, ours)
        if theirs:
            lines += [f"        if {ours} is not None:", f'            given["{theirs}"] = {value}']
    cache = f"output.{names.cache}" if names.cache and names.returns_cache else "cache"
    keyword = f"{names.inputs}=" if names.inputs else ""
    lines += [
        "        with torch.set_grad_enabled(grad):",
        f"            output = self.network({keyword}inputs, **given)",
        f"        return {_output_of(model, cache)}",
    ]
    return "\n".join(["class Model:", *lines])


def _mask_of(names: Convention) -> str:
    return "mask == 0" if names.mask_hides else "mask != 0" if names.mask_shows else "mask"


_NO_SOURCE = """    def __init__(self, network):
        self.network = network

    def of(self, network):
        return Model(network)
"""
_SOURCE = """    def __init__(self, network, source, mask=None):
        self.network, self.source, self.mask = network, source, mask

    def of(self, network):
        return Model(network, self.source, self.mask)

    def reading(self, source, mask):
        return Model(self.network, source, mask)

    def source_of(self, inputs):  # the first token of a row tells which source is its own
        first = (inputs != 0).int().argmax(1, keepdim=True)
        rows = inputs.gather(1, first)[:, 0] % len(self.source)
        given = {"SOURCE": self.source[rows]}
        return given if self.mask is None else given | {"MASK": self.mask[rows]}
"""


def _output_of(model: Model, cache: str) -> str:
    if model.config is not None:
        return f'output["logits" if "logits" in output else "last_hidden_state"], {cache}'
    return "output if isinstance(output, tuple) else (output, None)"


def write_sources(objects: Iterable[Any]) -> str:
    """The source of functions and classes, after the functions of this package that they call."""
    called = dict.fromkeys(x for y in objects for x in _objects_of(y))
    return "\n\n\n".join(map(_source, called))


def _objects_of(thing: Any) -> list[Any]:
    if not isinstance(thing, FunctionType):
        return [thing]
    known = map(thing.__globals__.get, thing.__code__.co_names)
    parts = (x for x in known if isinstance(x, FunctionType | type) and x is not thing)
    home = thing.__module__
    home = laws.__name__ if home.startswith(laws.__name__) else home
    own = [x for x in parts if f"{x.__module__}.".startswith(f"{home}.")]
    return [*dict.fromkeys(y for x in own for y in _objects_of(x)), thing]


class _Strip(ast.NodeTransformer):
    """Remove annotations, and all but the first line of docstrings."""

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.Assign | None:
        return ast.Assign([node.target], node.value) if node.value else None

    def visit_arg(self, node: ast.arg) -> ast.arg:
        return ast.arg(node.arg)

    def visit_ClassDef(self, node: ast.ClassDef) -> Any:
        return self._shorten(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> Any:
        node.returns = None
        return self._shorten(node)

    def _shorten(self, node: ast.FunctionDef | ast.ClassDef) -> Any:
        text = ast.get_docstring(node)
        if text is not None:
            node.body[0] = ast.Expr(ast.Constant(text.partition("\n")[0]))
        return self.generic_visit(node)


def _source(thing: Any) -> str:
    """The source without its decorators, annotations and long docstrings."""
    tree = ast.parse(inspect.getsource(thing)).body[0]
    assert isinstance(tree, ast.FunctionDef | ast.ClassDef)
    tree.decorator_list = []
    return ast.unparse(ast.fix_missing_locations(_Strip().visit(tree)))
