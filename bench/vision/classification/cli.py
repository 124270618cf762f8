"""The command `twinsolve classify`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...names import as_options
from ...tables import Lines, markdown, write_lines, write_summary, write_table
from ...terminal import Load, Output, console, load_modules, progress

if TYPE_CHECKING:
    import pandas as pd


_MATCHED = "Difference to softmax on images that both get right as they are, points"


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
        int | None, typer.Option(min=1, help="Training steps, in place of the candidates' own.")
    ] = None,
    attack: Annotated[
        bool, typer.Option("--attack", help="Also on images attacked by FGSM and PGD.")
    ] = False,
    corruptions: Annotated[
        bool, typer.Option("--corruptions", help="Also on noisy, blurred and faint images.")
    ] = False,
    path: Annotated[
        bool, typer.Option("--path", help="From non-local means to softmax, part by part.")
    ] = False,
    routers: Annotated[
        bool,
        typer.Option("--routers", help="Mixtures of experts, their routers beside clusterings."),
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

    --path goes from non-local means on pixels to softmax attention, one part a row, and sets layers
    that are the ISTA steps of one problem beside it.

    DATA are the digits of scikit-learn; cifar10, from the data root; or a folder that holds a
    folder of pictures for each class, all of one size.

    A row is a name of --list, or an architecture with settings after a colon, such as
    ViT:operator=NAME,correction=twicing,residual=boosting,scale=FeatScale,token_graying=dct,
    attention_skip=False. Architectures are ViT, Swin, CaiT and ConvMixer; an operator is a name,
    also one that --load registers.

    A seed gives all rows the same batches, and the same first weights wherever they have them in
    common. Learning rate, number of steps and scale of positions of each row are chosen on
    validation images, with the same effort.

    Prints means over seeds and differences to softmax with 95 % intervals: one that holds zero is
    inconclusive. Writes table.json (a line for each row and seed), means.csv and .tex,
    settings.json, summary.md and differences.png and .pdf. Finished and interrupted runs are kept
    in DIR/runs.

    With --routers, the tokens that reach the experts of each layer are clustered by k-means,
    k-subspaces and SSC, beside the router's first choice: routers.json, routers.png and .pdf.
    """
    from ..routing.study import compare_routers, rows_with_experts
    from .study import EXPERTS, KNOWN, PATH_ROWS
    from .study import classify as run

    load_modules(load)
    if list_all:
        for name, options in KNOWN.items():
            words = ", ".join(f"{key}={value}" for key, value in options.items())
            console().print(f"{name:22} {words}", highlight=False)
        return
    if path:
        row = [*PATH_ROWS, *(row or ())]
    if routers and row is None:
        row = list(EXPERTS)
    try:
        if routers:
            rows_with_experts(row or ())
        table = run(
            data, rows=row, seeds=seeds, steps=steps, attack=attack, corruptions=corruptions,
            n_jobs=n_jobs, data_home=data_home, directory=output / "runs",
            progress=progress("Training"),
        )  # fmt: skip
        routed = None
        if routers:
            routed = compare_routers(
                table, n_jobs=n_jobs, data_home=data_home, directory=output / "runs",
                progress=progress("Routers"),
            )  # fmt: skip
    except (ImportError, OSError, ValueError) as error:
        raise typer.BadParameter(as_options(str(error))) from error
    settings = {
        "data": data, "row": row, "seeds": seeds, "steps": steps, "attack": attack,
        "corruptions": corruptions, "path": path, "routers": routers,
    }  # fmt: skip
    report(table, output, settings, routed)


def report(
    table: "pd.DataFrame",
    output: Path,
    settings: dict[str, Any],
    routed: "pd.DataFrame | None" = None,
) -> None:
    """Print and write what was found."""
    from .figures import draw_differences
    from .report import lines_of, matched_lines, notes, path_lines, remarks, robust_lines

    write_table(table, output)
    lines = lines_of(table)
    _show(lines, str(settings["data"]))
    write_lines(lines, output / "means")
    text = [*markdown(*lines), ""]
    if steps := path_lines(table):
        _show(steps, "Part by part")
        text += ["## Part by part", "", *markdown(*steps), ""]
    if robust := robust_lines(table):
        title = "Attacked and corrupted images, top-1 %"
        _show(robust, title)
        write_lines(robust, output / "robust")
        text += [f"## {title}", "", *markdown(*robust), "", f"## {_MATCHED}", ""]
        text += [*markdown(*matched_lines(table)), ""]
    for sentence in remarks(table) + notes(table):
        console().print(sentence, soft_wrap=True)
        text += [sentence, ""]
    draw_differences(table, output)
    if (output / "differences.png").is_file():
        text += ["![differences](differences.png)", ""]
    if routed is not None:
        text += _router_text(routed, output)
    write_summary("twinsolve classify", text, settings, output)
    console().print(f"Written to {output}/")


def _router_text(routed: "pd.DataFrame", output: Path) -> list[str]:
    """Print and write what was found of routers; the lines of the summary."""
    from ..routing.figures import draw_routers
    from ..routing.report import router_parts, router_remarks

    write_table(routed, output, "routers.json")
    text = []
    for title, lines in router_parts(routed).items():
        _show(lines, title)
        text += [f"## {title}", "", *markdown(*lines), ""]
    for sentence in router_remarks(routed):
        console().print(sentence, soft_wrap=True)
        text += [sentence, ""]
    draw_routers(routed, output)
    return [*text, "![routers](routers.png)", ""]


def _show(lines: Lines, title: str) -> None:
    from rich.table import Table

    shown = Table(*lines[0], title=title)
    for cells in lines[1]:
        shown.add_row(*cells)
    console().print(shown)
