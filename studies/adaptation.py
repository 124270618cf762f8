"""A trained plain network that becomes each row and is trained on, against itself trained on.

``python studies/adaptation.py`` trains them as ``twinsolve classify`` does.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from shared.script import run_script

from twinsolve.bench.comparison import (
    BLANK,
    CLEAR,
    INTERVAL,
    OPEN,
    baselines_of,
    draw_intervals,
    name_baseline,
)
from twinsolve.bench.figures import legend, panels, plain, save
from twinsolve.bench.jobs import Options, run_jobs
from twinsolve.bench.paired import COMPARED, judge, note_on_verdicts
from twinsolve.bench.paired_training import contents, placed, recipe_of, train_kept, trained_network
from twinsolve.bench.parts import with_weights_of
from twinsolve.bench.tables import Lines, Results, number, write_table
from twinsolve.bench.task import PLAIN, add_baselines, rows_with_plain
from twinsolve.bench.timing import Progress
from twinsolve.bench.vision.classification.data import load_splits
from twinsolve.bench.vision.classification.measures import CLEAN, accuracies, depth_measures, wrong
from twinsolve.bench.vision.classification.report import differences
from twinsolve.bench.vision.classification.study import IMAGES, build, classify, settings_of

ADAPTED = (
    "AttnScale", "FeatScale", "NeuTRENO", "twicing", "sparse coding",
    "CaiT:correction=attn_scale", "CaiT:scale=FeatScale",
)  # fmt: skip
_SHARE = 1 / 3  # extra steps, of those of the plain network
RATES = (0.1, 0.3, 1.0)  # of the plain network's learning rate


def adapt(
    data: str = "digits",
    *,
    rows: Iterable[str] | None = None,
    seeds: int = 5,
    steps: int | None = None,
    recipe: Mapping[str, Any] | None = None,
    n_jobs: int = 1,
    data_home: str | None = None,
    directory: Path,
    progress: Progress | None = None,
) -> pd.DataFrame:
    """Turn trained backbones into each row, train them on, and measure them.

    The backbone of a row, softmax for those of a plain ViT, is trained as in `classify`. Each row
    takes its averaged weights, wherever name and shape are the same, and is trained on for a third
    of the steps, on the batches that come next; so is the backbone itself. The learning rate of
    the extra steps is, for each row, the one of the same few with the best mean accuracy on
    validation images over all seeds, the smallest of those that tie. Test images choose nothing.

    Parameters
    ----------
    data, seeds, steps, recipe, n_jobs, data_home, directory, progress
        As `classify` takes them; `steps` are those of the plain network.
    rows : iterable of str, optional
        As in `classify`. None is AttnScale, FeatScale, NeuTRENO, twicing,
        sparse coding, and the two scales on CaiT.

    Returns
    -------
    DataFrame
        A row for each network and seed. Of test images, in percent: ``plain`` is the accuracy of
        the trained backbone, ``start`` that of the row with its weights, ``top1`` and ``top5``
        those after the extra steps; ``wrong`` has the places of the images that are wrong then.
        ``start_token_cosine`` is that of the last layer, of the row with the backbone's weights.

    Raises
    ------
    ValueError
        If data or a row are unknown, or a row has no weights in common with its backbone.
    """
    given, baselines = add_baselines(IMAGES, rows_with_plain(IMAGES, rows or ADAPTED))
    splits, settings = load_splits(data, data_home), settings_of(data, recipe)
    bases = [row for row in given if row == PLAIN or row in baselines.values()]
    for row, options in given.items():
        own = options if row in bases else given[str(baselines[row])]
        if options.get("architecture") != own.get("architecture"):
            raise ValueError(f"row: {row!r} has no weights in common with {baselines[row]}")
        build(splits, settings, options, seed=0)
    trained = classify(
        data, rows={row: given[row] for row in bases}, seeds=seeds, steps=steps, recipe=recipe,
        n_jobs=n_jobs, data_home=data_home, directory=directory, progress=progress,
    )  # fmt: skip
    candidates = trained.drop_duplicates("row").set_index("row")[list(settings["candidates"][0])]
    jobs = []
    for row, options in given.items():
        base = row if row in bases else str(baselines[row])
        candidate = candidates.loc[base].to_dict() | {"n_steps": int(candidates.n_steps[base])}
        jobs += [
            {
                "data": data, "data_home": data_home, "directory": str(directory),
                "settings": settings, "row": row, "options": options, "candidate": candidate,
                "base": given[base], "against": None if row in bases else base,
                "seed": seed, "rate": share * candidate["learning_rate"],
            }
            for share in RATES
            for seed in range(seeds)
        ]  # fmt: skip
    running = Options(0, seeds, n_jobs, data_home, directory, progress)
    found = run_jobs(_run, jobs, running, content=contents(splits))
    return best_rates(found)


def best_rates(table: pd.DataFrame) -> pd.DataFrame:
    """The lines of each row at its learning rate with the best mean accuracy on validation."""
    means = table.groupby(["row", "learning_rate"], sort=False).validation.mean()
    means = means.round(9).reset_index()  # the same hits in another order of seeds tie
    best = means.sort_values(["validation", "learning_rate"], ascending=[False, True])
    kept = best.drop_duplicates("row")[["row", "learning_rate"]]
    return table.merge(kept, on=["row", "learning_rate"])


def _run(
    data: str, data_home: str | None, directory: str, settings: dict[str, Any], row: str,
    options: dict[str, Any], candidate: dict[str, Any], base: dict[str, Any],
    against: str | None, seed: int, rate: float,
) -> list[dict[str, Any]]:  # fmt: skip
    """Take the trained backbone from its folder, and train a row on from there."""
    steps = candidate["n_steps"]
    plain, splits, _ = trained_network(
        IMAGES, data, data_home, directory, settings, base, candidate, seed
    )
    model = with_weights_of(build(splits, settings, placed(options, candidate), seed), plain)
    start = accuracies(model.eval(), splits.test)["top1"]
    cosine = depth_measures(model, splits.test).get("token_cosine")
    extra = {"n_steps": max(1, round(_SHARE * steps)), "learning_rate": rate}
    recipe = recipe_of(settings, extra, seed)
    task = {"data": data, "after": candidate}
    trained, _ = train_kept(
        IMAGES, model, splits, settings, recipe, task, directory, first_step=steps, options=options
    )
    return [
        {
            "row": row, "against": against, "data": data, "seed": seed, "learning_rate": rate,
            "steps": steps,
            "extra_steps": extra["n_steps"],
            "validation": accuracies(trained, splits.validation)["top1"],
            "plain": accuracies(plain, splits.test)["top1"],
            "start": start, "start_token_cosine": cosine,
            **accuracies(trained, splits.test),
            "n_test": len(splits.test), "wrong": {CLEAN: wrong(trained, splits.test)},
        }
    ]  # fmt: skip


_HEAD = (
    "row", "seeds", "trained plain", "replaced, 0 steps", "trained on", *COMPARED, "top-5 %",
    "token cosine, 0 steps", "rate",
)  # fmt: skip
_START = "#E69F00"  # of Okabe and Ito


def adapted_lines(table: pd.DataFrame) -> Lines:
    """A line for each row: means over seeds, and differences to its backbone trained on."""
    verdicts = judge(differences(table))
    lines: list[tuple[str, ...]] = []
    for row, own in table.groupby("row", sort=False):
        mean = own.mean(numeric_only=True)
        accuracy = (number(mean[name], ".2f") for name in ("plain", "start", "top1"))
        compared = verdicts[row].cells if row in verdicts else BLANK
        others = {"top5": ".2f", "start_token_cosine": ".4f", "learning_rate": ".2g"}
        rest = (number(mean[name], form) for name, form in others.items())
        lines.append((str(row), str(len(own)), *accuracy, *compared, *rest))
    return _HEAD, lines


def adapted_notes(table: pd.DataFrame) -> list[str]:
    """How to read the table of adapted networks."""
    steps, extra = (
        " or ".join(str(x) for x in sorted(table[name].unique()))
        for name in ("steps", "extra_steps")
    )
    shares = ", ".join(f"{share:g}" for share in RATES)
    return [
        f"Top-1 in percent on test images, means over seeds: of the plain network after {steps} "
        "steps, of the row with its weights before any step of its own, and after "
        f"{extra} steps more; top-5 is that then. Tokens before those are of the last layer before "
        f"the final norm. Differences are to {name_baseline(table)} trained on as long on the "
        "same batches. The learning rate of the extra steps is the best on "
        f"validation images, over all seeds, of {shares} times that of the plain network.",
        note_on_verdicts(differences(table)),
    ]


def draw_adaptation(table: pd.DataFrame, directory: Path) -> None:
    """Draw adaptation.png: accuracy before and after the extra steps, and each row's interval."""
    apart = differences(table)
    if not apart:
        return
    order = sorted(apart, key=lambda row: apart[row].mean)
    means = table.groupby("row")[["plain", "start", "top1"]].mean()
    figure, (left, right) = panels(2, (4.5, 1.7 + 0.24 * len(order)), sharey=True)
    for place, row in enumerate(order):
        start, end = means.start[row], means.top1[row]
        left.plot([start, end], [place, place], color=OPEN, linewidth=1, zorder=1)
        left.plot(start, place, "o", color=_START, label="replaced, 0 steps")
        left.plot(end, place, "o", color=CLEAR, label="trained on")
    bases = set(baselines_of(table).values())
    for base in bases:
        left.axvline(means.plain[base], color="black", linewidth=0.8, label="trained plain")
    left.set_xlabel("top-1 on test images, %")
    plain(left)
    legend(figure, "upper center", ncols=3)
    draw_intervals(right, judge(apart), order)
    right.set_xlabel(f"top-1, points to {name_baseline(table)} trained as long\n{INTERVAL}")
    save(figure, directory / "adaptation.png")


def compare_rows(results: Results, rows: Sequence[str] | None, **given: Any) -> None:
    """Train the rows on, and write how far they come."""
    table = adapt(rows=rows, **given)
    write_table(table, results.directory)
    title = str(results.settings["data"])
    results.add_table(title, adapted_lines(table), heading="", file="means")
    results.add_sentences(adapted_notes(table))
    draw_adaptation(table, results.directory)
    results.write(["adaptation"])


if __name__ == "__main__":
    run_script(__file__)
