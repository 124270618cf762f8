"""The code of the pages on scale, extending and scripts runs as it is printed."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
BLOCKS = [
    pytest.param(page, block, id=f"{page}-{number}")
    for page in ("scale", "extending", "scripts")
    for number, block in enumerate(
        re.findall(r"```python\n(.*?)```", (DOCS / f"{page}.md").read_text(), re.DOTALL)
    )
]
LAUNCH = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


@pytest.mark.slow
@pytest.mark.parametrize(("page", "block"), BLOCKS)
def test_a_snippet_runs_as_a_script(page, block, tmp_path):
    if "from distributed import" in block:
        pytest.importorskip("distributed")
    script = tmp_path / "train.py"
    script.write_text(block)
    launch = LAUNCH if "init_process_group" in block else []
    subprocess.run([sys.executable, *launch, script], check=True, cwd=tmp_path, timeout=300)
