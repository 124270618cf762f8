"""The command `twinsolve denoise`."""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Column, Table

from ...names import as_options
from ...tables import markdown, number, write_lines, write_summary, write_table
from ...terminal import Load, Output, console, load_modules, progress

if TYPE_CHECKING:
    import pandas as pd

    from .images import NoisyImages


def denoise(
    images: Annotated[
        str,
        typer.Argument(
            metavar="IMAGES", help="photographs, set12, held-out, or a folder of pictures."
        ),
    ] = "photographs",
    method: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Run this method only; may be given again."),
    ] = None,
    sigma: Annotated[
        list[float] | None,
        typer.Option(min=0.1, help="Noise, in grey levels of 255 [25]; may be given again."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the noise.")] = 0,
    colour: Annotated[bool, typer.Option("--colour", help="Images in colour.")] = False,
    n_jobs: Annotated[int, typer.Option(help="Processes; -1 is all cores.")] = 1,
    data_home: Annotated[
        str | None, typer.Option(metavar="DIR", help="Data root [$TWINSOLVE_DATA].")
    ] = None,
    output: Output = Path("results/denoise"),
    load: Load = None,
    list_all: Annotated[bool, typer.Option("--list", help="List all names and end.")] = False,
) -> None:
    """Denoise images by solved methods and by networks that unroll them, and compare.

    IMAGES are photographs (the middles of two that come with scikit-learn), set12 (with its files
    in the data root), held-out (56 photographs that no network was trained on: the last 20 of
    train400, middles of 12 that scikit-image and scikit-learn come with, and every tenth test
    picture of CamVid), or a folder of pictures of your own, of which those that cannot be read or
    have a side under 16 pixels are left out. Colours become grey without --colour. White Gaussian
    noise is added, the same for every method.

    --method takes a name of --list; package.module:function, a function of your own of the noisy
    image and its noise level, both in grey levels of [0, 1]; or the folder of a run of
    train-denoiser. Kinds are solved (by the solvers of this package), peer (other packages, where
    installed), start (networks as they are made), trained (with weights that come with the package,
    for a noise of 25), and own. A method NAME, solver is the solver of the network NAME at the
    start, and equal to it; it runs where it is named.

    Settings of solved methods and peers were chosen on the last 20 images of train400, as those
    networks were validated; no image of Set12 served that.

    Prints of each method the mean PSNR and its range over the images, SSIM, processor seconds a
    megapixel, parameters, and operations a pixel; of each trained network how far it is from the
    best solved method or peer, paired by images, with a 95 % interval and a verdict that is
    corrected for the number of comparisons; the deviation of its first layers from its solver at
    the trained parameters; and of convex ones the certified distance to the minimiser. Writes
    table.json (a row for each method, image and noise), means.csv and .tex, settings.json,
    summary.md and figures as .png and .pdf: crops with the method noise, quality against time and
    parameters, dB after K layers, learned parameters, and filters. Finished images are kept in
    DIR/runs. Ends with code 1 if a picture was left out, a method failed on an image, a network at
    the start is not its solver's answer, or a trained one is not its solver's.
    """
    from .entries import method_names
    from .images import NoisyImages
    from .study import denoise as run

    load_modules(load)
    if list_all:
        for kind, names in method_names().items():
            for name in names:
                console().print(f"{kind:8} {name}", highlight=False)
        return
    if Path(images).is_dir() and output.resolve().is_relative_to(Path(images).resolve()):
        reason = f"{output} is inside the folder of pictures, and holds pictures"
        raise typer.BadParameter(reason, param_hint="--output")
    sigmas = list(dict.fromkeys(sigma or [25.0]))
    try:
        with warnings.catch_warnings(action="ignore", category=UserWarning):  # told below
            table = run(
                images, methods=method, sigmas=sigmas, seed=seed, colour=colour, n_jobs=n_jobs,
                data_home=data_home, directory=output / "runs", progress=progress("Denoising"),
            )  # fmt: skip
    except (FileNotFoundError, ImportError, ValueError) as error:
        raise typer.BadParameter(as_options(str(error))) from error
    given = NoisyImages(images, seed, data_home, colour)
    if not _report(table, given, output, sigmas, method):
        raise typer.Exit(code=1)


def _report(
    table: "pd.DataFrame",
    given: "NoisyImages",
    output: Path,
    sigmas: list[float],
    methods: list[str] | None,
) -> bool:
    """Write and print all; False if a picture or a number is missing, or two are not equal."""
    from ...figures import forget
    from .figures import draw_crops, draw_filters, draw_layers, draw_learned, draw_quality
    from .report import lines_of, means, note_on_pairs, paired_lines, remarks, starts
    from .routing import ROUTED, routed_lines
    from .verified import CHECKED, checked_lines, verify

    write_table(table, output)
    found, text = means(table), []
    for sigma in sigmas:
        head, rows = lines_of(found[found.sigma == sigma])
        title = f"{given.images}, noise {sigma:g}, means over {len(given.names)} images"
        _print(title, head, rows)
        name = "means" if len(sigmas) == 1 else f"means-{number(sigma, 'g')}"
        write_lines((head, rows), output / name)
        text += [f"## Noise {sigma:g}", "", *markdown(head, rows), ""]
        own = table[table.sigma == sigma]
        head, rows = paired_lines(own)
        if rows:
            title, note = f"Paired differences, noise {sigma:g}", note_on_pairs(own)
            _print(title, head, rows)
            console().print(note, soft_wrap=True)
            text += [f"### {title}", "", *markdown(head, rows), "", note, ""]
    for sentence in [*remarks(table), *(f"Left out: {reason}." for reason in given.left_out)]:
        console().print(sentence, soft_wrap=True)
        text += [sentence, ""]
    checks = verify(table, given)
    checked, routed = checked_lines(checks), routed_lines(table, given)
    for title, head, rows in (
        ("Trained networks against their solvers", CHECKED, checked),
        ("Codes of the router beside those of pursuit", ROUTED, routed),
    ):
        if rows:
            _print(title, head, rows)
            text += [f"## {title}", "", *markdown(head, rows), ""]
    first, drawn = sigmas[0], ("crops", "quality", "layers", "learned", "filters")
    for name in drawn:
        forget(output / f"{name}.png")
    draw_crops(table, given, output, sigma=first)
    draw_quality(table, output, sigma=first)
    draw_layers(table, given, output, sigma=first)
    draw_learned(table, output, sigma=first)
    draw_filters(table, output, sigma=first)
    text += [f"![{name}]({name}.png)" for name in drawn if (output / f"{name}.png").is_file()]
    settings = {
        "images": given.images, "methods": methods, "sigmas": sigmas, "seed": given.seed,
        "colour": given.colour,
    }  # fmt: skip
    write_summary("twinsolve denoise", text, settings, output)
    console().print(f"Written to {output}/")
    equal = starts(table).within.all() and all(row["passed"] for row in checks)
    return bool(equal and table.psnr.notna().all() and not given.left_out)


def _print(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table whose names, in the first column, are not cut, without columns that say nothing."""
    kept = [i for i in range(len(head)) if any(row[i] != "-" for row in rows)]
    shown = Table(*(Column(head[i], no_wrap=i == 0) for i in kept), title=title)
    for row in rows:
        shown.add_row(*(row[i] for i in kept))
    console().print(shown)
