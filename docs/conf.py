"""Sphinx: one documentation out of pages, docstrings, results and the catalogue of twins."""

import gc
import sys
import warnings
from pathlib import Path

import twinsolve

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS / "_ext"))
# Pages with large tables are millions of objects that stay, which the collector walks in vain.
gc.set_threshold(200_000, 20, 20)

project = "twinsolve"
author = "the authors of twinsolve"
version = release = twinsolve.__version__

extensions = [
    "myst_parser",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.mathjax",
    "sphinx-mathjax-offline",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
    "api_pages",
    "benchmark_pages",
    "command_line",
    "equation_links",
    "family_figures",
    "law_table",
    "layer_table",
    "method_tables",
    "published_values",
    "result_tables",
]
exclude_patterns = ["_build", "_ext", "figures", "results"]
smartquotes = False

# Docstrings: names in single backticks are links where they are known, and types stand in the
# sections of parameters.
default_role = "py:obj"
add_module_names = False
autodoc_typehints = "none"
autodoc_member_order = "bysource"
autosummary_generate = False
numpydoc_show_class_members = False

myst_enable_extensions = ["amsmath", "attrs_block", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3

# An example that divides by zero or overflows fails the build.
warnings.filterwarnings("error", category=RuntimeWarning)
sphinx_gallery_conf = {
    "examples_dirs": str(DOCS.parent / "examples"),
    "gallery_dirs": "examples",
    "download_all_examples": False,
    "show_memory": False,
    "show_signature": False,
    "write_computation_times": False,
}

html_theme = "pydata_sphinx_theme"
html_title = f"twinsolve {version}"
html_static_path = ["_static"]
html_css_files = ["twinsolve.css"]
html_theme_options = {
    "header_links_before_dropdown": 5,
    "footer_start": [],
    "footer_end": [],
}
html_context = {"default_mode": "auto"}
html_show_sourcelink = False
html_copy_source = False
toc_object_entries_show_parents = "hide"


def hide_empty_navigation(app, pagename, templatename, context, doctree):
    """Leave out the left column of a page without a section: it would be empty."""
    known = app.env.toctree_includes
    if pagename in known[app.config.root_doc] and pagename not in known:
        context["sidebars"] = []


def setup(app):
    """Called by Sphinx."""
    app.connect("html-page-context", hide_empty_navigation)
