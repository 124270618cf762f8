"""The commands below `twinsolve speed`."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
import typer

from ..tables import markdown
from ..terminal import Load, console, load_modules, progress, results_folder
from .report import METHODS, OPERATORS, SOLVERS, Report, check_measured, pretty, remarks

app = typer.Typer(
    no_args_is_help=True, help="Time a solver beside those that a user would pick instead."
)


def _hold(name: str | None) -> str | None:
    from .instructions import hold_to

    try:
        hold_to(name)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    return name


Cases = Annotated[
    list[str] | None,
    typer.Option("--case", metavar="NAME", help="Run this case only; may be given again."),
]
Peers = Annotated[
    list[str] | None,
    typer.Option("--peer", metavar="NAME", help="Run this peer only; may be given again."),
]
Rounds = Annotated[int, typer.Option(min=1, help="How often each solver runs, in turns.")]
Jobs = Annotated[
    int,
    typer.Option(
        min=1, help="Threads. Peers on one thread only are left out if not 1; ours on one joins."
    ),
]
JobsOfAll = Annotated[
    int, typer.Option(min=1, help="Threads, where a package offers them; ours on one joins.")
]
Seed = Annotated[int, typer.Option(min=0, help="Seed of generated data and of the rows timed.")]
Instructions = Annotated[
    str | None,
    typer.Option(
        callback=_hold, help="avx2: no wider ones, as on a processor that has no AVX-512."
    ),
]
Output = Annotated[
    Path,
    typer.Option(
        metavar="DIR",
        help="Folder for the results and the finished cases.",
        callback=results_folder,
    ),
]


@app.command("self-expression")
def self_expression(
    case: Cases = None,
    peer: Peers = None,
    rounds: Rounds = 3,
    n_jobs: Jobs = 1,
    seed: Seed = 0,
    instructions: Instructions = None,
    output: Output = Path("results/speed-self-expression"),
) -> None:
    """Each row of a data set from few others, at a certified relative gap of 1e-6.

    Ours solves all rows, its Gram matrix and its certificate included. A peer solves a random
    sample of the rows, at the loosest of its tolerances whose worst certified gap on them is at
    most 1e-6; a Gram matrix that peers share is not counted. In each round all run once, one after
    another, and a ratio compares times of the same round. Memory is the peak of ours beyond the
    input, measured on Linux in a process of its own.

    Cases: synthetic-500, -1000, -2000, -5000, -10000 and -20000; with their files in the folder
    that the environment variable TWINSOLVE_DATA names, yale-b, coil-20 and coil-20-dense. Only on
    request, ours alone and once: synthetic-40000, and large, that is 70,000 rows in 500 dimensions
    to a gap of 1e-4.

    Peers: scikit-learn (Lasso row by row), scikit-learn-gram (coordinate descent on the shared Gram
    matrix), celer, skglm, spams-active-support (LARS on growing supports), spams-gram (LARS on the
    shared Gram matrix).

    Writes table.json, settings.json, summary.md and, of the synthetic cases, scaling.png to DIR.
    What is finished is kept in DIR/runs and not run again while settings and source are the same.
    """
    from .figures import draw_scaling
    from .sparse import time_self_expression

    _report(
        "self-expression", time_self_expression, SOLVERS, draw_scaling, output,
        cases=case, peers=peer, rounds=rounds, n_jobs=n_jobs, seed=seed,
    )  # fmt: skip


@app.command("sparse-coding")
def sparse_coding(
    case: Cases = None,
    peer: Peers = None,
    rounds: Rounds = 3,
    n_jobs: Jobs = 1,
    seed: Seed = 0,
    instructions: Instructions = None,
    output: Output = Path("results/speed-sparse-coding"),
) -> None:
    """1,000 signals in a random dictionary of 1,024 atoms, at a certified relative gap of 1e-6.

    Timed as by the command self-expression; SPAMS, like ours, makes its own Gram matrix.

    Cases: dictionary-10 and dictionary-50; the penalty is the mean over the signals of the smallest
    one with no atoms, divided by that number. Peers: scikit-learn-cd and scikit-learn-lars
    (sparse_encode), celer, skglm, spams (LARS).

    Writes table.json, settings.json and summary.md to DIR. What is finished is kept in DIR/runs and
    not run again while settings and source are the same.
    """
    from .sparse import time_sparse_coding

    _report(
        "sparse-coding", time_sparse_coding, SOLVERS, None, output,
        cases=case, peers=peer, rounds=rounds, n_jobs=n_jobs, seed=seed,
    )  # fmt: skip


@app.command()
def filters(
    case: Cases = None,
    peer: Peers = None,
    rounds: Rounds = 3,
    n_jobs: JobsOfAll = 1,
    seed: Seed = 0,
    instructions: Instructions = None,
    output: Output = Path("results/speed-filters"),
) -> None:
    """Filters on images, smoothers and embeddings of points, token graying.

    In each round all methods of a case run once, one after another, on the same input, and a ratio
    compares times of the same round. Denoising has its PSNR and SSIM beside the time. Memory is the
    peak of ours beyond the input, measured on Linux in a process of its own.

    Cases: nlm-7-21, nlm-5-13 and nlm-gaussian-7-21 (non-local means: patch and window),
    bilateral-square-11 and regression (Nadaraya-Watson), each followed by -float64 or -float32;
    bilateral-disk-11-float32; set12, with its files in the folder that the environment variable
    TWINSOLVE_DATA names; lle-weights, lle-3 and lle-50 (locally linear embedding: features),
    graying-svd-224, graying-dct-224, graying-svd-64 and graying-dct-64 (token graying: width of the
    images). Peers: numpy, opencv, scikit-image, scikit-learn, scipy, torch.

    Writes table.json, settings.json, summary.md and, of set12, quality.png to DIR. What is finished
    is kept in DIR/runs and not run again while settings and source are the same.
    """
    from .figures import draw_quality
    from .filters import time_filters

    _report(
        "filters", time_filters, METHODS, draw_quality, output,
        cases=case, peers=peer, rounds=rounds, n_jobs=n_jobs, seed=seed,
    )  # fmt: skip


@app.command()
def attention(
    case: Cases = None,
    operator: Annotated[
        list[str] | None,
        typer.Option("--operator", metavar="NAME", help="This operator only; may be given again."),
    ] = None,
    rounds: Rounds = 5,
    n_jobs: JobsOfAll = 1,
    seed: Seed = 0,
    instructions: Instructions = None,
    dtype: Annotated[str, typer.Option(help="float32, float64 or bfloat16.")] = "float32",
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    load: Load = None,
    output: Output = Path("results/speed-attention"),
) -> None:
    """Every operator beside scaled dot-product attention, and beside its own N x N matrix.

    In each round an operator and scaled_dot_product_attention run in turns on the same tokens, in
    inference and in training, and a ratio compares times of the same round; the explicit matrix on
    up to 1024 tokens, and in inference bilateral attention with its positions stored. Peak memory,
    its growth with the number of tokens, operations, parameters and the kernel reached stand beside
    them.

    Cases, as (batch, heads, tokens, width of a head): images-197 (8, 3, 197, 64), tokens-1024
    (1, 4, 1024, 64), tokens-4096 (1, 4, 4096, 64); and memory, from 256 to 4096 tokens.

    Writes table.json, settings.json, summary.md and times.png to DIR. What is finished is kept in
    DIR/runs and not run again while settings and source are the same.
    """
    from .attention import time_attention
    from .figures import draw_attention

    load_modules(load)
    _report(
        "attention", time_attention, OPERATORS, draw_attention, output,
        cases=case, operators=operator, rounds=rounds, n_jobs=n_jobs, seed=seed, dtype=dtype,
        device=device,
    )  # fmt: skip


def _report(
    command: str,
    timing: Callable[..., pd.DataFrame],
    report: Report,
    draw: Callable[[pd.DataFrame, Path], None] | None,
    output: Path,
    **settings: Any,
) -> None:
    """Time, print, write and draw."""
    from ..tables import write_summary, write_table

    try:
        table = timing(**settings, directory=output / "runs", progress=progress("Timing"))
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    check_measured(table)
    lines, noted = report.lines(table), remarks(table)
    screen = console()
    screen.print(pretty(*lines))
    for remark in noted:
        screen.print(remark)
    screen.print(f"Written to {output}/")
    write_table(table, output)
    text = [*report.explanation, "", *markdown(*lines), *(f"\n{line}" for line in noted)]
    write_summary(f"twinsolve speed {command}", text, settings, output)
    if draw:
        draw(table, output)
