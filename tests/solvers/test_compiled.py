"""What numba compiles the same whatever was compiled before."""

import ast
import importlib
import inspect
import os
import pkgutil
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

from numba.core.dispatcher import Dispatcher

import twinsolve
import twinsolve.solvers.kernels as kernels

MODULES = [
    importlib.import_module(f"{kernels.__name__}.{module.name}")
    for module in pkgutil.iter_modules(kernels.__path__)
]


def methods_called(function):
    """``x.f()`` in a function, but for functions of modules."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    called = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
    methods = [f for f in called if isinstance(f, ast.Attribute)]
    return [
        ast.unparse(f)
        for f in methods
        if not inspect.ismodule(function.__globals__.get(ast.unparse(f.value)))
    ]


def test_functions_that_count_no_references_call_no_methods_of_arrays():
    """Those compile only in a process that has compiled them for counting functions."""
    uncounted = {
        name: thing.py_func
        for module in MODULES
        for name, thing in vars(module).items()
        if isinstance(thing, Dispatcher) and not thing.targetoptions.get("_nrt", True)
    }
    assert len(uncounted) > 20
    found = {name: methods_called(function) for name, function in uncounted.items()}
    assert {name: methods for name, methods in found.items() if methods} == {}


RUN = """
import numpy, twinsolve
from twinsolve.solvers import nonlocal_means, sparse_code
from twinsolve.solvers.kernels.total_variation import denoise_rows
found = numpy.empty((1, 2))
denoise_rows(numpy.array([[0.0, 3.0]]), numpy.ones(1), found)
print(twinsolve.__file__, *found[0], denoise_rows.stats.cache_path)
"""


def test_kernels_compile_where_no_folder_for_machine_code_can_be_written(tmp_path):
    """Files stand where numba would make its folders: that stops the superuser as well."""
    root = Path(twinsolve.__file__).parent
    package = tmp_path / "twinsolve"
    shutil.copytree(root / "solvers", package / "solvers", ignore=lambda *_: ["__pycache__"])
    for file in ("__init__.py", "validation.py"):
        shutil.copy(root / file, package)
    for folder in [path for path in package.rglob("*") if path.is_dir()]:
        (folder / "__pycache__").touch()
    environment = {key: value for key, value in os.environ.items() if "CACHE" not in key}
    environment |= {"HOME": os.devnull, "PYTHONPATH": str(tmp_path)}
    ran = subprocess.run(
        [sys.executable, "-P", "-c", RUN], capture_output=True, text=True, env=environment
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.split() == [str(package / "__init__.py"), "1.0", "2.0", "None"]
