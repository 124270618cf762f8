"""Writes the API reference before a build: a page for each family of both wings and each class.

Families are found, so that a new one has a page without a line here.
"""

import inspect
from pathlib import Path
from typing import Any

from public_names import WHOLE, WINGS, families, promise, public_names, public_path
from sphinx.application import Sphinx

_TITLES = {
    "twinsolve.bench": "Research scripts",
    "twinsolve.datasets": "Data sets",
    "twinsolve.twins": "Twins: check, compare, fit_origin",
    "twinsolve.twins.audit": "Audit of networks",
    "twinsolve.twins.laws": "Laws of layers",
}


def write_pages(app: Sphinx) -> None:
    """Write `api/*.rst` and `classes/*.rst`, and remove the pages of what is gone."""
    modules = [*(family for wing in WINGS for family in families(wing)), *WHOLE]
    pages, of_classes = {}, {}
    for module in modules:
        names = {
            path: thing
            for thing in public_names(module).values()
            if (path := public_path(thing)) and _is_from(thing, module)
        }
        pages[_file(module)] = _page(module, names)
        classes = (path for path, thing in names.items() if inspect.isclass(thing))
        of_classes |= {_file(path): _class_page(path) for path in classes}
    replace_folder(Path(app.srcdir) / "api", pages)
    replace_folder(Path(app.srcdir) / "classes", of_classes)


def _file(path: str) -> str:
    return f"{path.removeprefix('twinsolve.')}.rst"


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


def _page(module: str, names: dict[str, Any]) -> str:
    title = _TITLES.get(module) or _title(module)
    lines = [title, "=" * len(title), "", f".. automodule:: {module}", "   :no-index:", ""]
    lines += [".. list-table::", "   :class: names", "   :widths: auto", ""]
    for path, thing in names.items():
        cells = (f":py:obj:`~{path}`", _first_line(thing), promise(path))
        lines += [f"   {'*' if not i else ' '} - {cell}" for i, cell in enumerate(cells)]
    classes = [path for path, thing in names.items() if inspect.isclass(thing)]
    if classes:
        pages = [f"   /classes/{_file(path)}" for path in classes]
        lines += ["", ".. toctree::", "   :hidden:", "", *pages]
    for path in (path for path in names if path not in classes):
        lines += ["", *_current(path), f".. autofunction:: {path.rsplit('.', 1)[1]}"]
    return "\n".join(lines) + "\n"


def _class_page(path: str) -> str:
    name = path.rsplit(".", 1)[1]
    entry = [f".. autoclass:: {name}", "   :members:"]
    hidden = "   :exclude-members: extra_repr, reset_parameters"
    return "\n".join([name, "=" * len(name), "", *_current(path), *entry, hidden, ""])


def _current(path: str) -> list[str]:
    return [
        f".. currentmodule:: {path.rsplit('.', 1)[0]}",
        "",
        f"*{promise(path).capitalize()}.*",
        "",
    ]


def _title(module: str) -> str:
    wing, family = module.split(".")[1:]
    words = family.replace("_", " ").capitalize()
    return f"{words} ({'layers' if wing == 'unrolled' else wing})"


def _is_from(thing: Any, module: str) -> bool:
    return thing.__module__ == module or thing.__module__.startswith(f"{module}.")


def _first_line(thing: Any) -> str:
    return (inspect.getdoc(thing) or "").split("\n", 1)[0].removesuffix("::").strip()


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    app.connect("builder-inited", write_pages)
    return {"parallel_read_safe": True}
