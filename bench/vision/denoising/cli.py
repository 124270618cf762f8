"""The commands `twinsolve denoise` and `twinsolve train-denoiser`."""

import inspect
import os
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...names import close_names, split_settings
from ...tables import Report
from ...terminal import Load, Output, console, load_modules, progress

if TYPE_CHECKING:
    from torch import nn

_BUILT_IN = "twinsolve.unrolled.models.denoisers"
_BESIDE_LIKE = ("like", "output", "data", "data_home", "device")


def train_denoiser(
    context: typer.Context,
    network: Annotated[
        str | None, typer.Argument(metavar="NETWORK", help="Class, with settings after a colon.")
    ] = None,
    sigma: Annotated[float, typer.Option(min=0.1, help="Noise, in grey levels of 255.")] = 25.0,
    minutes: Annotated[
        float | None, typer.Option(help="Budget of wall time [20, without --steps].")
    ] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Number of steps.")] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Patches of a step.")] = 16,
    patch_size: Annotated[int, typer.Option(min=4, help="Side of a patch.")] = 48,
    learning_rate: Annotated[float, typer.Option(help="Highest learning rate.")] = 1e-3,
    precision: Annotated[
        str, typer.Option(help="float32, or bfloat16 where it helps.")
    ] = "float32",
    seed: Annotated[int, typer.Option(min=0, help="Seed of patches, noise and the network.")] = 0,
    data: Annotated[
        str, typer.Option(metavar="NAME", help="train400, or a folder of pictures.")
    ] = "train400",
    colour: Annotated[bool, typer.Option("--colour", help="Pictures of --data in colour.")] = False,
    device: Annotated[str, typer.Option(help="Device of torch.")] = "cpu",
    like: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Repeat the run of this folder.")
    ] = None,
    data_home: Annotated[
        str | None, typer.Option(metavar="DIR", help="Data root [$TWINSOLVE_DATA].")
    ] = None,
    output: Output = Path("results/train-denoiser"),
    load: Load = None,
) -> None:
    """Train a denoising network, from the classical iterate at which it starts.

    NETWORK is a class of twinsolve.unrolled.models.denoisers, or package.module:Class in the
    present folder or installed, which then has to keep the arguments of its constructor as
    attributes. Settings follow a colon: FilterDiffusionDenoiser:n_layers=5.

    The last 20 images of the data are kept apart and tell the PSNR of the averaged weights. Steps
    that fit into --minutes are counted once, at the start. The same command goes on where an
    interrupted run stopped. torchrun --no-python twinsolve train-denoiser shares each batch between
    processes; torch's number of threads is that of OMP_NUM_THREADS.

    Writes to DIR settings.json, metrics.jsonl, start.safetensors, weights.safetensors (averaged)
    and checkpoint.safetensors. --like FOLDER repeats a run from its settings, in as many processes,
    and takes nothing else but --output, --data-home, --device, and --data if pictures were moved.
    """
    from ..training import Recipe, processes
    from . import training

    load_modules(load)
    if (network is None) == (like is None):
        raise typer.BadParameter("name one: NETWORK or --like FOLDER", param_hint="NETWORK")
    given = [
        name for name in context.params
        if getattr(context.get_parameter_source(name), "name", "") == "COMMANDLINE"
    ]  # fmt: skip
    if like is not None and (more := [name for name in given if name not in _BESIDE_LIKE]):
        words = ", ".join(f"--{name.replace('_', '-')}" for name in more)
        raise typer.BadParameter(f"leaves no choice of {words}", param_hint="--like")
    options: dict[str, Any] = {
        "directory": output, "data_home": data_home,
        "progress": progress("Steps"), "report": _tell,
    }  # fmt: skip
    try:
        with processes(device) as place:
            if like is not None:
                moved = data if "data" in given else None
                training.repeat_training(like, data=moved, device=place, **options)
            else:
                recipe = Recipe(
                    n_steps=steps,
                    minutes=20.0 if minutes is None and steps is None else minutes,
                    batch_size=batch_size, learning_rate=learning_rate, precision=precision,
                    seed=seed,
                )  # fmt: skip
                training.train_denoiser(
                    build_network(str(network), sigma=sigma / 255, seed=seed).to(place),
                    sigma=sigma / 255, recipe=recipe, patch_size=patch_size, data=data,
                    colour=colour, **options,
                )  # fmt: skip
    except (FileNotFoundError, ImportError, ValueError) as error:
        raise typer.BadParameter(str(error)) from error
    except FloatingPointError as error:
        console().print(f"Stopped: {error}", soft_wrap=True)
        raise typer.Exit(code=1) from error
    if os.environ.get("RANK", "0") == "0":
        console().print(f"Written to {output}/")


def build_network(name: str, *, sigma: float, seed: int = 0) -> "nn.Module":
    """A network by ``Class``, ``Class:name=value`` or ``package.module:Class:name=value``.

    Raises
    ------
    ValueError
        If there is none of that name, or it refuses its settings.
    """
    import torch

    from ..run_folder import find_class

    head, _, rest = name.partition(":")
    if "=" in rest.partition(":")[0] or not rest:
        _check_built_in(head)
        path, words = f"{_BUILT_IN}:{head}", rest
    else:
        word, _, words = rest.partition(":")
        path = f"{head}:{word}"
    found = find_class(path)
    settings = split_settings(f":{words}", "network")[1]
    if "sigma" in inspect.signature(found).parameters:
        settings = {"sigma": sigma, **settings}
    torch.manual_seed(seed)
    try:
        return found(**settings)
    except (TypeError, ValueError) as error:
        raise ValueError(f"network: cannot make {name!r}: {error}") from error


def _check_built_in(name: str) -> None:
    from importlib import import_module

    known = import_module(_BUILT_IN).__all__
    if name not in known:
        raise ValueError(
            f"network: must be package.module:Class or among {', '.join(known)}; got {name!r}"
            f"{close_names(name, known)}"
        )


def _tell(row: dict[str, Any]) -> None:
    """A line for each validation."""
    loss = "-" if row["loss"] is None else f"{row['loss']:.4f}"
    console().print(
        f"step {row['step']} of {row['n_steps']}: {row['validation_db']:.3f} dB, loss {loss}, "
        f"rate {row['rate']:.2g}, {row['seconds']:.0f} s"
    )


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
        raise typer.BadParameter(str(error)) from error
    given = NoisyImages(images, seed, data_home, colour)
    settings = {
        "images": images, "methods": method, "sigmas": sigmas, "seed": seed, "colour": colour,
    }  # fmt: skip
    if not write_report(table, given, sigmas, Report("twinsolve denoise", settings, output)):
        raise typer.Exit(code=1)
