"""The command `twinsolve classify`."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ...names import as_options, split_settings
from ...tables import Lines, markdown, write_lines, write_summary, write_table
from ...terminal import Load, Output, console, load_modules, progress

if TYPE_CHECKING:
    import pandas as pd

Study = Literal["rows", "path", "routers", "adaptation"]
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
    recipe: Annotated[
        str | None,
        typer.Option(metavar="NAME=VALUE,...", help="Settings in place of the data set's own."),
    ] = None,
    attack: Annotated[
        bool, typer.Option("--attack", help="Also on images attacked by FGSM and PGD.")
    ] = False,
    corruptions: Annotated[
        bool, typer.Option("--corruptions", help="Also on noisy, blurred and faint images.")
    ] = False,
    study: Annotated[
        Study, typer.Option(help="Which rows: see above; rows of --row come in their place.")
    ] = "rows",
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
    attention_skip=False. Architectures are ViT, Swin, CaiT, ConvMixer and SelfExpression; an
    operator is a name, also one that --load registers.

    Studies are: rows, all that differ in one part; path, from non-local means on pixels to softmax
    attention, one part a row, and layers that are the ISTA steps of one problem beside it; routers,
    mixtures of experts, whose first choices are set beside clusterings of the same tokens by
    k-means, k-subspaces and SSC; adaptation, where the trained softmax network becomes each row and
    is trained for a third of its steps more, against softmax trained for as long.

    A seed gives all rows the same batches, and the same first weights wherever they have them in
    common. Learning rate, number of steps and scale of positions of each row are chosen on
    validation images, with the same effort. Other settings are those of the data set, or of
    --recipe: patch_size, dim, depth, num_heads, mlp_ratio, batch_size, weight_decay, warm_up,
    ema_decay, label_smoothing, drop_path, shift (pixels), flip, precision (float32 or bfloat16) and
    erasing, mixup, cutmix (shares of the images, and of the batches; they need kornia). torchrun
    --no-python twinsolve classify shares each batch between processes.

    Prints means over seeds and differences to softmax: 95 % intervals over seeds and test images,
    verdicts that are corrected for the number of rows, and the difference that such a run would
    find with 80 % power, beside what papers claim. Writes table.json (a line for each row and
    seed), means.csv and .tex, settings.json, summary.md and figures as .png and .pdf; routers.json,
    of that study. Finished and interrupted runs are kept in DIR/runs.
    """
    from ..training import processes
    from .study import KNOWN

    load_modules(load)
    if list_all:
        for name, options in KNOWN.items():
            words = ", ".join(f"{key}={value}" for key, value in options.items())
            console().print(f"{name:22} {words}", highlight=False)
        return
    if study == "adaptation" and (attack or corruptions):
        raise typer.BadParameter("--study adaptation goes without --attack and --corruptions")
    if n_jobs != 1 and "TORCHELASTIC_RUN_ID" in os.environ:
        raise typer.BadParameter("torchrun has its own processes: leave --n-jobs at 1")
    first = os.environ.get("RANK", "0") == "0"
    given: dict[str, Any] = {
        "seeds": seeds, "steps": steps, "n_jobs": n_jobs, "data_home": data_home,
        "directory": output / "runs", "progress": progress("Training") if first else None,
    }  # fmt: skip
    measured = {"attack": attack, "corruptions": corruptions}
    settings = {
        "data": data, "study": study, "row": row, "seeds": seeds, "steps": steps, "recipe": recipe,
        **measured,
    }  # fmt: skip
    try:
        given["recipe"] = split_settings(f":{recipe or ''}", "recipe")[1]
        with processes():
            if study == "adaptation":
                from .adaptation import adapt

                table, routed = adapt(data, rows=row, **given), None
            else:
                table, routed = _trained(data, study, row, given | measured)
    except (FileNotFoundError, ImportError, ValueError) as error:
        raise typer.BadParameter(as_options(str(error))) from error
    if first and study == "adaptation":
        report_adapted(table, output, settings)
    elif first:
        report(table, output, settings, routed)


def _trained(
    data: str, study: str, row: list[str] | None, given: dict[str, Any]
) -> tuple["pd.DataFrame", "pd.DataFrame | None"]:
    """The table of a study, and that of its routers."""
    from ..routing.study import compare_routers, rows_with_experts
    from .study import STUDIES
    from .study import classify as run

    rows = row or list(STUDIES[study])
    if study == "routers":
        rows_with_experts(rows)
    table = run(data, rows=rows, **given)
    if study != "routers":
        return table, None
    kept = {name: given[name] for name in ("recipe", "n_jobs", "data_home", "directory")}
    return table, compare_routers(table, progress=progress("Routers"), **kept)


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


def report_adapted(table: "pd.DataFrame", output: Path, settings: dict[str, Any]) -> None:
    """Print and write what became of the adapted networks."""
    from .figures import draw_adaptation
    from .report import adapted_lines, adapted_notes

    write_table(table, output)
    lines = adapted_lines(table)
    _show(lines, str(settings["data"]))
    write_lines(lines, output / "means")
    text = [*markdown(*lines), ""]
    for sentence in adapted_notes(table):
        console().print(sentence, soft_wrap=True)
        text += [sentence, ""]
    draw_adaptation(table, output)
    if (output / "adaptation.png").is_file():
        text.append("![adaptation](adaptation.png)")
    write_summary("twinsolve classify", text, settings, output)
    console().print(f"Written to {output}/")


def _show(lines: Lines, title: str) -> None:
    from rich.table import Table

    shown = Table(*lines[0], title=title)
    for cells in lines[1]:
        shown.add_row(*cells)
    console().print(shown)
