"""Each fault planted in a copy of the package, and its tests run there."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from ...unrolled.twins import catalogue
from .fault import Fault
from .planted import PACKAGE, copy_of_package


def is_caught_by_tests(fault: Fault) -> bool:
    """Whether a test of the layers that the fault changes fails with it.

    They are those below ``tests/unrolled`` whose names, or whose files' names, hold that of the
    file or of a layer; tests of the twins, which run the check themselves, are left out.
    """
    layers = {twin.layer.__name__ for twin in catalogue() if twin.name in fault.twins}
    names = sorted({Path(fault.file).stem, *layers, *(layer.lower() for layer in layers)})
    with TemporaryDirectory() as folder:
        package = copy_of_package(Path(folder))
        shutil.copytree(PACKAGE / "tests", package / "tests")
        shutil.copy2(PACKAGE / "setup.cfg", package)
        fault.plant(package)
        options = ["-q", "-x", "-p", "no:cacheprovider", "-k", " or ".join(names)]
        run = subprocess.run(
            [sys.executable, "-m", "pytest", *options, "tests/unrolled",
             "--ignore=tests/unrolled/twins"],
            cwd=package,
            env=os.environ | {"PYTHONPATH": folder},
            capture_output=True,
            check=False,
        )  # fmt: skip
    return run.returncode == 1
