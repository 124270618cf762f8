"""The directive `method-tables`: methods by data set, from the kept tables of a preset."""

from pathlib import Path

import pandas as pd
from docutils import nodes
from method_comparison import comparison_lines, joined, overview_lines
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from twinsolve.bench.clustering.figures import describe_data, describe_features
from twinsolve.bench.tables import markdown, read_table


class MethodTables(SphinxDirective):
    """An overview, and a table for each data set and features, of the preset that it names."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Called by Sphinx."""
        folders = folders_of(self.arguments[0], Path(self.env.srcdir) / "results")
        for folder in folders:
            self.env.note_dependency(str(folder / "summary.md"))
        return self.parse_text_to_nodes(tables_of(folders), allow_section_headings=True)


def folders_of(preset: str, results: Path) -> list[Path]:
    """The folder that a preset wrote, and those of contributors, which say more behind its name."""
    found = [results / f"cluster-{preset}", *sorted(results.glob(f"cluster-{preset}-*"))]
    return [folder for folder in found if folder.is_dir()]


def tables_of(folders: list[Path]) -> str:
    """All of them in Markdown."""
    if not folders:
        return "Not run yet.\n"
    rows = joined([rows_of(folder) for folder in folders])
    parts = ["\n".join(markdown(*overview_lines(rows)))]
    for (data, features), lines in comparison_lines(rows).items():
        heading = f"{describe_data(data, width=200)}, {describe_features(features)}".replace(
            "\n", " "
        )
        parts += [f"### {heading}", f"`{data}`, `{features}`", "\n".join(markdown(*lines))]
    return "\n\n".join(parts) + "\n"


def rows_of(folder: Path) -> pd.DataFrame:
    """The studies of a folder one after another."""
    tables = [read_table(path) for path in sorted(folder.glob("*.json.gz"))]
    return pd.concat(tables, ignore_index=True)


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    app.add_directive("method-tables", MethodTables)
    return {"parallel_read_safe": True}


if __name__ == "__main__":  # the tables of a preset, without a build
    import sys

    (preset,) = sys.argv[1:]
    print(tables_of(folders_of(preset, Path(__file__).parents[1] / "results")))
