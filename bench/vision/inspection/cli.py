"""Command `twinsolve inspect`."""

from pathlib import Path
from typing import Annotated

import typer

from ...options import Output, report_mistakes
from ...terminal import progress


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
    from .measures import observe
    from .sources import find_source
    from .study import measure, random_layers

    with report_mistakes(LookupError):
        source = find_source(model, images=images, untrained=untrained)
        layers = observe(source.model, source.images)
        null = None if untrained else random_layers(model, images)
        table = measure(source, layers, null, progress=progress("Layers"))
    from ...tables import Results, write_table
    from .figures import draw_page, draw_training
    from .report import add_parts

    settings = {"model": model, "images": images, "weights": source.weights}
    results = Results("twinsolve inspect", settings, output)
    write_table(table, output)
    add_parts(results, table, f"{model}, {source.weights}; shown {source.shown}.")
    draw_page(table, layers, source, model, output)
    draw_training(source.metrics, output)
    results.write(["inspect", "training"])
    if (table.verdict == "broken").any():
        raise typer.Exit(code=1)


def _compare_models(models: list[str], images: str | None, untrained: bool, output: Path) -> None:
    from ...tables import Results, write_table
    from .comparison import comparison_parts, draw_comparison, measure_models

    with report_mistakes(LookupError):
        table, shown = measure_models(models, images, untrained, progress("Models"))
    settings = {"models": models, "images": images, "untrained": untrained}
    results = Results("twinsolve inspect", settings, output)
    write_table(table, output)
    results.add_sentences(shown)
    for title, lines in comparison_parts(table).items():
        results.add_table(title, lines)
    draw_comparison(table, output)
    results.write(["compare"])
