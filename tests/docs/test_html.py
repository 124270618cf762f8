"""The documentation builds as CONTRIBUTING says, and its pages need nothing from elsewhere."""

import os
import re
import subprocess
import sys
from pathlib import Path

import matplotlib.image
import pytest

from twinsolve.twins import catalogue
from twinsolve.twins.laws import LAWS

ROOT = Path(__file__).parents[2]
HTML = ROOT / "docs/_build/html"
FAMILIES = sorted((ROOT / "docs/families").glob("*.md"))
LOADED = re.compile(r"<(?:link|script|img|iframe|source)\b[^>]*?\b(?:href|src)=[\"']([^\"']+)")


def external(urls):
    return [url for url in urls if re.match(r"(?i)\s*(https?:)?//", url)]


def test_what_a_page_fetches_is_found():
    page = '<link href="//a/b.css"><img src="c.png"><script src="https://d/e.js"></script><a href="https://f">'
    assert external(LOADED.findall(page)) == ["//a/b.css", "https://d/e.js"]


@pytest.fixture(scope="module")
def pages():
    pytest.importorskip("sphinx_gallery")
    (command,) = re.findall(r"`(sphinx-build .*?)`", (ROOT / "CONTRIBUTING.md").read_text())
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    subprocess.run(command.split(), check=True, cwd=ROOT, env={**os.environ, "PATH": path})
    return {file.relative_to(HTML): file.read_text() for file in HTML.rglob("*.html")}


@pytest.mark.slow
def test_pages_fetch_nothing_from_elsewhere(pages):
    assert len(pages) > 80
    found = {name: external(LOADED.findall(text)) for name, text in pages.items()}
    assert not any(found.values()), found
    styles = "".join(file.read_text() for file in HTML.glob("_static/**/*.css"))
    imported = re.findall(r"(?:url\(|@import )\s*[\"']?([^\"')]+)", styles)
    assert imported
    assert external(imported) == []


COLUMNS = re.compile(r'<nav class="(?:bd-docs-nav|page-toc).*?</nav>', re.DOTALL)


@pytest.mark.slow
def test_no_column_of_navigation_is_empty(pages):
    found = {name: COLUMNS.findall(page) for name, page in pages.items()}
    assert sum(map(len, found.values())) > 100
    assert [name for name, columns in found.items() if not all("<a " in x for x in columns)] == []


@pytest.mark.slow
def test_every_result_example_and_family_has_its_page(pages):
    results = {path.parent.name for path in ROOT.glob("docs/results/*/summary.md")}
    examples = {path.stem for path in (ROOT / "examples").glob("*.py")}
    families = {
        f"{wing}.{path.stem}"
        for wing in ("solvers", "unrolled")
        for path in (ROOT / wing).iterdir()
        if path.is_dir() and (path / "__init__.py").exists()
    }
    for folder, names in {"benchmarks": results, "examples": examples, "api": families}.items():
        assert names
        assert {name for name in names if Path(folder, f"{name}.html") not in pages} == set()


# What a cell of a notebook shows: the style sheet lets it scroll.
SHOWN = re.compile(r'<div class="output_subarea output_html.*?</div>\n<br />\n<br />', re.DOTALL)


@pytest.mark.slow
def test_every_table_scrolls_in_a_box_of_its_own(pages):
    counts = {
        name: (text.count("<table"), text.count("pst-scrollable-table-container"))
        for name, page in pages.items()
        for text in [SHOWN.sub("", page)]
        if name != Path("genindex.html")
    }
    assert sum(tables for tables, _ in counts.values()) > 100
    assert {name: count for name, count in counts.items() if count[0] != count[1]} == {}


@pytest.mark.slow
def test_the_reference_has_a_page_for_each_class_and_says_what_stays(pages):
    shell = pages[Path("classes/unrolled.Attention.html")]
    assert "<em>Public.</em>" in shell
    assert "<em>Provisional.</em>" in pages[Path("classes/bench.Recipe.html")]
    assert "twinsolve.bench.paired_difference" in pages[Path("api/bench.html")]
    assert "../classes/unrolled.Attention.html" in pages[Path("api/unrolled.attention.html")]


@pytest.mark.slow
def test_the_page_of_layers_has_the_twins_of_the_package(pages):
    twins = [twin for twin in catalogue() if twin.layer.__module__.startswith("twinsolve.")]
    page = pages[Path("layers.html")]
    table, laws = page[page.index(f"{len(twins)} twins") :].split('<section id="laws">')
    families = {twin.family.replace("_", "-") for twin in twins}
    assert set(re.findall(r'<section id="([^"]*)">', table)) == families
    names = {twin.layer.__name__ for twin in twins}
    assert {name for name in names if not re.search(rf"\b{name}\b", table)} == set()
    assert [law for law in LAWS if law.__name__.replace("_", " ") not in laws] == []


@pytest.mark.slow
@pytest.mark.parametrize("page", FAMILIES, ids=lambda page: page.stem)
def test_family_goes_from_problem_to_check(pages, page):
    """A page shows what each of its blocks prints, passes its check and has its figure."""
    text = page.read_text()
    headings = re.findall(r"^## (.*)$", text, re.M)
    assert headings == ["Problem", "Solver", "Layer", "Check", "What can go wrong"]
    made = {path.name: path for path in (ROOT / "docs/figures/out").glob(f"{page.stem}[-.]*")}
    assert sorted(re.findall(r"figures/out/([\w.-]+)", text)) == sorted(made)
    printed = "".join(path.read_text() for path in made.values() if path.suffix == ".txt")
    assert ": holds in float64" in printed
    assert ": broken" not in printed
    assert matplotlib.image.imread(made[f"{page.stem}.png"]).std() > 0.05


@pytest.mark.slow
def test_examples_leave_nothing_where_they_stand(pages):
    assert {path.suffix for path in (ROOT / "examples").iterdir()} == {".py", ".rst"}


@pytest.mark.slow
def test_docstrings_and_results_link_to_equations(pages):
    ista = pages[Path("api/unrolled.sparse_coding.html")]
    assert re.search(r'href="\.\./equations/sparse_coding\.html#se-15"', ista)
    coil = pages[Path("benchmarks/cluster-coil20.html")]
    assert re.search(r'href="\.\./equations/clustering\.html#me-3"', coil)
    assert re.search(r'href="\.\./errata\.html#e3-', ista)
