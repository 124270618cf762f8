"""The commands below `twinsolve speed`."""

from collections.abc import Callable
from importlib import import_module
from inspect import getdoc
from pathlib import Path
from typing import Annotated, Any

import typer

from ..tables import markdown, write_summary, write_table
from ..terminal import Load, Output, console, load_modules, progress
from .report import METHODS, OPERATORS, SCALE, SOLVERS, Report, check_measured, pretty, remarks

_Help = Callable[[], None]

app = typer.Typer(
    no_args_is_help=True, help="Time a solver beside those that a user would pick instead."
)


def _hold(name: str | None) -> str | None:
    from .contest import hold_to

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
    typer.Option(min=1, help="Threads, where they are offered; of solvers, others are left out."),
]
Seed = Annotated[int, typer.Option(min=0, help="Seed of generated data and of the rows timed.")]
Instructions = Annotated[
    str | None,
    typer.Option(
        callback=_hold, help="avx2: no wider ones, as on a processor that has no AVX-512."
    ),
]


def _beside_peers(
    name: str, module: str, report: Report, draw: str = ""
) -> Callable[[_Help], _Help]:
    """A command with the options that all have; the function that it decorates holds its help."""

    def register(about: _Help) -> _Help:
        def run(
            case: Cases = None,
            peer: Peers = None,
            rounds: Rounds = 3,
            n_jobs: Jobs = 1,
            seed: Seed = 0,
            instructions: Instructions = None,
            output: Output = Path(f"results/speed-{name}"),
        ) -> None:
            _report(
                name, module, report, draw, output,
                cases=case, peers=peer, rounds=rounds, n_jobs=n_jobs, seed=seed,
            )  # fmt: skip

        app.command(name, help=getdoc(about))(run)
        return about

    return register


@_beside_peers("self-expression", "sparse", SOLVERS, "draw_scaling")
def self_expression() -> None:
    """Each row of a data set from few others, at a certified relative gap of 1e-6.

    Ours solves all rows, its Gram matrix and its certificate included. A peer solves a random
    sample of the rows, at the loosest of its tolerances whose worst certified gap on them is at
    most 1e-6; a Gram matrix that peers share is not counted. In each round all run once, one after
    another, and a ratio compares times of the same round. Memory is the peak of ours beyond the
    input, measured on Linux in a process of its own.

    Cases: synthetic-500, -1000, -2000, -5000, -10000 and -20000; with their files in the folder
    that the environment variable TWINSOLVE_DATA names, yale-b, coil-20, coil-20-dense and
    mnist-5000. Only on request, ours alone and once: synthetic-40000, and large, that is 70,000
    rows in 500 dimensions to a gap of 1e-4.

    Peers: scikit-learn (Lasso row by row), scikit-learn-gram (coordinate descent on the shared Gram
    matrix), celer, skglm, spams-active-support (LARS on growing supports), spams-gram (LARS on the
    shared Gram matrix).

    Writes table.json, settings.json, summary.md and, of the synthetic cases, scaling.png to DIR.
    What is finished is kept in DIR/runs and not run again while settings and source are the same.
    """


@_beside_peers("sparse-coding", "sparse", SOLVERS)
def sparse_coding() -> None:
    """1,000 signals in a random dictionary of 1,024 atoms, at a certified relative gap of 1e-6.

    Timed as by the command self-expression; SPAMS, like ours, makes its own Gram matrix.

    Cases: dictionary-10 and dictionary-50; the penalty is the mean over the signals of the smallest
    one with no atoms, divided by that number. Peers: scikit-learn-cd and scikit-learn-lars
    (sparse_encode), celer, skglm, spams (LARS).

    Writes table.json, settings.json and summary.md to DIR. What is finished is kept in DIR/runs and
    not run again while settings and source are the same.
    """


@_beside_peers("filters", "filters", METHODS, "draw_quality")
def filters() -> None:
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


@app.command()
def scale(
    case: Cases = None,
    size: Annotated[
        list[int] | None,
        typer.Option("--size", metavar="N", help="This number of rows; may be given again."),
    ] = None,
    n_jobs: Jobs = 1,
    seed: Seed = 0,
    instructions: Instructions = None,
    output: Output = Path("results/speed-scale"),
) -> None:
    """Self-expression of 10,000 to 1,000,000 rows, each certified at a relative gap of 1e-4.

    Every number of rows is solved once, in a process of its own: time, memory, the share of the
    products with all atoms that bounds made needless, and the worst gap of all rows.

    Cases: subspaces-50, subspaces-200 and noisy-50 (20 subspaces of dimension 6 in 50 or 200
    dimensions; noisy: of size 0.05 a coordinate), and, with its files in the folder that the
    environment variable TWINSOLVE_DATA names, mnist (scattering features on 200 principal
    directions). Up to 1,000,000, 300,000, 100,000 and 30,000 rows, unless the case is named.

    Writes table.json, settings.json, summary.md and scale.png to DIR. What is finished is kept in
    DIR/runs and not run again while settings and source are the same.
    """
    _report(
        "scale", "scale", SCALE, "draw_scale", output,
        cases=case, n_jobs=n_jobs, seed=seed, **({"sizes": size} if size else {}),
    )  # fmt: skip


@app.command()
def attention(
    case: Cases = None,
    operator: Annotated[
        list[str] | None,
        typer.Option("--operator", metavar="NAME", help="This operator only; may be given again."),
    ] = None,
    rounds: Rounds = 5,
    n_jobs: Jobs = 1,
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
    load_modules(load)
    _report(
        "attention", "attention", OPERATORS, "draw_attention", output,
        cases=case, operators=operator, rounds=rounds, n_jobs=n_jobs, seed=seed, dtype=dtype,
        device=device,
    )  # fmt: skip


def _report(
    name: str, module: str, report: Report, draw: str, output: Path, **settings: Any
) -> None:
    """Time, print, write and draw."""
    time = getattr(import_module(f".{module}", __package__), f"time_{name.replace('-', '_')}")
    try:
        table = time(**settings, directory=output / "runs", progress=progress("Timing"))
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    check_measured(table)
    lines, noted = report.lines(table), remarks(table)
    screen = console()
    screen.print(pretty(*lines))
    screen.print(*noted, sep="\n")
    write_table(table, output)
    text = [*report.explanation, "", *markdown(*lines), *(f"\n{line}" for line in noted)]
    write_summary(f"twinsolve speed {name}", text, settings, output)
    if draw:
        getattr(import_module(".figures", __package__), draw)(table, output)
    screen.print(f"Written to {output}/")
