"""The house itself: layout, one-way imports, documentation of what is public."""

import ast
import configparser
import doctest
import importlib
import inspect
import os
import pkgutil
import re
import runpy
import subprocess
import sys
import tarfile
import zipfile
from contextlib import redirect_stdout
from importlib.metadata import PathDistribution
from io import StringIO
from pathlib import Path
from unittest.mock import patch

import pytest
from importlinter.cli import lint_imports
from pytest_doctestplus.output_checker import FLOAT_CMP, OutputChecker

import twinsolve
from twinsolve.bench.speed import filters
from twinsolve.bench.speed.peers import SELF_EXPRESSION_PEERS, SPARSE_CODING_PEERS
from twinsolve.bench.vision.denoising.methods import METHODS
from twinsolve.unrolled import named_operators

from .public import public

ROOT = Path(__file__).parents[1]
WINGS = ("solvers", "unrolled", "twins", "datasets", "bench")
MODULES = [
    info.name
    for info in pkgutil.walk_packages(twinsolve.__path__, "twinsolve.")
    if info.name.split(".")[1] in WINGS
]


def test_imports_run_one_way_and_never_in_a_circle():
    """The contracts of setup.cfg."""
    with redirect_stdout(StringIO()) as said:
        kept = lint_imports(str(ROOT / "setup.cfg"), no_cache=True)
    assert kept == 0, said.getvalue()


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("twinsolve", ("torch", "cvxpy", "numba", "sklearn")),
        ("twinsolve.solvers", ("torch", "cvxpy")),
        ("twinsolve.datasets", ("torch", "cvxpy", "numba", "pooch")),
        ("twinsolve.unrolled", ("cvxpy", "numba", "scipy", "sklearn", "sympy", "torch._dynamo")),
        ("twinsolve.bench.cli", ("torch", "cvxpy", "numba", "matplotlib", "pandas", "sklearn")),
    ],
)
def test_imports_load_only_what_is_needed(module, absent):
    code = f"import sys, {module}; assert not {{*{absent!r}}} & {{*sys.modules}}"
    subprocess.run([sys.executable, "-c", code], check=True, cwd="/")


@pytest.mark.parametrize("module", ["unrolled.clustering", "twins", "solvers.oracles"])
def test_what_is_imported_by_name_is_also_found_as_an_attribute(module, monkeypatch):
    found = twinsolve
    for name in module.split("."):
        monkeypatch.delattr(found, name, raising=False)  # as before its import
        found = getattr(found, name)
    assert found.__name__ == f"twinsolve.{module}"


@pytest.mark.parametrize("wing", ["solvers", "unrolled"])
def test_no_two_public_classes_or_functions_of_a_wing_share_a_name(wing):
    """But oracles, named after their solvers, and twins, whose families define the same parts."""
    places = {}
    for file in (ROOT / wing).rglob("*.py"):
        if {"oracles", "twins"} & set(file.relative_to(ROOT).parts):
            continue
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name[0] != "_":
                places.setdefault(node.name, []).append(str(file.relative_to(ROOT)))
    assert len(places) > 50
    assert {name: files for name, files in places.items() if len(files) > 1} == {}


@pytest.mark.parametrize("wing", [twinsolve.solvers, twinsolve.unrolled])
def test_a_wing_names_what_it_lacks(wing):
    with pytest.raises(
        AttributeError, match=f"module {wing.__name__!r} has no attribute 'nothing'"
    ):
        _ = wing.nothing


def test_packages_are_listed_in_setup_cfg():
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    listed = set(config["options"]["packages"].split())
    on_disk = {
        ".".join(("twinsolve", *file.parent.relative_to(ROOT).parts))
        for wing in WINGS
        for file in (ROOT / wing).rglob("__init__.py")
    }
    assert listed == on_disk | {"twinsolve"}


def test_lower_bounds_are_the_oldest_versions_that_were_tried():
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    needed = config["options"]["install_requires"] + config["options.extras_require"]["bench"]
    tried = (ROOT / "constraints-oldest.txt").read_text().splitlines()
    pins = {line for line in tried if not line.startswith("#")}
    assert {line.replace(">=", "==") for line in needed.split()} == pins


_OF_CONDA = {"cvxpy-base": "cvxpy", "matplotlib-base": "matplotlib", "pytorch": "torch",
             "pywavelets": "PyWavelets"}  # fmt: skip


def test_conda_recipe_needs_what_the_wheel_needs():
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    needed = config["options"]["install_requires"] + config["options.extras_require"]["bench"]
    run = (ROOT / "packaging/conda/recipe.yaml").read_text().partition("  run:")[2]
    found = re.findall(r"^    - (\S+) >=([\d.]+)$", run, re.MULTILINE)
    assert {f"{_OF_CONDA.get(name, name)}>={least}" for name, least in found} == {*needed.split()}


_NAMES = {"cv2": "opencv-python-headless", "pywt": "PyWavelets", "skimage": "scikit-image",
          "sklearn": "scikit-learn", "spams": "spams-bin"}  # fmt: skip


def test_every_peer_is_named_in_an_extra_and_its_version_in_the_constraints():
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    extras = config["options.extras_require"]
    lines = [*config["options"]["install_requires"].split("\n"), *extras["bench"].split("\n")]
    named = {line.partition(">")[0] for line in lines + extras["peers"].split("\n")}
    compared = {method.module for method in METHODS.values()} | set(filters.MODULES.values())
    compared |= {p.module for p in (SELF_EXPRESSION_PEERS | SPARSE_CODING_PEERS).values()}
    packages = {_NAMES.get(module, module) for module in compared - {""}}
    pinned = {x.partition("=")[0] for x in (ROOT / "constraints.txt").read_text().splitlines()}
    assert packages - named == set()
    assert packages - pinned == set()


@pytest.fixture(scope="module")
def archives(tmp_path_factory):
    """The folder of the archives of the last commit, and the unpacked wheel."""
    if not (ROOT / ".git").exists():
        pytest.skip("no checkout: its last commit cannot be built")
    folder = tmp_path_factory.mktemp("dist")
    build = runpy.run_path(str(ROOT / "packaging/build.py"))["main"]
    build("https://example.org/twinsolve/", folder)
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
        wheel.extractall(folder / "site")
    return folder, folder / "site"


def test_a_wheel_holds_nothing_but_the_package(archives):
    """Nothing of ours stands at the top level of site-packages but `twinsolve`."""
    _, site = archives
    information = f"twinsolve-{twinsolve.__version__}.dist-info"
    assert {path.name for path in site.iterdir()} == {"twinsolve", information}
    inside = {path.name for path in (site / "twinsolve").iterdir()}
    assert inside == {"__init__.py", "commit", "py.typed", "validation.py", *WINGS}


def test_the_metadata_name_the_licence_and_the_address_and_no_link_is_relative(archives):
    _, site = archives
    known = PathDistribution(next(site.glob("*.dist-info"))).metadata
    assert known["License-Expression"] == "BSD-3-Clause"
    assert known["Author"] == "The twinsolve developers"
    assert "Source, https://example.org/twinsolve" in known.get_all("Project-URL")
    links = re.findall(r"\]\(([^)]+)\)", known.get_payload())
    assert len(links) > 30
    tag = f"v{twinsolve.__version__}"
    for link in links:
        address, place = link.split(f"/{tag}/")
        assert address in (
            "https://example.org/twinsolve/blob",
            "https://example.org/twinsolve/raw",
        )
        assert (ROOT / place).exists(), link
    assert f"https://example.org/twinsolve/raw/{tag}/docs/front_picture.png" in links


def test_a_source_archive_holds_all_that_is_committed(archives):
    folder, _ = archives
    with tarfile.open(next(folder.glob("*.tar.gz"))) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    listed = subprocess.check_output(["git", "-C", ROOT, "ls-tree", "-r", "--name-only", "HEAD"])
    left_out = set(listed.decode().splitlines()) - held
    assert left_out <= {".gitignore", ".pre-commit-config.yaml"}
    assert "commit" in held


def test_results_name_the_commit_that_ran(archives, tmp_path):
    """Of a checkout, and of a wheel, which has its own."""
    (tmp_path / "twinsolve").symlink_to(ROOT)
    last = subprocess.check_output(["git", "-C", ROOT, "rev-parse", "HEAD"], text=True).strip()
    command = "from twinsolve.bench.provenance import provenance; print(provenance({})['commit'])"
    found = [
        subprocess.check_output(
            [sys.executable, "-c", command], text=True, env=os.environ | {"PYTHONPATH": str(place)}
        )
        for place in (archives[1], tmp_path)
    ]
    assert found[0].strip() == last
    assert found[1].strip().removesuffix("-dirty") == last


@pytest.mark.parametrize("name", MODULES)
def test_examples_run(name, tmp_path, monkeypatch):
    """Their numbers within rounding, which is another on other processors: -0.0 and 1e-17 are 0."""
    monkeypatch.chdir(tmp_path)
    runner = doctest.DocTestRunner(OutputChecker(), verbose=False, optionflags=FLOAT_CMP)
    with patch.dict(named_operators._FACTORIES):
        for example in doctest.DocTestFinder().find(importlib.import_module(name)):
            runner.run(example)
    assert runner.summarize().failed == 0


def test_examples_whose_numbers_are_others_fail():
    parse = doctest.DocTestParser().get_doctest
    for printed, passes in (("[-0.0, 0.5]", True), ("[1e-17, 0.5]", True), ("[0.0, 0.51]", False)):
        runner = doctest.DocTestRunner(OutputChecker(), verbose=False, optionflags=FLOAT_CMP)
        example = parse(f">>> print('{printed}')\n[ 0.0, 0.5]\n", {}, printed, None, 0)
        runner.run(example, out=lambda text: None)
        assert (runner.summarize(verbose=False).failed == 0) == passes, printed


def sections_missing(thing):
    """What a docstring lacks; functions of solvers have all sections."""
    text = inspect.getdoc(thing) or ""
    needed = ("Examples", "Raises", "References", "Returns")
    takes_arguments = inspect.isfunction(thing) and inspect.signature(thing).parameters
    if not takes_arguments or not thing.__module__.startswith("twinsolve.solvers"):
        return [] if text else ["docstring"]
    return [name for name in needed if f"\n{name}\n---" not in text]


@pytest.mark.parametrize("wing", WINGS)
def test_public_names_are_documented(wing):
    own = {
        name: thing
        for name, thing in public(wing).items()
        if getattr(thing, "__module__", "").startswith("twinsolve")
    }
    assert own
    lacking = {name: sections_missing(thing) for name, thing in own.items()}
    assert {name: missing for name, missing in lacking.items() if missing} == {}


@pytest.mark.parametrize(("wing", "most"), [("solvers", 50), ("unrolled", 60)])
def test_a_wing_exports_what_users_type(wing, most):
    """Bounds, measures and helpers are imported from their family."""
    assert len(importlib.import_module(f"twinsolve.{wing}").__all__) <= most


def test_a_name_of_both_wings_is_a_measure_held_to_that_of_the_solvers():
    """tests/unrolled/diagnostics/test_measures.py compares their numbers."""
    assert public("solvers").keys() & public("unrolled").keys() == {
        "attention_spectrum",
        "condition_number",
        "high_frequency_share",
    }


def test_no_module_hides_a_function_of_its_package():
    for name in MODULES:
        package = importlib.import_module(name)
        modules = {info.name for info in pkgutil.iter_modules(getattr(package, "__path__", []))}
        exported = {n for n in getattr(package, "__all__", ()) if callable(getattr(package, n))}
        assert not modules & exported, name


def test_unknown_names_are_refused():
    with pytest.raises(AttributeError, match="no attribute 'solver'"):
        twinsolve.solver  # noqa: B018
    assert {"check", "compare", "fit_origin", "solvers"} <= set(dir(twinsolve))
