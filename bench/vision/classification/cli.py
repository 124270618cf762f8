"""The command `twinsolve classify`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...names import as_options
from ...tables import Lines, markdown, write_lines, write_summary, write_table
from ...terminal import Load, Output, console, load_modules, progress

if TYPE_CHECKING:
    import pandas as pd


def classify(
    data: Annotated[
        str,
        typer.Argument(
            metavar="DATA", help="digits, cifar10, cifar10:n_train=10000, or a folder of classes."
        ),
    ] = "digits",
    row: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Run this row beside softmax; may be given again."),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Number of paired seeds.")] = 5,
    steps: Annotated[
        int | None, typer.Option(min=1, help="Training steps, in place of the data set's own.")
    ] = None,
    attack: Annotated[
        bool, typer.Option("--attack", help="Also on images attacked by FGSM and PGD.")
    ] = False,
    corruptions: Annotated[
        bool, typer.Option("--corruptions", help="Also on noisy, blurred and faint images.")
    ] = False,
    adapt: Annotated[
        bool,
        typer.Option("--adapt", help="Turn the trained plain network into each row, train it on."),
    ] = False,
    n_jobs: Annotated[int, typer.Option(help="Processes; -1 is all cores.")] = 1,
    data_home: Annotated[
        str | None, typer.Option(metavar="DIR", help="Data root [$TWINSOLVE_DATA].")
    ] = None,
    output: Output = Path("results/classify"),
    load: Load = None,
    list_all: Annotated[bool, typer.Option("--list", help="List all rows and end.")] = False,
) -> None:
    """Train classifiers that differ in one part, and compare them over paired seeds.

    DATA are the digits of scikit-learn; cifar10, from the data root; or a folder that holds a
    folder of pictures for each class, all of one size.

    A row is a name of --list, or an architecture with settings after a colon, such as
    ViT:operator=NAME,correction=twicing,residual=boosting,scale=FeatScale,token_graying=dct,
    attention_skip=False. Architectures are ViT, Swin, CaiT and ConvMixer; an operator is a name,
    also one that --load registers.

    A seed gives all rows the same batches, and the same first weights wherever they have them in
    common. The learning rate of each row is chosen on validation images, with the same effort.

    With --adapt, a row starts from the weights of the trained softmax network and is trained for a
    third of its steps more, and is compared with softmax trained for as long.

    Prints means over seeds and differences to softmax with 95 % intervals: one that holds zero is
    inconclusive. Writes table.json (a line for each row and seed), means.csv and .tex,
    settings.json, summary.md and differences.png and .pdf, or adaptation.png and .pdf. Finished
    and interrupted runs are kept in DIR/runs.
    """
    from .adaptation import adapt as run_adapted
    from .study import ROWS
    from .study import classify as run

    load_modules(load)
    if list_all:
        for name, options in ROWS.items():
            words = ", ".join(f"{key}={value}" for key, value in options.items())
            console().print(f"{name:22} {words}", highlight=False)
        return
    if adapt and (attack or corruptions):
        raise typer.BadParameter("--adapt goes without --attack and --corruptions")
    measures = {} if adapt else {"attack": attack, "corruptions": corruptions}
    try:
        table = (run_adapted if adapt else run)(
            data, rows=row, seeds=seeds, steps=steps, n_jobs=n_jobs, data_home=data_home,
            directory=output / "runs", progress=progress("Training"), **measures,
        )  # fmt: skip
    except (ImportError, OSError, ValueError) as error:
        raise typer.BadParameter(as_options(str(error))) from error
    settings = {
        "data": data, "row": row, "seeds": seeds, "steps": steps, "attack": attack,
        "corruptions": corruptions, "adapt": adapt,
    }  # fmt: skip
    (report_adapted if adapt else report)(table, output, settings)


def report(table: "pd.DataFrame", output: Path, settings: dict[str, Any]) -> None:
    """Print and write what was found."""
    from .figures import draw_differences
    from .report import lines_of, notes, remarks, robust_lines

    write_table(table, output)
    lines = lines_of(table)
    _show(lines, str(settings["data"]))
    write_lines(lines, output / "means")
    text = [*markdown(*lines), ""]
    if robust := robust_lines(table):
        _show(robust, "Top-1 on attacked and corrupted images")
        write_lines(robust, output / "robust")
        text += ["## Attacked and corrupted images, top-1 %", "", *markdown(*robust), ""]
    for sentence in remarks(table) + notes(table.columns):
        console().print(sentence, soft_wrap=True)
        text += [sentence, ""]
    draw_differences(table, output)
    if (output / "differences.png").is_file():
        text.append("![differences](differences.png)")
    write_summary("twinsolve classify", text, settings, output)
    console().print(f"Written to {output}/")


def report_adapted(table: "pd.DataFrame", output: Path, settings: dict[str, Any]) -> None:
    """Print and write what became of the adapted networks."""
    from .adaptation import adapted_lines, adapted_note
    from .figures import draw_adaptation

    write_table(table, output)
    lines = adapted_lines(table)
    _show(lines, str(settings["data"]))
    write_lines(lines, output / "means")
    console().print(adapted_note(table), soft_wrap=True)
    draw_adaptation(table, output)
    text = [*markdown(*lines), "", adapted_note(table)]
    if (output / "adaptation.png").is_file():
        text += ["", "![adaptation](adaptation.png)"]
    write_summary("twinsolve classify --adapt", text, settings, output)
    console().print(f"Written to {output}/")


def _show(lines: Lines, title: str) -> None:
    from rich.table import Table

    shown = Table(*lines[0], title=title)
    for cells in lines[1]:
        shown.add_row(*cells)
    console().print(shown)
