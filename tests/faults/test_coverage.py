"""Which lines of the layers the check does not run."""

import pytest
from check_coverage import counted_lines, measure_lines

_SOURCE = """
class Layer:
    size = 1

    def __init__(self, n):
        self.n = n

    def forward(self, x):
        if x is None:
            raise ValueError(
                "x: must be there"
            )
        return x
"""


def test_constructors_and_raised_errors_are_not_counted():
    lines = _SOURCE.splitlines()
    counted = [lines[number - 1].strip() for number in sorted(counted_lines(_SOURCE))]
    assert counted == ["if x is None:", "return x"]


@pytest.mark.slow
def test_lines_of_other_layers_are_not_run():
    lines = {found.file: found for found in measure_lines(twins=["layer-scale"], quick=True)}
    assert lines["kernel_smoothing/tupe.py"].missing
    found = lines["spectral_filtering/feature_scaling.py"]
    assert 0 < len(found.missing) < found.executable
