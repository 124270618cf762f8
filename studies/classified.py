"""Options of the scripts that train classifiers."""

import argparse
from pathlib import Path
from typing import Any

from twinsolve.bench.names import split_settings
from twinsolve.bench.tables import Report
from twinsolve.bench.terminal import progress


def read_options(script: str, about: str) -> tuple[list[str] | None, dict[str, Any], Report]:
    """Rows that are named, arguments of `classify`, and the report of the script."""
    name = Path(script).stem
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("data", nargs="?", default="digits", help="as in twinsolve classify")
    parser.add_argument("--row", action="append", help="in the place of the rows of this study")
    parser.add_argument("--seeds", type=int, default=5, help="number of paired seeds")
    parser.add_argument("--steps", type=int, help="in the place of the candidates' own")
    parser.add_argument("--recipe", default="", help="NAME=VALUE,... as in twinsolve classify")
    parser.add_argument("--n-jobs", type=int, default=1, help="processes; -1 is all cores")
    parser.add_argument("--data-home", help="data root [$TWINSOLVE_DATA]")
    parser.add_argument("--output", type=Path, default=Path(f"results/{name.replace('_', '-')}"))
    said = vars(parser.parse_args())
    output = said.pop("output")
    settings = {key: said[key] for key in ("data", "row", "seeds", "steps", "recipe")}
    given = said | {
        "recipe": split_settings(f":{said['recipe']}", "recipe")[1],
        "directory": output / "runs",
        "progress": progress("Training"),
    }
    return given.pop("row"), given, Report(f"python studies/{name}.py", settings, output)
