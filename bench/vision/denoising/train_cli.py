"""The command `twinsolve train-denoiser`."""

import inspect
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...names import as_options, close_names, split_settings
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
    from ..recipe import Recipe
    from ..training import processes
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
        raise typer.BadParameter(as_options(str(error))) from error
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
