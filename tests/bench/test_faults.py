"""The list of faults, and what plants them."""

from collections import Counter

import pytest

from twinsolve.bench.faults.catalogue import Fault, catalogue
from twinsolve.bench.faults.planted import PACKAGE, check_faults, copy_of_package
from twinsolve.unrolled.twins import catalogue as twins

_FAULTS = catalogue()
_KNOWN = {twin.name for twin in twins()}


def test_there_are_many_faults_of_distinct_names():
    names = Counter(fault.name for fault in _FAULTS)
    assert len(_FAULTS) >= 110
    assert names.most_common(1)[0][1] == 1


@pytest.mark.parametrize("fault", _FAULTS, ids=lambda fault: fault.name)
def test_each_can_be_planted_where_twins_are_about_it(fault):
    source = (PACKAGE / "unrolled" / fault.file).read_text()
    planted = source.replace(fault.old, fault.new)
    assert source.count(fault.old) == 1
    assert planted != source
    compile(planted, fault.file, "exec")
    assert fault.twins
    assert set(fault.twins) <= _KNOWN


def test_what_is_not_there_once_is_not_planted(tmp_path):
    package = copy_of_package(tmp_path)
    fault = Fault("kind", "name", "boosting/residuals.py", "no such line", "", ())
    with pytest.raises(ValueError, match="name: 'no such line' occurs 0 times"):
        fault.plant(package)


@pytest.mark.slow
def test_a_fault_is_caught_and_what_changes_nothing_is_not():
    file, old = "spectral_filtering/feature_scaling.py", "self.gamma.to(y.dtype) * y"
    changes = {"caught": "self.gamma.to(y.dtype) + y", "not": "y * self.gamma.to(y.dtype)"}
    faults = [Fault("kind", n, file, old, new, ("layer-scale",)) for n, new in changes.items()]
    caught, not_caught = check_faults(faults)
    assert caught["caught"]
    assert caught["twin"] == "layer-scale"
    assert caught["deviation"] > caught["tolerance"]
    assert not not_caught["caught"]
