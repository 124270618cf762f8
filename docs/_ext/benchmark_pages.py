"""Writes a page for each folder of `results/` before a build: its summary."""

import re
from pathlib import Path

from api_pages import replace_folder
from sphinx.application import Sphinx

_PAGE = """---
html_theme.sidebar_secondary.remove: true
---

# {title}

`{command}`

```{{include}} ../results/{name}/summary.md
:relative-images:
:relative-docs: scripts
:start-after: "{command}"
```
"""


def write_pages(app: Sphinx) -> None:
    """Write `benchmarks/*.md`, and remove the pages of results that are gone."""
    docs = Path(app.srcdir)
    folders = [summary.parent for summary in sorted((docs / "results").glob("*/summary.md"))]
    replace_folder(docs / "benchmarks", {f"{path.name}.md": _page(path) for path in folders})


def link_pages(app: Sphinx, name: str, source: list[str]) -> None:
    """Links to a summary, as they are on the repository's pages, lead to its page here."""
    source[0] = re.sub(
        r"\]\((\.\./)?results/([\w-]+)/summary\.md\)", r"](\1benchmarks/\2.md)", source[0]
    )


def _page(folder: Path) -> str:
    heading = (folder / "summary.md").read_text().split("\n", 1)[0]
    return _PAGE.format(
        name=folder.name,
        title=folder.name.replace("-", " ").capitalize(),
        command=heading.removeprefix("# "),
    )


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    app.connect("builder-inited", write_pages)
    app.connect("source-read", link_pages)
    return {"parallel_read_safe": True}
