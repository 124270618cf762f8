"""Command `twinsolve inspect`."""

from pathlib import Path
from typing import Annotated

import typer

from ...options import Output, report_mistakes
from ...terminal import progress


def inspect(
    models: Annotated[
        list[str] | None,
        typer.Argument(metavar="[MODEL]...", help="digits, digits-mixed, or folders [digits]."),
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

    ```
    twinsolve inspect digits
    twinsolve inspect results/classify/runs/networks/NAME --images my_pictures
    twinsolve inspect digits digits-mixed
    ```

    **MODEL** is one of

    - digits: a small transformer that comes with the package
    - digits-mixed: the same with another operator in each layer
    - the folder of a training run (settings.json and safetensors)
    - the folder of a ViT of Hugging Face or timm (config.json and model.safetensors)

    Without --images, a model trained on digits sees test digits, a model trained on a folder of
    pictures sees these, a run of twinsolve classify its test images, and others the two photographs
    of scikit-learn.

    Each layer runs in float64 at its trained parameters. It is compared with its solver on the
    queries, keys and values that reach it. The command measures over depth the similarity of
    tokens, their high frequencies beside the theorem's bound, energies, condition numbers with and
    without skip connection, spectra of the attention matrices, Jacobians, and learned parameters.
    For each head it names the classical problem whose solution C* on the same tokens is nearest.
    The same measures on permuted tokens, and for the network with random weights, show what chance
    explains.

    DIR gets table.json (a row for each layer, head and other part), settings.json, summary.md, and
    a page of figures as .png and .pdf; also training.png if a run kept condition numbers. The
    status is 1 if a part deviates by more than its tolerance.

    Several models are compared with each other, not with solvers or solutions C*. Then table.json
    has a row for each model and layer, with measures over depth and learned parameters, and
    compare.png a line for each model.
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
