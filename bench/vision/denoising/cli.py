"""The command `twinsolve denoise`."""

import warnings
from pathlib import Path
from typing import Annotated

import typer

from ...names import as_options
from ...tables import Report
from ...terminal import Load, Output, console, load_modules, progress


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
    from .figures import write_report
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
    settings = {
        "images": images, "methods": method, "sigmas": sigmas, "seed": seed, "colour": colour,
    }  # fmt: skip
    if not write_report(table, given, sigmas, Report("twinsolve denoise", settings, output)):
        raise typer.Exit(code=1)
