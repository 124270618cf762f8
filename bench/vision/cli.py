"""Commands `twinsolve classify`, `denoise`, `train-denoiser`, `inspect` and `segment`."""

import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from ..study_cli import (
    Against,
    DataHome,
    Device,
    ListAll,
    Processes,
    RecipeWords,
    RowNames,
    Seeds,
    Steps,
    list_rows,
    report_mistakes,
    study_options,
)
from ..terminal import Load, Output, console, load_modules, progress
from ..training_display import TrainingDisplay

_BESIDE_LIKE = ("like", "output", "data", "data_home", "device")
_BESIDE_NOISY = ("images", "noisy", "method", "sigma", "out", "load")


def classify(
    data: Annotated[
        str,
        typer.Argument(
            metavar="DATA", help="digits, cifar10, cifar10:n_train=10000, or a folder of classes."
        ),
    ] = "digits",
    row: RowNames = None,
    seeds: Seeds = 5,
    steps: Steps = None,
    recipe: RecipeWords = None,
    attack: Annotated[
        bool, typer.Option("--attack", help="Also test images attacked by FGSM and PGD.")
    ] = False,
    corruptions: Annotated[
        bool, typer.Option("--corruptions", help="Also test noisy, blurred and faint images.")
    ] = False,
    against: Against = None,
    n_jobs: Processes = 1,
    device: Device = "auto",
    data_home: DataHome = None,
    output: Output = Path("results/classify"),
    load: Load = None,
    list_all: ListAll = False,
) -> None:
    """Train classifiers that differ in one part, and compare them over paired seeds.

    DATA is digits (of scikit-learn) or cifar10 (from the data root), also with fewer training
    images, digits:n_train=300; or a folder that has a folder of pictures for each class, all of one
    size. If such folders lie in folders train, val and test, or in train and one of the others,
    these are the parts. Parts that are not given are drawn from the training pictures, a fifth
    each.

    A row is a name of --list, or an architecture with settings after a colon, such as
    ViT:operator=NAME,correction=twicing,residual=boosting,scale=FeatScale,attention_skip=False.
    A value may have further settings: token_graying=dct:eps=0.9, correction=neutreno:lam=0.4,
    operator=Local:radius=1. Architectures are ViT, Swin, CaiT, ConvMixer and SelfExpression, or a
    network of your own, package.module:Class:NAME=VALUE,..., installed or in the current folder. It
    returns a score for each class, and gets those of in_channels, num_classes and image_size that
    its constructor names. An operator is given by name; --load may register more.

    With one seed, all rows see the same batches and share the initial weights of common parts.
    Learning rate, number of steps and scale of positions of each row are chosen on validation
    images, among the same candidates. Other settings are those of the data set, or of
    --recipe: patch_size, dim, depth, num_heads, mlp_ratio, batch_size, weight_decay, warm_up,
    ema_decay, label_smoothing, drop_path, shift (pixels), flip, precision (float32 or bfloat16) and
    erasing, mixup, cutmix (shares of the images, and of the batches). torchrun --no-python
    twinsolve classify shares each batch between processes.

    Prints means over seeds, and differences to the row's backbone (softmax for rows of a ViT, CaiT
    for rows of a CaiT, symmetric for "symmetric + NeuTRENO") or to --against. They come with 95 %
    intervals over seeds and test images, verdicts corrected for the number of rows, the difference
    that such a run would find with 80 % power, and the claims of papers. Differences of the last
    tokens' cosine and condition number follow. Writes table.json (a line per row and seed),
    means.csv and .tex, settings.json, summary.md and figures as .png and .pdf. DIR/runs keeps
    finished and interrupted runs.
    """
    from ..devices import processes
    from ..tables import Report
    from .classification.report import write_report
    from .classification.study import IMAGES
    from .classification.study import classify as run

    load_modules(load)
    if list_all:
        list_rows(IMAGES)
        return
    if n_jobs != 1 and "TORCHELASTIC_RUN_ID" in os.environ:
        raise typer.BadParameter("torchrun has its own processes: leave --n-jobs at 1")
    first = os.environ.get("RANK", "0") == "0"
    settings = {
        "data": data, "row": row, "seeds": seeds, "steps": steps, "recipe": recipe,
        "attack": attack, "corruptions": corruptions, "against": against, "device": device,
    }  # fmt: skip
    with report_mistakes(), processes(device) as place:
        settings["device"] = str(place)
        options = study_options(settings, output, n_jobs)
        options |= {} if first else {"progress": None, "on_step": None}
        table = run(
            data, attack=attack, corruptions=corruptions, data_home=data_home, **options,
        )  # fmt: skip
    if first:
        write_report(table, Report("twinsolve classify", settings, output))


def train_denoiser(
    context: typer.Context,
    network: Annotated[
        str | None, typer.Argument(metavar="NETWORK", help="Class; settings follow a colon.")
    ] = None,
    sigma: Annotated[float, typer.Option(min=0.1, help="Noise, in grey levels of 255.")] = 25.0,
    minutes: Annotated[
        float | None, typer.Option(help="Budget of wall time [20 if --steps is not given].")
    ] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Number of steps.")] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Patches of a step.")] = 16,
    patch_size: Annotated[int, typer.Option(min=4, help="Side of a patch.")] = 48,
    learning_rate: Annotated[float, typer.Option(help="Highest learning rate.")] = 1e-3,
    precision: Annotated[
        str, typer.Option(help="float32, or bfloat16 if the device is fast at it.")
    ] = "float32",
    seed: Annotated[int, typer.Option(min=0, help="Seed of patches, noise and the network.")] = 0,
    data: Annotated[
        str, typer.Option(metavar="NAME", help="train400, or a folder of pictures.")
    ] = "train400",
    colour: Annotated[bool, typer.Option("--colour", help="Pictures of --data in colour.")] = False,
    device: Annotated[
        str, typer.Option(help="Device of torch; auto is a GPU if there is one.")
    ] = "auto",
    like: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Repeat the run of this folder.")
    ] = None,
    data_home: DataHome = None,
    output: Output = Path("results/train-denoiser"),
    load: Load = None,
) -> None:
    """Train a denoising network, which starts as the iterate of a classical method.

    NETWORK is a class of twinsolve.unrolled.models.denoisers; or package.module:Class, installed or
    in the current folder, which must keep the arguments of its constructor as attributes. Settings
    follow a colon: FilterDiffusionDenoiser:n_layers=5.

    The last 20 images of the data are not used for training: they measure the PSNR of the averaged
    weights. The number of steps that fit into --minutes is found once, at the start. The same
    command continues an interrupted run. torchrun --no-python twinsolve train-denoiser shares each
    batch between processes; OMP_NUM_THREADS sets torch's number of threads.

    Writes to DIR settings.json, metrics.jsonl, start.safetensors, weights.safetensors (averaged)
    and checkpoint.safetensors. --like FOLDER repeats a run from its settings, in as many processes;
    it only allows --output, --data-home, --device, and --data (if pictures were moved) beside it.
    """
    from ..devices import processes
    from ..recipe import Recipe
    from .denoising import training
    from .denoising.networks import build_network

    load_modules(load)
    if (network is None) == (like is None):
        raise typer.BadParameter("name one: NETWORK or --like FOLDER", param_hint="NETWORK")
    if like is not None:
        _refuse_others(context, "--like", _BESIDE_LIKE)
    options: dict[str, Any] = {
        "directory": output, "data_home": data_home,
        "progress": progress("Steps"), "on_validation": _print_validation,
    }  # fmt: skip
    try:
        with report_mistakes(), processes(device) as place:
            if like is not None:
                moved = data if "data" in _given_names(context) else None
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
    except FloatingPointError as error:
        console().print(f"Stopped: {error}", soft_wrap=True)
        raise typer.Exit(code=1) from error
    if os.environ.get("RANK", "0") == "0":
        console().print(f"Written to {output}/")


def _given_names(context: typer.Context) -> list[str]:
    """Parameters that stand on the command line."""
    return [
        name for name in context.params
        if getattr(context.get_parameter_source(name), "name", "") == "COMMANDLINE"
    ]  # fmt: skip


def _refuse_others(context: typer.Context, option: str, beside: Sequence[str]) -> None:
    if more := [name for name in _given_names(context) if name not in beside]:
        words = ", ".join(f"--{name.replace('_', '-')}" for name in more)
        raise typer.BadParameter(f"leaves no choice of {words}", param_hint=option)


def _print_validation(row: dict[str, Any]) -> None:
    loss = "-" if row["loss"] is None else f"{row['loss']:.4f}"
    console().print(
        f"step {row['step']} of {row['n_steps']}: {row['validation_db']:.3f} dB, loss {loss}, "
        f"rate {row['rate']:.2g}, {row['seconds']:.0f} s"
    )


def denoise(
    context: typer.Context,
    images: Annotated[
        str,
        typer.Argument(
            metavar="IMAGES",
            help="photographs, set12, held-out, or a folder of pictures; a picture with --noisy.",
        ),
    ] = "photographs",
    noisy: Annotated[
        bool, typer.Option("--noisy", help="Denoise one picture as it is, and save it.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="With --noisy: the picture to write [NAME-denoised beside it]."
        ),
    ] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Run this method only; may be given again. [with --noisy filter-diffusion]",
        ),
    ] = None,
    sigma: Annotated[
        list[float] | None,
        typer.Option(
            min=0.1,
            help="Noise, in grey levels of 255; may be given again. [25; with --noisy estimated]",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the noise.")] = 0,
    colour: Annotated[bool, typer.Option("--colour", help="Images in colour.")] = False,
    n_jobs: Processes = 1,
    data_home: DataHome = None,
    output: Output = Path("results/denoise"),
    load: Load = None,
    list_all: ListAll = False,
) -> None:
    """Add noise to images, denoise them by solved methods and by networks, and compare.

    With --noisy, IMAGES is one picture that is noisy already: twinsolve denoise photo.png --noisy
    denoises it as it is and writes photo-denoised.png, with the same bits and alpha. The noise is
    estimated unless --sigma gives it. Only --sigma, --method, --out and --load go with it. PNG,
    TIFF and JPEG are written; the picture itself is never overwritten.

    Otherwise IMAGES is photographs (the middles of the two of scikit-learn), set12 (from the data
    root), held-out (56 photographs on which no network was trained: the last 20 of train400, the
    middles of 12 of scikit-image and scikit-learn, and every tenth test picture of CamVid), or a
    folder of your own pictures. Pictures that cannot be read, or have a side under 16 pixels, are
    left out. Without --colour, pictures become grey. All methods get the same white Gaussian noise.

    --method takes a name of --list, or the short name of a trained network, such as
    filter-diffusion; package.module:function, your own function of the noisy image and the noise
    level, both in grey levels of [0, 1]; or the folder of a run of train-denoiser. Kinds are solved
    (by the solvers of this package), peer (other packages, if installed), start (networks before
    training), trained (with weights that come with the package, for a noise of 25, of
    FilterDiffusionDenoiser also of 50), and own. A method "NAME, solver" is the solver of
    the network NAME at the start, and gives the same result; it runs only if it is named.

    Settings of solved methods and peers were chosen on the last 20 images of train400, on which
    networks are validated too; no image of Set12 was used for that.

    Prints for each method the mean PSNR and its range over the images, SSIM, processor seconds per
    megapixel, parameters, and operations per pixel. Prints for each trained network its difference
    to the best solved method or peer, paired by images, with a 95 % interval and a verdict that is
    corrected for the number of comparisons; the deviation of its first layers from its solver at
    the trained parameters; and, if it is convex, the certified distance to the minimiser. Writes
    table.json (a row for each method, image and noise), means.csv and .tex, settings.json,
    summary.md and figures as .png and .pdf: crops with the errors, quality against time and
    parameters, dB after K layers, learned parameters, and filters. DIR/runs keeps finished images.
    Exits with status 1 if a picture was left out, a method failed on an image, or a network, at the
    start or trained, does not give its solver's answer.
    """
    from ..tables import Report
    from .denoising.methods import method_names
    from .denoising.report import write_report
    from .denoising.study import NoisyImages
    from .denoising.study import denoise as run

    load_modules(load)
    if list_all:
        for kind, names in method_names().items():
            for name in names:
                console().print(f"{kind:8} {name}", highlight=False)
        return
    if noisy:
        _refuse_others(context, "--noisy", _BESIDE_NOISY)
        _denoise_picture(Path(images), method or [], sigma or [], out)
        return
    if out is not None:
        raise typer.BadParameter("needs --noisy; --output is for other results", param_hint="--out")
    if Path(images).is_file():
        reason = f"{images} is one picture: --noisy denoises it as it is; or name its folder"
        raise typer.BadParameter(reason, param_hint="IMAGES")
    if Path(images).is_dir() and output.resolve().is_relative_to(Path(images).resolve()):
        reason = f"{output} is inside the folder of pictures, and holds pictures"
        raise typer.BadParameter(reason, param_hint="--output")
    sigmas = list(dict.fromkeys(sigma or [25.0]))
    with report_mistakes(), warnings.catch_warnings(action="ignore", category=UserWarning):
        table = run(  # its warnings are in the report
            images, methods=method, sigmas=sigmas, seed=seed, colour=colour, n_jobs=n_jobs,
            data_home=data_home, directory=output / "runs", progress=progress("Denoising"),
        )  # fmt: skip
    given = NoisyImages(images, seed, data_home, colour)
    settings = {
        "images": images, "methods": method, "sigmas": sigmas, "seed": seed, "colour": colour,
    }  # fmt: skip
    if not write_report(table, given, sigmas, Report("twinsolve denoise", settings, output)):
        raise typer.Exit(code=1)


def _denoise_picture(path: Path, methods: list[str], sigmas: list[float], out: Path | None) -> None:
    from .denoising.pictures import denoise_file

    for given, option in ((methods, "--method"), (sigmas, "--sigma")):
        if len(given) > 1:
            raise typer.BadParameter("give one with --noisy", param_hint=option)
    if not path.is_file():
        raise typer.BadParameter(f"{path} is no file of a picture", param_hint="IMAGES")
    options: dict[str, Any] = {"method": methods[0]} if methods else {}
    with report_mistakes():
        found, seconds, written = denoise_file(path, out, sigma=next(iter(sigmas), None), **options)
    level = "" if found.trained_for is None else f" at {found.trained_for:g}"
    console().print(
        f"Noise: {found.sigma:.1f} of 255, {'estimated' if found.estimated else 'given'}\n"
        f"Method: {found.method if found.denoised else 'none, as there is no noise'}{level}\n"
        f"Time: {seconds:.1f} s\nWritten to {written}",
        soft_wrap=True, highlight=False, markup=False,
    )  # fmt: skip


def inspect(
    models: Annotated[
        list[str] | None,
        typer.Argument(metavar="[MODEL]...", help="digits, digits-mixed, or folders.  [digits]"),
    ] = None,
    images: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="Pictures to show to the model.")
    ] = None,
    untrained: Annotated[
        bool, typer.Option("--untrained", help="Inspect the model before training.")
    ] = False,
    output: Output = Path("results/inspect"),
) -> None:
    """Look inside a vision transformer, and compare each layer with its solver.

    MODEL is digits, a small transformer that comes with the package; digits-mixed, the same with
    another operator in each layer; the folder of a training run (settings.json and safetensors); or
    the folder of a ViT of Hugging Face or timm (config.json and model.safetensors). A model that
    was trained on digits sees test digits, a model trained on a folder of pictures sees these, a
    run of twinsolve classify its test images, and others the two photographs of scikit-learn.

    Each layer runs in float64 at its trained parameters and is compared with its solver on the
    queries, keys and values that reach it. Measured over depth are the similarity of tokens, their
    high frequencies beside the theorem's bound, energies, condition numbers with and without skip
    connection, spectra of the attention matrices, Jacobians, and learned parameters. Each head is
    compared with the solutions C* of classical problems on the same tokens, and the nearest one is
    named. The same on permuted tokens, and for the network with random weights, shows what chance
    explains.

    Writes table.json (a row for each layer, head and other part), settings.json, summary.md, and a
    page of figures as .png and .pdf; also training.png if a run kept condition numbers. Exits with
    status 1 if a part deviates by more than its tolerance.

    Several models are compared with each other: table.json has a row for each model and layer, with
    measures over depth and learned parameters, and compare.png a line for each model. They are not
    compared with solvers, nor heads with C*.
    """
    if models and len(models) > 1:
        _compare_models(models, images, untrained, output)
    else:
        _inspect_model((models or ["digits"])[0], images, untrained, output)


def _inspect_model(model: str, images: str | None, untrained: bool, output: Path) -> None:
    from .inspection.measures import observe
    from .inspection.sources import find_source
    from .inspection.study import measure, random_layers

    with report_mistakes(LookupError):
        source = find_source(model, images=images, untrained=untrained)
        layers = observe(source.model, source.images)
        null = None if untrained else random_layers(model, images)
        table = measure(source, layers, null, progress=progress("Layers"))
    from ..tables import Report, write_table
    from .inspection.figures import draw_page, draw_training
    from .inspection.report import add_parts

    settings = {"model": model, "images": images, "weights": source.weights}
    report = Report("twinsolve inspect", settings, output)
    write_table(table, output)
    add_parts(report, table, f"{model}, {source.weights}; shown {source.shown}.")
    draw_page(table, layers, source, model, output)
    draw_training(source.metrics, output)
    report.write(["inspect", "training"])
    if not table.passed.dropna().all():
        raise typer.Exit(code=1)


def _compare_models(models: list[str], images: str | None, untrained: bool, output: Path) -> None:
    from ..tables import Report, write_table
    from .inspection.comparison import comparison_parts, draw_comparison, measure_models

    with report_mistakes(LookupError):
        table, shown = measure_models(models, images, untrained, progress("Models"))
    settings = {"models": models, "images": images, "untrained": untrained}
    report = Report("twinsolve inspect", settings, output)
    write_table(table, output)
    report.add_sentences(shown)
    for title, lines in comparison_parts(table).items():
        report.add_table(title, lines)
    draw_comparison(table, output)
    report.write(["compare"])


def segment(
    model: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Train this model only; may be given again."),
    ] = None,
    n_seeds: Annotated[int, typer.Option(min=1, help="Runs of each model.")] = 3,
    seed: Annotated[int, typer.Option(min=0, help="The first seed.")] = 0,
    steps: Annotated[int, typer.Option(min=1, help="Steps of training.")] = 800,
    n_jobs: Processes = 1,
    device: Device = "auto",
    data_home: DataHome = None,
    output: Output = Path("results/segment"),
    load: Load = None,
) -> None:
    """Segment road scenes (CamVid) by small transformers with several attentions, and compare.

    Models are plain, NeuTRENO, bilateral, GRC, twicing, bilateral + GRC, symmetric, symmetric +
    NeuTRENO, or the name of an operator of twinsolve.unrolled. With one seed, all models see the
    same pictures in the same order. Paired differences to plain have 95 % intervals over seeds and
    test pictures, and verdicts that are corrected for their number. Pixels without a label are not
    counted.

    Prints the mean intersection over union (IoU) of the test pictures at one scale and over three,
    the share of correct pixels, parameters and processor time. Writes to DIR table.json, models.csv
    and .tex, settings.json, summary.md, scenes and quality as .png and .pdf, and a folder for each
    run (settings, metrics, weights), from which an interrupted command continues.
    """
    from ..devices import find_device
    from ..tables import Report
    from .segmentation import segment as run
    from .segmentation_report import write_report

    load_modules(load)
    display = TrainingDisplay(["all seeds"])
    with report_mistakes():
        table = run(
            model, n_seeds=n_seeds, seed=seed, n_steps=steps, n_jobs=n_jobs, data_home=data_home,
            device=device, directory=output, progress=display,
            on_step=display.on_step if n_jobs == 1 else None,
        )  # fmt: skip
    settings = {
        "models": model, "n_seeds": n_seeds, "seed": seed, "steps": steps,
        "device": str(find_device(device)),
    }  # fmt: skip
    write_report(table, Report("twinsolve segment", settings, output), data_home=data_home)
