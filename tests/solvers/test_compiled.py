"""What numba compiles the same whatever was compiled before."""

import ast
import importlib
import inspect
import pkgutil
import textwrap

from numba.core.dispatcher import Dispatcher

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
