"""The command `twinsolve inspect`."""

from pathlib import Path
from typing import Annotated

import typer

from ...tables import Report, write_table
from ...terminal import Output, progress


def inspect(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="digits, digits-mixed, or a folder.")
    ] = "digits",
    images: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="Pictures to show to the model.")
    ] = None,
    untrained: Annotated[
        bool, typer.Option("--untrained", help="The model as it was before training.")
    ] = False,
    output: Output = Path("results/inspect"),
) -> None:
    """Look inside a vision transformer, and hold each layer against its solver.

    MODEL is digits, a small transformer that comes with the package; digits-mixed, the same with
    another operator in each layer; the folder of a training run (settings.json and safetensors); or
    that of a ViT of Hugging Face or timm (config.json and model.safetensors). It is shown test
    digits if it was trained on digits, the folder of pictures that it was trained on, or the two
    photographs of scikit-learn.

    Each layer is run in float64 at its trained parameters and compared with its solver on the
    queries, keys and values that reach it. Measured over depth are how alike tokens become, their
    high frequencies beside the theorem's bound, energies, condition numbers with and without skip
    connection, spectra of the attention matrices, Jacobians, and learned parameters. Each head is
    held beside solutions C* of classical problems on the same tokens, and the nearest is named; so
    is each on permuted tokens, and of the network with random weights, as what chance explains.

    Writes table.json (a row for each layer, head and other part), settings.json, summary.md, and a
    page of figures as .png and .pdf; training.png as well, where a run kept condition numbers. The
    exit code is 1 if a part deviates more than its tolerance.
    """
    from .measures import observe
    from .sources import find_source
    from .study import measure, random_layers

    try:
        source = find_source(model, images=images, untrained=untrained)
        layers = observe(source.model, source.images)
        null = None if untrained else random_layers(model, images)
        table = measure(source, layers, null, progress=progress("Layers"))
    except (FileNotFoundError, LookupError, ValueError) as error:
        raise typer.BadParameter(str(error)) from error
    from .figures import draw_page, draw_training
    from .report import add_parts

    report = Report(
        "twinsolve inspect",
        {"model": model, "images": images, "weights": source.weights},
        output,
    )
    write_table(table, output)
    add_parts(report, table, f"{model}, {source.weights}; shown {source.shown}.")
    draw_page(table, layers, source, model, output)
    draw_training(source.metrics, output)
    report.write(["inspect", "training"])
    if not table.passed.dropna().all():
        raise typer.Exit(code=1)
