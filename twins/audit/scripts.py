"""Programs of plain torch that show a broken law."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterable
from dataclasses import dataclass
from textwrap import wrap
from types import CodeType, FunctionType
from typing import Any

from torch import Tensor

from . import laws
from .architectures import Architecture
from .inputs import difference
from .laws import NetworkLaw
from .model import Convention, Model
from .simplify import simplify
from .weights import write_draw

_WIDTH, _LINES = 120, 60  # of a script; without empty lines where it would be longer
_WRAP: dict[str, Any] = {
    "subsequent_indent": "    ", "break_long_words": False, "break_on_hyphens": False
}  # fmt: skip


@dataclass(frozen=True)
class NetworkOrigin:
    """What builds a network: an architecture of transformers, or the source of the caller's own."""

    architecture: Architecture | None = None
    source: str = ""
    drawn: bool = True


def write_script(
    law: NetworkLaw,
    model: Model,
    origin: NetworkOrigin,
    case: tuple[Any, ...],
    found: Tensor,
    expected: Tensor,
) -> str:
    """Write a program that builds the network, holds it to the law and prints the error."""
    check: Any = law.check
    source = simplify(write_sources([check]), _known(model))
    arguments = ", ".join([_model(model), "inputs", *map(repr, case)])
    body = [
        source,
        _adapter(law, model, source),
        "\n".join([_network(origin, model), *_move(model), *_set(law, model)]),
        f"found, expected, *_ = {check.__name__}({arguments})\n" + _print(found, expected),
    ]
    error = difference(found, expected)
    title = f'"""{_title(origin, model)}: {law.name}.\n\n{law.statement} Error: {error:.1e}."""'
    imports = _imports(origin, "\n".join(body))
    script = "\n\n".join([f"{title}\n{imports}", *body]) + "\n"
    return script if script.count("\n") <= _LINES else script.replace("\n\n", "\n")


def _known(model: Model) -> dict[str, Any]:
    """Return the values that expressions in laws have for this network, by their source."""
    known = {
        "model.source is None": model.source is None,
        "model.source is not None": model.source is not None,
        "model.mask_of_call": model.mask_of_call,
        "model.chunks": model.chunks,
        "model.gates": model.gates,
        "model.longest": model.longest,
        "model.asks": model.asks,
        "model.cache_name": model.cache_name,
        "model.config is not None": model.config is not None,
        "model.offers": sorted(model.offers),
    }
    if model.source is None:
        known["model.source_of(ids)"] = {}
    else:
        known["model.source.is_floating_point()"] = model.source.is_floating_point()
    floating = model.inputs.is_floating_point()
    return known | {f"{x}.is_floating_point()": floating for x in ("inputs", "later")}


def _print(found: Tensor, expected: Tensor) -> str:
    """Return the line that prints the error."""
    if found.shape != expected.shape:
        return 'print("shapes", tuple(found.shape), "and", tuple(expected.shape))'
    if not expected.is_floating_point():
        return 'print("share of entries that differ", (found != expected).double().mean().item())'
    error = "(found - expected).abs().max() / expected.abs().max()"
    return f'print("relative error", ({error}).item())'


def _move(model: Model) -> list[str]:
    """Return lines that move what was made to the GPU, with what laws make; none on the CPU."""
    device = model.inputs.device.type
    if device == "cpu":
        return []
    moved = ["network", "inputs", *(["source"] if model.source is not None else [])]
    return [
        *(f"{name} = {name}.to({device!r})" for name in moved),
        f"torch.set_default_device({device!r})",
    ]


def _set(law: NetworkLaw, model: Model) -> list[str]:
    """Return lines that turn what was made to float64 and ask for gradients by features."""
    known = {"inputs": model.inputs, "source": model.source}
    floating = [name for name, x in known.items() if x is not None and x.is_floating_point()]
    names = ["network", *floating]
    wide = f"{', '.join(names)} = {', '.join(f'{name}.double()' for name in names)}"
    return [wide] * law.exact + ["inputs.requires_grad_()"] * (law.grad and "inputs" in floating)


def _title(origin: NetworkOrigin, model: Model) -> str:
    if origin.architecture is None:
        name: str = getattr(model.network, "__name__", type(model.network).__name__)
        return name
    import transformers

    return f"{origin.architecture.network.__name__} of transformers {transformers.__version__}"


def _imports(origin: NetworkOrigin, body: str) -> str:
    """Return the import statements that a body needs."""
    modules = ("copy", "importlib", "math", "os", "sys")
    lines = [f"import {name}" for name in modules if re.search(rf"\b{name}\.", body)]
    lines += [f"from itertools import {x}" for x in ("pairwise",) if re.search(rf"\b{x}\(", body)]
    lines += ["import torch"]
    lines += ["import torch.nn.functional as F"] if re.search(r"\bF\.", body) else []
    lines += ["from torch import nn"] if re.search(r"\bnn\.", body) else []
    lines += ["import transformers"] if re.search(r"\btransformers\.", body) else []
    if origin.architecture:
        names = sorted({origin.architecture.config.__name__, origin.architecture.network.__name__})
        lines += [f"from transformers import {', '.join(names)}"]
    return "\n".join(lines)


def _network(origin: NetworkOrigin, model: Model) -> str:
    """Return the lines that build the network, its weights, source and inputs."""
    drawn = origin.drawn and any(True for _ in model.network.parameters())
    if origin.architecture is None:
        source = origin.source or "network = ...  # put yours here, in eval mode"
        lines = [re.sub(r"^network\b", "torch.manual_seed(0)\n\\g<0>", source, flags=re.M)]
        lines += ["network.eval()"] if drawn else []
    else:
        architecture = origin.architecture
        lines = [
            *_settings(architecture),
            "torch.manual_seed(0)",
            f"network = {architecture.network.__name__}({architecture.config.__name__}"
            "(**settings)).eval()",
        ]
    lines += write_draw(model.network) if drawn else []
    ids: Any = getattr(model.config, "vocab_size", None)
    if model.source is not None:
        two_rows = model.source[:1].expand(2, *model.source.shape[1:])
        lines.append(f"source = {_draw(two_rows, 3, ids, 2)}[:{len(model.source)}]")
    if "inputs" not in origin.source and model.source is not None:
        rows = f"torch.arange({len(model.inputs)})[:, None]"
        lines.append(f"inputs = 2 * {_draw(model.inputs, 2, ids // 2, 1)} + {rows}")
    elif "inputs" not in origin.source:
        lines.append(write_inputs(model.inputs, ids))
    return "\n".join(lines)


def _settings(architecture: Architecture) -> list[str]:
    """Return the lines of the settings that differ from the defaults."""
    words = [
        f"{k!r}: {x!r}," for k, x in _changed(architecture.settings, architecture.config).items()
    ]
    return wrap(f"settings = {{{' '.join(words)}}}", _WIDTH, **_WRAP)


def _changed(settings: dict[str, Any], config: type) -> dict[str, Any]:
    """Return the settings, and those of parts, that differ from the defaults."""
    defaults, changed = vars(config()), {}
    for name, value in settings.items():
        part, default = isinstance(value, dict), defaults.get(name)
        if part and hasattr(default, "model_type"):
            changed[name] = _changed(value, type(default))
        elif not (isinstance(value, int | float | str) and value == default):
            changed[name] = value
    return changed


def write_inputs(inputs: Tensor, top: int | None = None) -> str:
    """Return a line that draws features, or ids below `top`."""
    return f"inputs = {_draw(inputs, 3, top or 0, 1)}"


def _draw(x: Tensor, least: int, top: int, seed: int) -> str:
    """Return an expression that draws a tensor of the shape of x, features or ids."""
    shape, draw = ", ".join(map(str, x.shape)), f"generator=torch.Generator().manual_seed({seed})"
    if x.is_floating_point():
        return f"torch.randn({shape}, {draw})"
    return f"torch.randint({least}, {top or int(x.max()) + 1}, ({shape}), {draw})"


def _model(model: Model) -> str:
    return "Model(network)" if model.source is None else "Model(network, source)"


def _adapter(law: NetworkLaw, model: Model, source: str) -> str:
    """Return the source of a class that laws call as they call `Model`, as far as they use it."""
    names = model.convention
    takes = {"cache": names.cache, "mask": names.mask, "positions": names.positions}
    used = [name for name in takes if re.search(rf"\b{name}=|'{name}'", source)]
    head = ["self", "inputs", *(f"{x}=None" for x in used)]
    words = {
        takes[name]: value
        for name, value in {"cache": "cache", "mask": _mask_of(names),
                            "positions": _positions_of(names)}.items()
        if name in used and takes[name]
    }  # fmt: skip
    lines = _start_of_adapter(names, source)
    lines += [] if law.grad else ["    @torch.no_grad()"]
    lines += [f"    def __call__({', '.join(head)}):"]
    if not names.returns_cache:
        make = "cache or transformers.DynamicCache(config=self.network.config)"
        lines += [f"        cache = {make}" if "cache" in used else f"        cache = {make[9:]}"]
        words |= {str(names.cache): "cache"}
    arguments = "".join(f", {name}=True" for name in names.asks)
    if words:
        pairs = ", ".join(f"{name!r}: {value}" for name, value in words.items())
        items = f"{{{pairs}}}.items()"
        lines += [f"        given = {{name: x for name, x in {items} if x is not None}}"]
        arguments += ", **given"
    arguments += ", **self.source_of(inputs)" if names.source else ""
    keyword = f"{names.inputs}=" if names.inputs else ""
    call = f"output = self.network({keyword}inputs{arguments})"
    draws = "config" in law.needs or model.randomness  # of a network that is built anew, or its own
    lines += ["        torch.manual_seed(0)"] if law.seeded and draws else []
    cache = f"output.{names.cache}" if names.cache and names.returns_cache else None
    cache = cache or ("cache" if not names.returns_cache else "None")
    lines += [f"        {call}", f"        return {_output_of(model, cache)}"]
    return "\n".join(["class Model:", *lines])


def _start_of_adapter(names: Convention, source: str) -> list[str]:
    """Return the lines of that class before its method ``__call__``."""
    if not names.source:
        lines = ["    def __init__(self, network):", "        self.network = network", ""]
        if ".of(" in source:
            lines += ["    def of(self, network):", "        return Model(network)", ""]
        if "source_of(" in source:
            lines += ["    def source_of(self, inputs):", "        return {}", ""]
        return lines
    lines = [
        "    def __init__(self, network, source, mask=None):",
        "        self.network, self.source, self.mask = network, source, mask",
        "",
    ]
    if ".of(" in source:
        lines += ["    def of(self, network):"]
        lines += ["        return Model(network, self.source, self.mask)", ""]
    if "reading(" in source:
        lines += ["    def reading(self, source, mask):"]
        lines += ["        return Model(self.network, source, mask)", ""]
    lines += [
        "    def source_of(self, inputs):  # the first token tells",
        "        first = (inputs != 0).int().argmax(1)",
        "        rows = inputs[range(len(inputs)), first] % len(self.source)",
    ]
    arguments = f"{{{names.source!r}: self.source[rows]}}"
    if "reading(" in source:
        mask = f"{{{names.source_mask!r}: self.mask[rows]}}"
        arguments = f"{arguments} | ({{}} if self.mask is None else {mask})"
    return [*lines, f"        return {arguments}", ""]


def _mask_of(names: Convention) -> str:
    """Return the expression of the mask that the network takes."""
    shown = "mask == 0" if names.mask_hides else "mask != 0" if names.mask_shows else ""
    return f"None if mask is None else {shown}" if shown else "mask"


def _positions_of(names: Convention) -> str:
    """Return the expression of the positions that the network takes."""
    shifted = f"None if positions is None else positions + {names.first_position}"
    return shifted if names.first_position else "positions"


def _output_of(model: Model, cache: str) -> str:
    """Return the expression of output and cache."""
    if model.config is not None:
        return f'output["logits" if "logits" in output else "last_hidden_state"], {cache}'
    return "output if isinstance(output, tuple) else (output, None)"


_WRITTEN = (laws.__name__, difference.__module__)  # whose functions scripts contain


def write_sources(objects: Iterable[Any]) -> str:
    """Return the source of functions and classes, after that of functions of ours they call."""
    called = dict.fromkeys(x for y in objects for x in _objects_of(y))
    return "\n\n\n".join(map(_source, called))


def _objects_of(thing: Any) -> list[Any]:
    """Return the functions and classes of ours that a function uses, and the function last."""
    if not isinstance(thing, FunctionType):
        return [thing]
    used = map(thing.__globals__.get, _names_of(thing.__code__))
    parts = (x for x in used if isinstance(x, FunctionType | type) and x is not thing)
    homes = tuple(f"{home}." for home in (thing.__module__, *_WRITTEN))
    ours = [x for x in parts if f"{x.__module__}.".startswith(homes)]
    return [*dict.fromkeys(y for x in ours for y in _objects_of(x)), thing]


def _names_of(code: CodeType) -> list[str]:
    """Return the names that a function uses, also in the functions within it."""
    inner = [x for x in code.co_consts if isinstance(x, CodeType)]
    return [*code.co_names, *(name for x in inner for name in _names_of(x))]


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
    """Return the source of an object without decorators, annotations and long docstrings."""
    tree = ast.parse(inspect.getsource(thing)).body[0]
    assert isinstance(tree, ast.FunctionDef | ast.ClassDef)
    tree.decorator_list = []
    return ast.unparse(ast.fix_missing_locations(_Strip().visit(tree)))
