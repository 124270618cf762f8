"""Writes the API reference before a build: a page for each family of both wings.

Families are found, so that a new one has a page without a line here.
"""

import inspect
from pathlib import Path
from typing import Any

from public_names import WINGS, families, public_names, public_path
from sphinx.application import Sphinx

_TITLES = {
    "twinsolve.bench": "Benchmarks and pictures",
    "twinsolve.datasets": "Data sets",
    "twinsolve.unrolled.twins": "The bridge: check, compare, twins",
}


def write_pages(app: Sphinx) -> None:
    """Write `api/*.rst`, and remove the pages of families that are gone."""
    found = (family for wing in WINGS for family in families(wing))
    modules = [*found, "twinsolve.datasets", "twinsolve.bench"]
    pages = {f"{name.removeprefix('twinsolve.')}.rst": _page(name) for name in modules}
    replace_folder(Path(app.srcdir) / "api", pages)


def replace_folder(folder: Path, pages: dict[str, str]) -> None:
    """Hold exactly these files; what is the same stays untouched, and is not read again."""
    folder.mkdir(exist_ok=True)
    for old in folder.iterdir():
        if old.name not in pages:
            old.unlink()
    for name, text in pages.items():
        path = folder / name
        if not path.exists() or path.read_text() != text:
            path.write_text(text)


def _page(module: str) -> str:
    title = _TITLES.get(module) or _title(module)
    lines = [title, "=" * len(title), "", f".. automodule:: {module}", "   :no-index:", ""]
    names = {
        path: thing
        for thing in public_names(module).values()
        if (path := public_path(thing)) and _is_from(thing, module)
    }
    lines += [".. list-table::", "   :class: names", "   :widths: auto", ""]
    for path, thing in names.items():
        lines += [f"   * - :py:obj:`~{path}`", f"     - {_first_line(thing)}"]
    for path, thing in names.items():
        lines += ["", *_entry(path, thing)]
    return "\n".join(lines) + "\n"


def _title(module: str) -> str:
    wing, family = module.split(".")[1:]
    words = family.replace("_", " ").capitalize()
    return f"{words} ({'layers' if wing == 'unrolled' else wing})"


def _is_from(thing: Any, module: str) -> bool:
    return thing.__module__ == module or thing.__module__.startswith(f"{module}.")


def _first_line(thing: Any) -> str:
    return (inspect.getdoc(thing) or "").split("\n", 1)[0].removesuffix("::").strip()


def _entry(path: str, thing: Any) -> list[str]:
    module, name = path.rsplit(".", 1)
    lines = [f".. currentmodule:: {module}", ""]
    if not inspect.isclass(thing):
        return [*lines, f".. autofunction:: {name}"]
    hidden = "   :exclude-members: extra_repr, reset_parameters"
    return [*lines, f".. autoclass:: {name}", "   :members:", hidden]


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    app.connect("builder-inited", write_pages)
    return {"parallel_read_safe": True}
