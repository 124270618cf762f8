"""The command line of every script: `run_script`."""

from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from twinsolve.bench.jobs import Options
from twinsolve.bench.names import split_settings
from twinsolve.bench.options import (
    DataHome,
    Jobs,
    Output,
    RecipeWords,
    Rows,
    Seed,
    Seeds,
    Steps,
    report_mistakes,
)
from twinsolve.bench.study import Study, run_studies, write_studies
from twinsolve.bench.tables import Results
from twinsolve.bench.terminal import end_in_words, progress


def run_script(path: str) -> None:
    """Run a script as a command: its docstring is the help."""
    command_of(import_module(Path(path).stem))()  # so that workers know its functions by a name


def command_of(script: Any) -> typer.Typer:
    """The command of a script: its `main`, or what runs its `studies` or its `compare_rows`."""
    app = typer.Typer(
        add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="markdown"
    )
    make = _run_studies if hasattr(script, "studies") else _compare_rows
    main = getattr(script, "main", None) or make(script)
    app.command(help=script.__doc__)(end_in_words()(main))
    return app


def chosen(names: Sequence[str] | None, known: Iterable[str], option: str) -> list[str]:
    """The names that were typed, or all that are known.

    Raises
    ------
    BadParameter
        If one is not known.
    """
    every = list(known)
    for name in names or ():
        if name not in every:
            reason = f"must be among {', '.join(every)}; got {name!r}"
            raise typer.BadParameter(reason, param_hint=option)
    return list(names or every)


def write_found(
    path: str, studies: Sequence[Study], settings: dict[str, Any], output: Path, about: str = "",
    **options: Any,
) -> None:  # fmt: skip
    """Run the studies of a script by `Options` of their jobs, and write what they find."""
    with report_mistakes():
        tables = run_studies(studies, Options(directory=output / "runs", **options))
    title = f"python studies/{Path(path).name}"
    write_studies(title, studies, tables, settings, output, about)


def _run_studies(script: Any) -> Callable[..., None]:
    """A command that runs the `studies` of a script, and writes their tables."""

    def main(
        seed: Seed = 0,
        seeds: Seeds = 10,
        n_jobs: Jobs = 1,
        data_home: DataHome = None,
        output: Output = Path("results") / f"cluster-{script.__name__}",
    ) -> None:
        about, settings = script.__doc__.partition("\n")[0], {"seed": seed, "seeds": seeds}
        options = {"seed": seed, "seeds": seeds, "n_jobs": n_jobs, "data_home": data_home}
        write_found(script.__file__, script.studies(), settings, output, about, **options)

    return main


def _compare_rows(script: Any) -> Callable[..., None]:
    """A command for ``compare_rows(results, rows, **arguments of classify)`` of a script."""
    title, folder = f"python studies/{script.__name__}.py", script.__name__.replace("_", "-")

    def main(
        data: Annotated[
            str, typer.Argument(metavar="DATA", help="As in twinsolve classify.")
        ] = "digits",
        row: Rows = None,
        seeds: Seeds = 5,
        steps: Steps = None,
        recipe: RecipeWords = None,
        n_jobs: Jobs = 1,
        data_home: DataHome = None,
        output: Output = Path("results") / folder,
    ) -> None:
        settings = {"data": data, "row": row, "seeds": seeds, "steps": steps, "recipe": recipe}
        with report_mistakes():
            given = split_settings(f":{recipe or ''}", "recipe")[1]
            script.compare_rows(
                Results(title, settings, output), row, data=data, seeds=seeds, steps=steps,
                recipe=given, n_jobs=n_jobs, data_home=data_home, directory=output / "runs",
                progress=progress("Training"),
            )  # fmt: skip

    return main
