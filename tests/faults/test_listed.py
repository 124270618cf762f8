"""The list of faults, and what plants them."""

from collections import Counter

import pytest
from check_listed import Fault, check_faults, read_faults
from mutations import ROOT, copy_package

from twinsolve.twins import catalogue

_FAULTS = read_faults()


def test_there_are_many_faults_of_distinct_names():
    assert len(_FAULTS) >= 470
    assert Counter(fault.name for fault in _FAULTS).most_common(1)[0][1] == 1


def test_each_can_be_planted_where_twins_or_tests_are_about_it():
    known = {twin.name for twin in catalogue()}
    for fault in _FAULTS:
        source = (ROOT / fault.file).read_text()
        planted = source.replace(fault.old, fault.new)
        assert source.count(fault.old) == 1, fault.name
        assert planted != source, fault.name
        compile(planted, fault.file, "exec")
        assert fault.twins or fault.tests, fault.name
        assert set(fault.twins) <= known, fault.name
        assert all((ROOT / test).is_file() for test in fault.tests), fault.name


def test_what_is_not_there_once_is_not_planted(tmp_path):
    fault = Fault("kind", "name", "unrolled/boosting.py", "no such line", "")
    with pytest.raises(ValueError, match="name: 'no such line' occurs 0 times"):
        fault.plant(copy_package(tmp_path / "twinsolve"))


@pytest.mark.slow
def test_a_fault_is_caught_and_what_changes_nothing_is_not():
    file, old = "unrolled/spectral_filtering/feature_scaling.py", "self.gamma.to(y.dtype) * y"
    changes = {"caught": "self.gamma.to(y.dtype) + y", "not": "y * self.gamma.to(y.dtype)"}
    tests = ("tests/unrolled/models/test_references.py",)
    faults = [Fault("kind", n, file, old, x, ("layer-scale",)) for n, x in changes.items()]
    faults.append(Fault("kind", "by tests", file, old, changes["caught"], tests=tests))
    caught, not_caught, by_tests = check_faults(faults)
    assert caught["caught_by"] == "check"
    assert caught["where"].startswith("layer-scale")
    assert not_caught["caught_by"] == ""
    assert by_tests["caught_by"] == "tests"
