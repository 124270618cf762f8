"""Command `twinsolve check`."""

import os
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from ..options import DATA, Jobs, Load, Output, Quick, Seed, load_modules, report_mistakes
from ..terminal import console


def check(
    layer: Annotated[
        str | None,
        typer.Argument(
            metavar="LAYER",
            help="Instead of our twins, a layer of yours that has a twin: package.module:NAME, "
            "where NAME is a layer, class or function; settings may follow as "
            ":SETTING=VALUE,... Register a twin in its module or by --load.",
        ),
    ] = None,
    twin: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Only this twin; may be given again.")
    ] = None,
    family: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Only this family; may be given again.")
    ] = None,
    data: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help=DATA),
    ] = None,
    quick: Quick = False,
    seed: Seed = 0,
    n_jobs: Jobs = -1,
    output: Output = Path("results/check"),
    load: Load = None,
) -> None:
    """Compare every layer of this package with its solver, or check a layer of yours.

    ```
    twinsolve check --quick
    twinsolve check --family sparse_coding --data digits
    twinsolve check my_module:MyLayer
    ```

    **Without LAYER** the command checks all twins of this package. A twin is a learnable attention
    layer and the classical solver that it unrolls. Both run on clustering and on vision data. Their
    outputs may differ by at most a tolerance, which depends on how they are related:

    - identity: the same numbers; init: the same numbers before training
    - iterate: the same iterates
    - limit: the same limit, or its proved rate
    - bound: a proved inequality

    Both must also reach the same quality: the adjusted Rand index of the clusters, or the PSNR of
    the image in dB.

    Layers must keep laws too, on small random inputs with heads that differ. The laws cover causal,
    padding and pair masks, fewer queries than keys, the attention matrix, gradients, other options,
    sizes and dtypes. A layer must raise an error on inputs that it cannot take. --quick tests the
    laws, and one data set of each task in float64. Repeat --data for several data sets; "drawn"
    stands for the random inputs of the laws.

    With packaged data and two idle cores the check takes more than a minute. If the environment
    variable TWINSOLVE_DATA names a folder with Extended Yale B and Set12, it uses these too. It
    prints a line for each twin, with the row closest to its tolerance, then the coverage and the
    processor time. It writes table.json with every row, summary.md, settings.json and
    deviations.png to DIR. The status is 1 if a row is broken.

    **With LAYER** the command does what twinsolve.check does in Python. It compares your layer with
    its solver on drawn tokens, tests the laws that the layer declares, and prints the report. For
    that the layer needs a twin: its class or a base class has one here, or
    twinsolve.twins.register adds one, as the page "Extend" of the documentation shows. The
    status is 1 if a finding is broken. A function may return a pair of a layer and its tokens, or
    of a model and its batch. Only --seed and --load go with LAYER.
    """
    if layer is not None:
        if twin or family or data or quick:
            raise typer.BadParameter("only --seed and --load go with LAYER")
        _check_layer(layer, seed, load)
    from ..tables import write_summary, write_table
    from .checks import check_twins
    from .lines import coverage, draw_deviations, heading, summary_lines, twin_lines

    screen = console()
    load_modules(load)
    headings = iter([heading()])

    def show(rows: Any) -> None:
        for words in headings:
            screen.print(words, style="bold", soft_wrap=True)
        style = "red" if (rows.verdict == "broken").any() else None
        screen.print("\n".join(twin_lines(rows)), style=style, soft_wrap=True)

    try:
        table = check_twins(
            seed=seed,
            twins=twin or (),
            families=family or (),
            data=data or (),
            quick=quick,
            n_jobs=n_jobs,
            progress=show,
        )
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    seconds = sum(os.times()[:4])  # this process and its finished children
    covered = [*coverage(table), f"Processor time: {seconds:.0f} s."]
    screen.print("", *covered, sep="\n")
    write_table(table, output)
    settings = {"seed": seed, "twin": twin, "family": family, "data": data, "quick": quick}
    summary = [*covered, "", *summary_lines(table)]
    write_summary("twinsolve check", summary, settings | {"load": load}, output)
    draw_deviations(table, output / "deviations.png")
    screen.print(f"Written to {output}/")
    raise typer.Exit(code=int((table.verdict == "broken").any()))


def _check_layer(name: str, seed: int, load: list[str] | None) -> NoReturn:
    from .own_layer import check_layer

    load_modules(load)
    with report_mistakes(LookupError):
        report = check_layer(name, seed=seed)
    console().print(str(report), highlight=False, soft_wrap=True)
    raise typer.Exit(code=int(not report))
