"""Command `twinsolve cluster`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from ..options import (
    DASK,
    DataHome,
    Jobs,
    ListAll,
    Load,
    Methods,
    Output,
    Seed,
    Seeds,
    given_names,
    load_modules,
    refuse_others,
    report_mistakes,
)
from ..terminal import console, present_folder

if TYPE_CHECKING:
    from ..jobs import Options


def cluster(
    context: typer.Context,
    data: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[DATA]...",
            help="Data sets by name, or files of points; settings follow a colon.",
            show_default=False,
        ),
    ] = None,
    method: Methods = None,
    features: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Features of the points [unit]; may be given again."),
    ] = None,
    affinity: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CHAIN",
            help="Affinity steps, such as 'keep-largest 3, symmetrize'; may be given again.",
        ),
    ] = None,
    preset: Annotated[
        str | None, typer.Option(metavar="NAME", help="Run the studies of this preset.")
    ] = None,
    seed: Seed = 0,
    seeds: Seeds = 10,
    n_jobs: Jobs = 1,
    n_clusters: Annotated[
        int | None, typer.Option(min=1, help="Number of clusters, for files without labels.")
    ] = None,
    auto: Annotated[
        bool,
        typer.Option(
            "--auto",
            help="Choose method, affinity steps and setting without labels; not with --preset "
            "or --seeds.",
        ),
    ] = False,
    dask: Annotated[str | None, DASK] = None,
    data_home: DataHome = None,
    output: Output = Path("results/cluster"),
    load: Load = None,
    list_all: ListAll = False,
) -> None:
    """Cluster data sets by solved and learned coefficients, and compare the methods.

    ```
    twinsolve cluster --list
    twinsolve cluster digits:n_points=300 --method SSC --method k-means
    twinsolve cluster mine.csv --auto --n-clusters 6
    twinsolve cluster large.npy --dask tcp://host:8786 --n-clusters 6
    ```

    A method represents each point by other points, with coefficients. Affinity steps turn the
    coefficients into a graph. The last step cuts the graph by k-means of its eigenvectors, or by
    pivoted QR if the steps end in cluster-qr. All chains of steps and all seeds of k-means use the
    same coefficients, so that methods and steps are judged separately. The first seed also draws
    data, subsets and fits. Without DATA and --method, the command runs --preset quick: every method
    but the slowest on packaged and generated data, in a few minutes.

    **DATA** is a name of --list or a file of points. Settings follow a colon:

    - synthetic:noise=0.3,angle=0.5 sets a generator
    - digits:n_points=500 draws a random subset
    - coil20:classes=1-10,n_classes=6 draws random classes
    - mnist:subset=test takes a part of a data set
    - mine.mat:data_key=X,target_key=y names the arrays of a file
    - mine.mat:data_key=X/2 takes the second view in a cell X, and data_key=X all side by side
    - mine.npz:transpose=True takes columns as points
    - mine.csv:drop=[id,3] leaves out columns, by name or number from 0
    - mine.txt:sep=semicolon,decimal=comma says how a table is written, if it is read wrongly

    A file is a table (.csv, .tsv, .txt, plain or with .gz, or .parquet), holds arrays (.npz, .mat,
    .h5), or is a .npy or IDX file of points beside one of labels. Labels are found by the names y,
    target, label, class, gnd, gt and s, in capitals or not; target_key=False ignores them. A column
    of row numbers in a table is left out. The command says what it found. A file without labels
    needs --n-clusters. Its clusters, in the row of largest score, are written to labels.csv, with
    the number of each point in the file from 0.

    **--method** takes a name of --list; a name with fixed settings, such as SSC:gamma=10 or
    SENet:device=cuda; or package.module:Class, installed or in the current folder. Your class needs
    fit_predict. If its fit sets coef_ (row i represents point i), the affinity steps apply. If it
    sets affinity_matrix_ alone, only the spectral step applies. With --preset, --method replaces
    the methods of the preset.

    **--auto** chooses method, affinity steps and setting together, without labels, for one DATA
    with labels or --n-clusters. Candidates are SSC, EnSC, LSR and LRSC with all their settings and
    steps, clustered by k-means but not by cluster-qr. Above 5,000 points, the methods LSR and LRSC
    and the steps low-rank, svd-power and softmax-rows are left out. --method and --affinity name
    other candidates; none of these is left out. The choice is the candidate whose clusters agree
    best with those of all candidates, by the mean adjusted Rand index; each candidate counts by the
    24th power of its score. The command prints the choice and the next best. It writes labels.csv
    (the number of each point in the whole data set, and its cluster), choice.json, candidates.csv
    and, up to 2,000 points, matrices.png: the coefficients of the best candidate of each of three
    methods. Labels only serve to tell the error of the choice, and to sort the figure.

    **--dask** clusters the points of one .npy file, which need not fit into memory, by one
    --method: SSC, SSC nonnegative or EnSC with fixed settings, by default SSC:gamma=50. ADDRESS is
    that of a Dask scheduler, such as tcp://host:8786, or local:N, for N processes on this machine.
    All machines must see the folder of --output under the same name. Workers read the points from
    it in parts, so that their memory does not grow with the number of points. Start them
    without a limit of memory, as Dask counts mapped files. If a worker is lost, another repeats
    its task. If the command is stopped, the same command goes on. The affinity is that of
    symmetrize, and k-means is mini-batched. The command prints time and private memory of each
    step, with the error if a .npy file of labels lies beside the points; its name is one of those
    above, or large.npy:target_key=mine.npy. It writes labels.npy, steps.csv and .tex, settings.json
    and summary.md; DIR/runs keeps all else.

    Without --auto and --dask, the command prints a row for each method, with the affinity steps of
    largest score; with --affinity, a row for each chain. All rows are in clusters.csv. A row has
    the clustering error in % (averaged over trials; mean, standard deviation and range over seeds),
    NMI, ARI and ME-3 (the connectivity of the worst true cluster: the second eigenvalue of its
    normalised Laplacian, 0 if the graph cuts it). The score needs no labels; it
    chooses one setting for all trials of a data set. A second table has time as a ratio to SSC in
    the same run, memory, certified gap, ME-2 (the mean share of a row of coefficients on points of
    other clusters) and, for methods that approximate a solved problem, the distance to its
    solution.

    DIR gets the table of each study, such as clusters.json.gz, its rows by all steps as .csv and
    .tex, settings.json, summary.md and figures as .png and .pdf: errors, and coefficients and
    affinities of the best methods, with points sorted by class. For `twinsolve report`,
    matrices.npz keeps these. The default of DIR ends in -PRESET with --preset, in -auto with
    --auto and in -dask with --dask. DIR/runs keeps finished jobs, so that an interrupted
    run can continue; DIR/runs/fits keeps fits, which serve any number of seeds. If a method fails
    on a problem, its row has the error in place of numbers, all other rows are complete, and the
    status is 1.
    """
    from dataclasses import replace

    import pandas as pd

    from ..jobs import Options
    from ..study import run_studies, write_studies
    from .clusters import CHOICE
    from .own_points import with_clusters, write_own
    from .presets import PRESETS, custom_study, find_preset

    if list_all:
        _print_names()
        return
    name = preset or ("quick" if not data and not method else None)
    kind = "dask" if dask else "auto" if auto else preset
    if kind and "output" not in given_names(context):
        output = output.with_name(f"cluster-{kind}")
    load_modules(load)
    if dask:
        others = {"auto", "preset", "seeds", "features", "affinity", "n_jobs", "data_home", "load"}
        refuse_others(context, "--dask", others)
        if data is None or len(data) != 1 or len(method or []) > 1:
            reason = "needs one file of points, and at most one --method"
            raise typer.BadParameter(reason, param_hint="--dask")
        _cluster_filed(data[0], method, n_clusters, dask, seed, output)
        return
    options = Options(seed, 1 if auto else seeds, n_jobs, data_home, output / "runs")
    if auto:
        refuse_others(context, "--auto", {"preset", "seeds"})
        if data is None or len(data) != 1 or len(features or []) > 1:
            reason = "needs one DATA to cluster, by at most one of --features"
            raise typer.BadParameter(reason, param_hint="--auto")
        named = {"methods": method, "features": (features or ["unit"])[0], "affinity": affinity}
        _cluster_unseen(data, n_clusters, named, options, output)
        return
    if name:
        others = {"data", "features", "affinity", "n_clusters"}
        refuse_others(context, f"--preset {name}", others)
    with report_mistakes(), present_folder():
        if name:
            studies, about = find_preset(name, method), PRESETS[name]["about"]
        else:
            data, about = with_clusters(data or [], n_clusters)
            studies = (custom_study(data, method, features=features, affinity=affinity),)
        console().print(about, soft_wrap=False)
        tables = run_studies(studies, options)
    settings = {
        "data": data, "methods": method, "features": features, "affinity": affinity,
        "preset": name, "seed": seed, "seeds": seeds,
    }  # fmt: skip
    title = "twinsolve cluster" + (f" --preset {name}" if name else "")
    if not (preset or affinity):
        studies = tuple(replace(study, in_place=CHOICE) for study in studies)
    write_studies(title, studies, tables, settings, output, about)
    if not name:
        with present_folder():
            said = write_own(tables["clusters"], options, output)
        console().print(*said, sep="\n", soft_wrap=False)
    notes = pd.concat([table.get("note", pd.Series(dtype=object)) for table in tables.values()])
    raise typer.Exit(code=int(notes.astype(str).str.startswith("failed").any()))


def _cluster_unseen(
    data: list[str],
    n_clusters: int | None,
    named: dict[str, Any],
    options: "Options",
    folder: Path,
) -> None:
    """Cluster one set of points; method, steps and setting are chosen without labels."""
    import warnings

    from ..tables import print_table
    from ..terminal import progress
    from . import auto
    from .own_points import draw_best, forget_own, with_clusters

    quiet = warnings.catch_warnings(action="ignore", category=UserWarning)
    with report_mistakes(), present_folder(), quiet:
        (name,), about = with_clusters(data, n_clusters)
        console().print(about, soft_wrap=False)
        chosen = auto.choose_clusters(
            name,
            **named,
            seed=options.seed,
            n_jobs=options.n_jobs,
            data_home=options.data_home,
            directory=options.directory,
            progress=progress("candidates"),
        )
    forget_own(folder)
    auto.write_choice(chosen, name, named["features"], options.seed, folder)
    with present_folder():
        draw_best(chosen.candidates, chosen.labels, options, folder / "matrices.png")
    print_table("The choice, and the next best", auto.choice_lines(chosen))
    sentences = [chosen.rule, *auto.list_left_out(chosen)]
    if chosen.warning:
        sentences.insert(0, f"Warning: {chosen.warning}.")
    if known := auto.errors_by_labels(chosen):
        sentences.append(
            "For information only, as labels tell it: the choice has an error of "
            f"{known['error']:.2f} %, the best candidate of {known['smallest_error']:.2f} %."
        )
    console().print("\n".join([*sentences, f"Written to {folder}/"]), soft_wrap=False)


def _cluster_filed(
    data: str,
    method: list[str] | None,
    n_clusters: int | None,
    address: str,
    seed: int,
    folder: Path,
) -> None:
    """Cluster one file of points on the workers of a Dask cluster."""
    from ..tables import Results
    from .filed_points import (
        METHOD,
        FiledPoints,
        Watch,
        cluster_filed,
        dask_workers,
        step_lines,
        write_labels,
    )

    name = (method or [METHOD])[0]
    with report_mistakes(TypeError):
        points = FiledPoints.open(data)
        with dask_workers(address, folder) as client:
            watch, runs = Watch(client), folder / "runs"
            labels, table = cluster_filed(points, name, n_clusters, seed, runs, watch)
    write_labels(labels, folder)
    settings = {
        "data": data,
        "method": name,
        "n_clusters": n_clusters,
        "dask": address,
        "seed": seed,
    }
    results = Results("twinsolve cluster --dask", settings, folder)
    results.add_table("Steps", step_lines(table), file="steps")
    results.add_sentences(["labels.npy holds the cluster of each point, in the order of the file."])
    results.write()


def _print_names() -> None:
    from .data import DATA
    from .features import ABOUT
    from .methods import METHODS
    from .presets import PRESETS
    from .steps import CUTS, STEPS

    groups: dict[str, dict[str, Any]] = {
        "Data": {name: source.about for name, source in DATA.items()},
        "Features": ABOUT,
        "Methods": {name: method.family for name, method in METHODS.items()},
        "Affinity steps": {name: step.about for name, step in STEPS.items()} | CUTS,
        "Presets": {name: preset["about"] for name, preset in PRESETS.items()},
    }
    for title, names in groups.items():
        table = Table(title=title, box=SIMPLE_HEAD, show_header=False, title_justify="left")
        for name, about in names.items():
            table.add_row(name, about)
        console().print(table)
