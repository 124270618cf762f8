"""Scripts lose what their constants decide, and nothing else."""

import pytest

from twinsolve.twins.audit.simplify import simplify

SOURCES = {
    "argument that changes": (
        "def f(x, *, c=None):\n    for y in x:\n        c = g(y, c)\n    return c\n"
        "def h(x):\n    return f(x)",
        "def f(x, *, c=None):\n    for y in x:\n        c = g(y, c)\n    return c\n\n"
        "def h(x):\n    return f(x)",
    ),
    "argument that no call gives": (
        "def f(x, *, c=None):\n    y = x if c is None else c\n    return y\n"
        "def h(x):\n    return f(x)",
        "def h(x):\n    return x",
    ),
    "argument that a call gives": (
        "def f(x, *, c=None):\n    y = c\n    return y\n"
        "def h(x):\n    return f(x, c=1)",
        "def f(x, *, c=None):\n    return c\n\n"
        "def h(x):\n    return f(x, c=1)",
    ),
    "branches": (
        'def h(x):\n    """Words."""\n    if known:\n        return x\n    return -x',
        "def h(x):\n    return x",
    ),
    "what is not applicable": (
        "def f(x):\n    return x\n"
        "def h(x):\n    if f(x):\n        raise NotApplicable('no')\n    return x",
        "def h(x):\n    return x",
    ),
    "half of a condition": (
        "def h(x):\n    return 1 if x and not known else 2",
        "def h(x):\n    return 1 if x and False else 2",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SOURCES)
def test_only_what_is_decided_is_left_out(name):
    source, expected = SOURCES[name]
    assert simplify(source, {"known": True}) == expected
