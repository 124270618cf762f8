import subprocess
import sys

import pytest
from torch import nn

from twinsolve.solvers import smoother_matrix
from twinsolve.unrolled import Gaussian, SparseCoding
from twinsolve.unrolled.twins import (
    Identity,
    Twin,
    catalogue,
    exact_twin,
    register,
    twins_of,
    unregister,
)


class Sharp(Gaussian):
    """A user's layer."""


@pytest.fixture
def users_twin():
    twin = register(
        Twin(
            name="sharp-attention",
            family="mine",
            relation=Identity(),
            equation="mine",
            source="a notebook",
            layer=Sharp,
            build=lambda q, k, v: Sharp(0.5).double(),
            solve=lambda layer, call: (
                smoother_matrix(call.q, call.k, bandwidth=float(layer.bandwidth())) @ call.v
            ),
        )
    )
    yield twin
    unregister("sharp-attention")


def test_takes_registrations_from_outside(users_twin):
    assert catalogue()[-1] is users_twin
    assert exact_twin(Sharp(0.5)) is users_twin


def test_without_one_of_its_own_a_subclass_has_its_parents_twin():
    assert exact_twin(Sharp(0.5)).name == "gaussian-attention"


def test_names_are_unique(users_twin):
    with pytest.raises(ValueError, match="'sharp-attention' is registered already"):
        register(users_twin)


def test_twins_are_chosen_by_what_they_cover():
    families = {twin.family for twin in twins_of(SparseCoding(1.0))}
    assert families == {"sparse_coding"}
    families = {twin.family for twin in twins_of(SparseCoding(1.0, zero_diagonal=True))}
    assert families == {"self_expression"}
    assert exact_twin(SparseCoding(1.0)).relation.name == "iterate"


def test_a_layer_without_twin_is_told_which_have_one():
    with pytest.raises(LookupError, match=r"no twin is registered for Linear; .*Gaussian.*Twicing"):
        twins_of(nn.Linear(2, 2))


def test_families_are_discovered_by_their_files(tmp_path):
    """A new file beside the others is enough: nothing lists the families."""
    (tmp_path / "added_family.py").write_text(
        "from twinsolve.unrolled import Softmax\n"
        "from twinsolve.unrolled.twins import Identity, Twin, register\n"
        "register(Twin(name='added', family='added_family', relation=Identity(), equation='-',\n"
        "    source='-', layer=Softmax, build=lambda q, k, v: Softmax(),\n"
        "    solve=lambda layer, call: call.v))\n"
    )
    code = (
        "import sys, twinsolve.unrolled.twins as twins\n"
        f"twins.__path__.append({str(tmp_path)!r})\n"
        "assert 'added' in {twin.name for twin in twins.catalogue()}\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path)
