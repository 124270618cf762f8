"""Commands `twinsolve denoise` and `twinsolve train-denoiser`."""

import os
import warnings
from pathlib import Path
from typing import Annotated, Any

import typer

from ...options import (
    DATA,
    SIGMA,
    Colour,
    DataHome,
    Device,
    Jobs,
    ListAll,
    Load,
    Methods,
    Output,
    Seed,
    Steps,
    given_names,
    load_modules,
    refuse_others,
    report_mistakes,
)
from ...terminal import LONG, console, progress, write_time

_SIGMA = 25.0
_BESIDE_LIKE = {"like", "output", "data", "data_home", "device"}
_BESIDE_NOISY = {"images", "noisy", "method", "sigma", "mask", "save", "load", "output"}


def denoise(
    context: typer.Context,
    images: Annotated[
        str,
        typer.Argument(
            metavar="IMAGES",
            help="photographs, set12, held-out, or a folder; with --noisy, a picture or .npy file.",
        ),
    ] = "photographs",
    noisy: Annotated[
        bool, typer.Option("--noisy", help="Denoise one picture as it is, and save it.")
    ] = False,
    save: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="With --noisy: save here [NAME-denoised beside the picture]."
        ),
    ] = None,
    method: Methods = None,
    sigma: Annotated[
        list[float] | None,
        typer.Option(min=0.1, help=SIGMA),
    ] = None,
    mask: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH", help="Folder of masks; with --noisy, one. Dark pixels are holes."
        ),
    ] = None,
    seed: Seed = 0,
    colour: Colour = False,
    n_jobs: Jobs = 1,
    data_home: DataHome = None,
    output: Output = Path("results/denoise"),
    load: Load = None,
    list_all: ListAll = False,
) -> None:
    """Add noise to images, denoise them by solved methods and by networks, and compare.

    ```
    twinsolve denoise --list
    twinsolve denoise my_pictures --method "non-local means" --sigma 50
    twinsolve denoise photo.png --noisy
    twinsolve denoise scan.npy --noisy
    ```

    **With --noisy**, IMAGES is one picture that is noisy already. The command denoises it and
    writes photo-denoised.png, with the same bits and alpha. It estimates the noise unless --sigma
    gives it, and takes filter-diffusion unless --method names another method. It writes PNG, TIFF,
    JPEG and .npy, and never overwrites the picture itself. Only --sigma, --method, --mask, --save,
    --load and --output go with it: --output DIR is for `twinsolve report`, and gets a summary and
    the picture before and after.

    **A .npy file** holds a picture or a volume: uint8, uint16, or floating point in [0, 1]. Two
    axes are grey (height, width). Three axes are a picture with channels (height, width, channels)
    if the last has four entries or fewer; else they are a volume (depth, height, width) of five
    slices or more. Filters take volumes: non-local means (the choice with --noisy), bilateral,
    Gaussian and boosting, two peers and functions of yours.

    **Otherwise IMAGES** is one of

    - photographs: the middles of the two of scikit-learn
    - set12, from --data-home
    - held-out: 56 photographs on which no network was trained (the last 20 of train400, the middles
      of 12 of scikit-image and scikit-learn, and every tenth test picture of CamVid)
    - a folder of your own pictures, without those that cannot be read or have a side under 16
      pixels; a folder without pictures may hold .npy files

    Without --colour, pictures become grey. All methods get the same white Gaussian noise, of 25 or
    of each --sigma.

    **--mask** names a folder with a picture for each image, of the same name and size; with --noisy
    it is one picture. Pixels darker than half are holes: no method sees them, and dB and SSIM leave
    them out. Masks in .npy files hold bool, or zeros in holes and ones elsewhere. Non-local means
    (the choice with --noisy), bilateral and total variation take holes.

    **--method** takes a name of --list; the short name of a trained network, such as
    filter-diffusion; package.module:function, your own function of the noisy image and the noise
    level, both in grey levels of [0, 1]; or the folder of a run of train-denoiser. Methods are of
    these kinds:

    - solved: solvers of this package
    - peer: other packages, if installed
    - start: networks before training
    - trained: networks with weights that come with the package, for a noise of 25
      (FilterDiffusionDenoiser also for 50, NoiseLevelDiffusionDenoiser for all)
    - own: methods of yours

    The method "NAME, solver" is the solver of the untrained network NAME and gives the same result;
    it runs only if it is named. Settings of solved methods and peers were chosen on the last 20
    images of train400, which also validate networks; no image of Set12 was used for that.

    The command prints for each method the mean PSNR and its range over the images, SSIM, processor
    seconds per megapixel, parameters, and operations per pixel. For each trained network it prints

    - its difference to the best solved method or peer, paired by images, with a 95 % interval and a
      verdict that is corrected for the number of comparisons
    - the deviation of its first layers from its solver at the trained parameters
    - if it is convex, the certified distance to the minimiser

    DIR gets table.json (a row for each method, image and noise), means.csv and .tex, settings.json,
    summary.md and figures as .png and .pdf: crops with the errors, quality against time and
    parameters, dB after K layers, learned parameters, and filters. DIR/runs keeps finished images.
    The status is 1 if a picture was left out, a method failed on an image, or a network, at the
    start or trained, does not give its solver's answer.
    """
    from ...jobs import Options
    from ...study import run_studies, write_studies
    from .methods import method_names
    from .report import denoising_study, is_sound, verify, with_checks
    from .study import NoisyImages

    load_modules(load)
    if list_all:
        for kind, names in method_names().items():
            for name in names:
                console().print(f"{kind:8} {name}", highlight=False)
        return
    if noisy:
        refuse_others(context, "--noisy", context.params.keys() - _BESIDE_NOISY)
        kept = output if "output" in given_names(context) else None
        _denoise_picture(Path(images), method or [], sigma or [], save, mask, kept)
        return
    if save is not None:
        raise typer.BadParameter("needs --noisy; --output is for tables", param_hint="--save")
    if Path(images).is_file():
        reason = f"{images} is one picture: --noisy denoises it as it is; or name its folder"
        raise typer.BadParameter(reason, param_hint="IMAGES")
    if Path(images).is_dir() and output.resolve().is_relative_to(Path(images).resolve()):
        reason = f"{output} is inside the folder of pictures, and holds pictures"
        raise typer.BadParameter(reason, param_hint="--output")
    sigmas = list(dict.fromkeys(sigma or [_SIGMA]))
    given = NoisyImages(images, seed, data_home, colour, None if mask is None else str(mask))
    with report_mistakes(), warnings.catch_warnings(action="ignore", category=UserWarning):
        options = Options(seed, 1, n_jobs, data_home, output / "runs", progress("Denoising"))
        study = denoising_study(given, sigmas, method)
        ((name, table),) = run_studies([study], options).items()
    settings = {
        "images": images, "methods": method, "sigmas": sigmas, "seed": seed, "colour": colour,
        "mask": given.mask,
    }  # fmt: skip
    checks = verify(table, given)
    study = with_checks(study, checks)
    write_studies("twinsolve denoise", [study], {name: table}, settings, output)
    if not is_sound(table, given, checks):
        raise typer.Exit(code=1)


def _denoise_picture(
    path: Path,
    methods: list[str],
    sigmas: list[float],
    save: Path | None,
    mask: Path | None,
    output: Path | None,
) -> None:
    from .pictures import denoise_file, expect_holes

    for given, option in ((methods, "--method"), (sigmas, "--sigma")):
        if len(given) > 1:
            raise typer.BadParameter("give one with --noisy", param_hint=option)
    if not path.is_file():
        raise typer.BadParameter(f"{path} is not a picture file", param_hint="IMAGES")
    if mask is not None and mask.is_dir():
        reason = f"with --noisy it is one picture, but {mask} is a folder"
        raise typer.BadParameter(reason, param_hint="--mask")
    method, sigma = next(iter(methods), None), next(iter(sigmas), None)
    with report_mistakes():
        if mask is not None:
            _announce_holes(*expect_holes(mask, method))
        found, seconds, written = denoise_file(
            path, save, sigma=sigma, mask=mask, method=method, progress=progress("Denoising")
        )
    level = "" if found.trained_for is None else f" at {found.trained_for:g}"
    console().print(
        f"Noise: {found.sigma:.1f} of 255, {'estimated' if found.estimated else 'given'}\n"
        f"Method: {found.method if found.denoised else 'none, as there is no noise'}{level}\n"
        f"Time: {seconds:.1f} s\nWritten to {written}",
        soft_wrap=True, highlight=False,
    )  # fmt: skip
    if output is not None:
        from .report import write_picture_report

        settings = {
            "images": str(path), "noisy": True, "method": method, "sigma": sigma,
            "mask": None if mask is None else str(mask), "save": str(written),
        }  # fmt: skip
        write_picture_report(path, written, found, seconds, settings, output)


def _announce_holes(reach: int, seconds: float) -> None:
    if seconds >= LONG:
        console().print(
            f"Windows reach {reach} pixels, across the largest hole: about {write_time(seconds)}. "
            "What needs no filling may stay valid in the mask.",
            soft_wrap=True, highlight=False,
        )  # fmt: skip


def train_denoiser(
    context: typer.Context,
    network: Annotated[
        str | None,
        typer.Argument(metavar="NETWORK", help="Class of the network; settings follow a colon."),
    ] = None,
    sigma: Annotated[
        list[float] | None,
        typer.Option(min=0.1, help=SIGMA),
    ] = None,
    minutes: Annotated[
        float | None, typer.Option(help="Train for this long [20, if --steps is not given].")
    ] = None,
    steps: Steps = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Number of patches in a step.")] = 16,
    patch_size: Annotated[int, typer.Option(min=4, help="Side of a patch.")] = 48,
    learning_rate: Annotated[float, typer.Option(help="Highest learning rate.")] = 1e-3,
    precision: Annotated[
        str, typer.Option(help="float32, or bfloat16 if the device is fast at it.")
    ] = "float32",
    seed: Seed = 0,
    data: Annotated[str, typer.Option(metavar="NAME", help=DATA)] = "train400",
    colour: Colour = False,
    device: Device = "auto",
    like: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Repeat the run of this folder.")
    ] = None,
    data_home: DataHome = None,
    output: Output = Path("results/train-denoiser"),
    load: Load = None,
) -> None:
    """Train a denoising network that starts as a few steps of a classical method.

    ```
    twinsolve train-denoiser FilterDiffusionDenoiser --data my_pictures
    twinsolve train-denoiser --like results/train-denoiser --output again
    ```

    **--sigma**, given twice, is the lowest and the highest noise of the patches, for a network that
    takes the noise level, network(noisy, sigma), such as NoiseLevelDiffusionDenoiser.

    **NETWORK** is a class of twinsolve.unrolled.models.denoisers, with settings after a colon; or a
    class of yours, package.module:Class, installed or in the current folder. Yours must keep the
    arguments of its constructor as attributes.

    **--data** is train400 or a folder of pictures. The last 20 images are not used for training:
    they measure the PSNR of the averaged weights. The command measures once, at the start, how many
    steps fit into --minutes. The same command continues an interrupted run. To share each batch
    between processes, type torchrun --no-python twinsolve train-denoiser; OMP_NUM_THREADS sets
    torch's number of threads.

    **--like FOLDER** repeats a run from its settings, in as many processes. Beside it only
    --output, --data-home, --device, and --data (if pictures were moved) are allowed.

    DIR gets settings.json, metrics.jsonl, start.safetensors, weights.safetensors (averaged) and
    checkpoint.safetensors.
    """
    from ...devices import processes
    from ...recipe import Recipe
    from ..denoising import training
    from .networks import build_network

    load_modules(load)
    if (network is None) == (like is None):
        raise typer.BadParameter("name one: NETWORK or --like FOLDER", param_hint="NETWORK")
    if like is not None:
        refuse_others(context, "--like", context.params.keys() - _BESIDE_LIKE)
    own, levels = _training_levels([level / 255 for level in sigma or [_SIGMA]])
    options: dict[str, Any] = {
        "directory": output, "data_home": data_home,
        "progress": progress("Steps"), "on_validation": _print_validation,
    }  # fmt: skip
    try:
        with report_mistakes(), processes(device) as place:
            if like is not None:
                moved = data if "data" in given_names(context) else None
                training.repeat_training(like, data=moved, device=place, **options)
            else:
                recipe = Recipe(
                    n_steps=steps,
                    minutes=20.0 if minutes is None and steps is None else minutes,
                    batch_size=batch_size, learning_rate=learning_rate, precision=precision,
                    seed=seed,
                )  # fmt: skip
                training.train_denoiser(
                    build_network(str(network), sigma=own, seed=seed).to(place),
                    sigma=levels, recipe=recipe, patch_size=patch_size, data=data,
                    colour=colour, **options,
                )  # fmt: skip
    except FloatingPointError as error:
        console().print(f"Stopped: {error}", soft_wrap=True)
        raise typer.Exit(code=1) from error
    if os.environ.get("RANK", "0") == "0":
        console().print(f"Written to {output}/")


def _training_levels(sigmas: list[float]) -> tuple[float, float | tuple[float, float]]:
    """The noise level of the network, and that of training or its range."""
    if len(sigmas) == 1:
        return sigmas[0], sigmas[0]
    if len(sigmas) > 2:
        reason = f"give one level, or the lowest and the highest; got {len(sigmas)}"
        raise typer.BadParameter(reason, param_hint="--sigma")
    return _SIGMA / 255, (sigmas[0], sigmas[1])


def _print_validation(row: dict[str, Any]) -> None:
    loss = "-" if row["loss"] is None else f"{row['loss']:.4f}"
    console().print(
        f"step {row['step']} of {row['n_steps']}: {row['validation_db']:.3f} dB, loss {loss}, "
        f"rate {row['rate']:.2g}, {row['seconds']:.0f} s"
    )
