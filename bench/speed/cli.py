"""Commands of `twinsolve speed`."""

from collections.abc import Callable
from functools import partial
from importlib import import_module
from inspect import getdoc
from pathlib import Path
from typing import Annotated, Any

import typer

from ..options import (
    DTYPE,
    Device,
    Jobs,
    Load,
    Output,
    Rounds,
    Seed,
    load_modules,
    report_mistakes,
    take_options,
)
from ..terminal import progress

_Help = Callable[..., None]

app = typer.Typer(
    no_args_is_help=True, help="Time our solvers beside those that a user would pick instead."
)


def _hold_to(name: str | None) -> str | None:
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
Instructions = Annotated[
    str | None,
    typer.Option(callback=_hold_to, help="avx2 allows no wider instructions, as without AVX-512."),
]


def _times(module: str) -> Callable[[_Help], _Help]:
    """Decorator that adds a command; the function has its help, and options beside `_common`."""

    def register(about: _Help) -> _Help:
        name = about.__name__.replace("_", "-")

        def run(*, output: Path, **typed: Any) -> None:
            load_modules(typed.pop("load", None))
            del typed["instructions"]
            settings = {_ARGUMENTS.get(word, word): value for word, value in typed.items()}
            _run_command(name, module, settings, output)

        output = Path(f"results/speed-{name}")
        app.command(name, help=getdoc(about))(take_options(run, about, _common, output=output))
        return about

    return register


def _common(
    case: Cases = None,
    n_jobs: Jobs = 1,
    seed: Seed = 0,
    instructions: Instructions = None,
    output: Output = Path(),
) -> None:
    """The options of all commands."""


_ARGUMENTS = {"case": "cases", "peer": "peers", "size": "sizes", "operator": "operators"}


@_times("sparse")
def self_expression(peer: Peers = None, rounds: Rounds = 3) -> None:
    """Express each row of a data set by few others, at a certified relative gap of 1e-6.

    ```
    twinsolve speed self-expression --case synthetic-1000 --peer celer
    ```

    Our solver solves all rows; its time includes the Gram matrix and the certificate. A peer (a
    solver of another package) solves a random sample of the rows. It runs at its loosest tolerance
    whose worst certified gap on the sample is at most 1e-6. The time of a Gram matrix that peers
    share is not counted. In each round all solvers run once, and a ratio compares times of the same
    round. Memory is the peak of our solver beyond the input, measured on Linux in a separate
    process. With more than one core, peers that only use one are left out.

    **Cases**: synthetic-500, -1000, -2000, -5000, -10000 and -20000. If the environment variable
    TWINSOLVE_DATA names a folder with their files, also yale-b, coil-20, coil-20-dense and
    mnist-5000. Two cases run only on request, once and without peers: synthetic-40000, and large
    (70,000 rows in 500 dimensions to a gap of 1e-4).

    **Peers**: scikit-learn (Lasso row by row), scikit-learn-gram (coordinate descent on the shared
    Gram matrix), celer, skglm, spams-active-support (LARS on growing supports), spams-gram (LARS on
    the shared Gram matrix).

    DIR gets table.json, means.csv and .tex, settings.json, summary.md and, for synthetic cases,
    scaling.png. DIR/runs keeps finished cases, which are read while settings and source stay the
    same.
    """


@_times("sparse")
def sparse_coding(peer: Peers = None, rounds: Rounds = 3) -> None:
    """Code signals in a random dictionary, at a certified gap of 1e-6.

    ```
    twinsolve speed sparse-coding --case dictionary-10
    ```

    Times are measured as by twinsolve speed self-expression. SPAMS, like our solver, computes its
    own Gram matrix.

    **Cases**: dictionary-10 and dictionary-50, of 1,000 signals and 1,024 atoms, and patches-5, of
    5,000 signals and 256 atoms in 64 dimensions. Each signal has a smallest penalty at which its
    code is zero. The penalty of a case is the mean of these, divided by 10, 50 or 5.

    **Peers**: scikit-learn-cd and scikit-learn-lars (sparse_encode), celer, skglm, spams (LARS).

    DIR gets table.json, means.csv and .tex, settings.json and summary.md. DIR/runs keeps finished
    cases, which are read while settings and source stay the same.
    """


@_times("lasso_layer")
def lasso_layer(peer: Peers = None, rounds: Rounds = 3) -> None:
    """Solve 1,000 Lassos of 64 features and 256 atoms, and pull a gradient back through them.

    ```
    twinsolve speed lasso-layer --case random-0.1
    ```

    Gradients are those of signals, dictionary and penalty, in float64. A slow peer codes only some
    of the signals. In each round all layers run once, and a ratio compares times of a signal.
    Memory is the peak of ours beyond the input, measured on Linux in a separate process.

    **Cases**: random-0.1, random-0.2, coherent-0.1 and coherent-0.2. The number is the penalty, for
    signals and atoms of length one. On request, without peers: random-1024 and, with 10,000 signals
    of 256 features, random-4096 and coherent-4096.

    **Peers**: an autograd loop of FISTA, unrolled ISTA and FixedPoint of ISTA, which are in this
    package; jaxopt and cvxpylayers, at their own tolerance and at 1e-10, which brings the error of
    their gradients below 1e-8.

    DIR gets table.json, means.csv and .tex, settings.json and summary.md. DIR/runs keeps finished
    cases, which are read while settings and source stay the same.
    """


@_times("filters")
def filters(peer: Peers = None, rounds: Rounds = 3) -> None:
    """Time image filters, smoothers and embeddings of points, and token graying.

    ```
    twinsolve speed filters --case nlm-7-21-float64 --peer scikit-image
    ```

    In each round all methods of a case run once on the same input, and a ratio compares times of
    the same round. Denoisers also get PSNR and SSIM. Memory is the peak of our method beyond the
    input, measured on Linux in a separate process.

    **Cases** in two precisions, as -float64 and -float32:

    - nlm-7-21, nlm-5-13 and nlm-gaussian-7-21: non-local means, by sides of patch and window
    - bilateral-square-11
    - regression: Nadaraya-Watson

    **Other cases**:

    - bilateral-disk-11-float32
    - set12, if the environment variable TWINSOLVE_DATA names a folder with its files
    - lle-weights, lle-3 and lle-50: locally linear embedding, by number of features
    - graying-svd-224, graying-dct-224, graying-svd-64 and graying-dct-64: token graying, by width
      of the images

    **Peers**: numpy, opencv, scikit-image, scikit-learn, scipy, torch.

    DIR gets table.json, means.csv and .tex, settings.json, summary.md and, for set12, quality.png.
    DIR/runs keeps finished cases, which are read while settings and source stay the same.
    """


@_times("steps")
def steps(peer: Peers = None, rounds: Rounds = 3) -> None:
    """Time steps of clustering and of dictionary learning.

    ```
    twinsolve speed steps --case omp-patches --peer scikit-learn
    ```

    In each round all methods of a case run once on the same input, and a ratio compares times of
    the same round. Memory is the peak of our method beyond the input, measured on Linux in a
    separate process.

    **Cases**:

    - omp-1000, omp-2000 and omp-patches: orthogonal matching pursuit in a random dictionary
    - spectral-3000 and spectral-15000: labels from the graph of so many noisy points
    - robust-low-rank: low-rank representation of 300 points, beside an inexact augmented Lagrangian
    - lam-max: the smallest penalties at which all codes of 100,000 points are zero

    **Peers**: numpy, scikit-learn and spams. The last chooses atoms by another rule, the
    order-recursive one.

    DIR gets table.json, means.csv and .tex, settings.json and summary.md. DIR/runs keeps finished
    cases, which are read while settings and source stay the same.
    """


@_times("scale")
def scale(
    size: Annotated[
        list[int] | None,
        typer.Option("--size", metavar="N", help="Run this number of rows; may be given again."),
    ] = None,
) -> None:
    """Self-expression of 10,000 to 1,000,000 rows, each certified at a relative gap of 1e-4.

    ```
    twinsolve speed scale --case subspaces-50 --size 10000
    ```

    Every number of rows is solved once, in a separate process. The command measures time, memory,
    the share of products with all atoms that bounds made needless, and the worst gap of all rows.

    **Cases**, with their largest number of rows (no limit for those that --case names):

    - subspaces-50, up to 1,000,000, and subspaces-200, up to 300,000: 20 subspaces of dimension 6
      in 50 or 200 dimensions
    - many-50 and many-200, up to 100,000: 100 subspaces of dimension 5 in 50 or 200 dimensions
    - noisy-50, up to 100,000: subspaces-50 with noise of 0.05 of the norm
    - mnist, up to 30,000: scattering features on 200 principal directions, if the environment
      variable TWINSOLVE_DATA names a folder with its files

    DIR gets table.json, means.csv and .tex, settings.json, summary.md and scale.png. DIR/runs keeps
    finished cases, which are read while settings and source stay the same.
    """


@_times("attention")
def attention(
    operator: Annotated[
        list[str] | None,
        typer.Option(
            "--operator", metavar="NAME", help="Run this operator only; may be given again."
        ),
    ] = None,
    rounds: Rounds = 5,
    dtype: Annotated[str, typer.Option(help=DTYPE)] = "float32",
    device: Device = "auto",
    load: Load = None,
) -> None:
    """Time every operator beside scaled dot-product attention, and beside its N x N matrix.

    ```
    twinsolve speed attention --operator twicing --case tokens-1024
    ```

    In each round an operator and scaled_dot_product_attention take turns on the same tokens, in
    inference and in training, and a ratio compares times of the same round. The explicit matrix is
    timed on up to 1024 tokens, and bilateral attention with stored positions in inference. The
    table also has peak memory, its growth with the number of tokens, operations, parameters and the
    PyTorch kernel that ran.

    **Cases**, as (batch, heads, tokens, width of a head): images-197 (8, 3, 197, 64), tokens-1024
    (1, 4, 1024, 64), tokens-4096 (1, 4, 4096, 64); memory, from 256 to 4096 tokens; and causal-256,
    causal-1024, causal-2048, causal-4096 and causal-16384 (1, 4, N, 64), of the operators that
    learn at test time, beside causal scaled_dot_product_attention.

    DIR gets table.json, means.csv and .tex, settings.json, summary.md and times.png. DIR/runs keeps
    finished cases, which are read while settings and source stay the same.
    """


def _run_command(name: str, module: str, settings: dict[str, Any], output: Path) -> None:
    """Time the cases, then print, write and draw the table."""
    from ..jobs import Options
    from ..study import run_studies, write_studies
    from .report import speed_study

    time = getattr(import_module(f".{module}", __package__), f"time_{name.replace('-', '_')}")
    study, explanation = speed_study(name, partial(time, **settings))
    options = Options(directory=output / "runs", progress=progress("Timing"))
    with report_mistakes():
        tables = run_studies([study], options)
    write_studies(f"twinsolve speed {name}", [study], tables, settings, output, explanation)
