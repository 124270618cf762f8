"""Hidden patches filled by solved problems and by trained networks, and what that is worth later.

``python studies/masked_patches.py`` hides half of the patches of each image.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from shared.script import run_script
from sklearn.linear_model import Ridge
from torch import Tensor, nn

from twinsolve.bench.jobs import Job, Options, run_jobs
from twinsolve.bench.paired import COMPARED, Paired, judge, note_on_verdicts, paired_difference
from twinsolve.bench.paired_training import contents, placed, recipe_of, train_kept
from twinsolve.bench.parts import with_weights_of
from twinsolve.bench.tables import Lines, Results, number, write_table
from twinsolve.bench.task import row_options
from twinsolve.bench.training import Batches, generator_of
from twinsolve.bench.vision.classification.data import ClassBatches, Images, Splits, load_splits
from twinsolve.bench.vision.classification.measures import accuracies
from twinsolve.bench.vision.classification.networks import Classifier
from twinsolve.bench.vision.classification.study import IMAGES, build, settings_of
from twinsolve.solvers import locally_linear_weights, nadaraya_watson, sparse_code
from twinsolve.solvers.inputs import Array

ROWS = ("softmax", "sparse coding", "ViT:operator=locally_linear", "token graying")
N_MASKS = 8  # image i has mask i modulo so many
FEW = 100  # labelled images of the fine-tuning, those that come first
_TRIED = 400  # validation images at most, that choose a solver's parameter


def hidden_patches(n_patches: int) -> Tensor:
    """Masks of shape (N_MASKS, n_patches), True for the half that is hidden."""
    order = [generator_of(0, 0, mask).permutation(n_patches) for mask in range(N_MASKS)]
    return torch.from_numpy(np.stack(order) < n_patches // 2)


class PatchFiller(nn.Module):
    """A vision transformer that gives the pixels of each patch, and sees those not hidden.

    Hidden patches are zero, the mean of standardised levels, as they enter.
    """

    def __init__(self, options: Mapping[str, Any], mean: Sequence[float], std: Sequence[float]):
        super().__init__()
        self.options, self.mean, self.std = dict(options), list(mean), list(std)
        self.classifier = Classifier(self.options, self.mean, self.std)
        n_pixels = self.network.patch_embedding.projection.in_features
        self.to_pixels = nn.Linear(self.options["dim"], n_pixels)

    @property
    def network(self) -> Any:
        """The vision transformer."""
        return self.classifier.network

    def patches(self, levels: Tensor) -> Tensor:
        """Standardised patches, (batch, n_patches, pixels)."""
        patches: Tensor = self.network.patch_embedding.patches(self.classifier.standardised(levels))
        return patches

    def forward(self, levels: Tensor, hidden: Tensor) -> Tensor:
        rows, columns = self.network.grid
        mask = hidden.view(-1, 1, rows, columns)
        for axis, size in ((2, levels.shape[2] // rows), (3, levels.shape[3] // columns)):
            mask = mask.repeat_interleave(size, dim=axis)
        shown = self.classifier.standardised(levels).masked_fill(mask, 0.0)
        filled: Tensor = self.to_pixels(self.network.forward_features(shown))
        return filled


def filling_loss(model: Any, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Mean squared error of the hidden pixels."""
    levels, hidden = batch
    error: Tensor = (model(levels, hidden) - model.patches(levels)).square()
    return error[hidden].mean()


def masked_batches(splits: Splits, settings: Mapping[str, Any]) -> Batches:
    """Batches of images, each with another random half of its patches hidden."""
    known = ClassBatches(splits.train, batch_size=settings["batch_size"], shift=0, flip=False)
    n_patches = count_patches(splits, settings)

    def batches(seed: int, step: int, samples: range) -> tuple[Tensor, Tensor]:
        levels, _ = known(seed, step, samples)
        order = [generator_of(seed, step, sample).permutation(n_patches) for sample in samples]
        return levels, torch.from_numpy(np.stack(order) < n_patches // 2)

    return batches


def count_patches(splits: Splits, settings: Mapping[str, Any]) -> int:
    """Patches of an image."""
    height, width = splits.train.levels.shape[2:]
    return (height // settings["patch_size"]) * (width // settings["patch_size"])


@torch.no_grad()
def errors_of(model: Any, images: Images) -> Tensor:
    """Mean squared error of the hidden pixels of each image."""
    patches = model.patches(images.levels)
    masks = hidden_patches(patches.shape[1])[torch.arange(len(images)) % N_MASKS]
    apart = (model(images.levels, masks) - patches).square()
    return apart[masks].view(len(images), -1).mean(dim=1)


def validate(model: Any, splits: Splits) -> dict[str, float]:
    return {"fit": -float(errors_of(model, splits.validation).mean())}


FILLING = replace(
    IMAGES, name="", make_batches=masked_batches, make_loss=lambda *_: filling_loss,
    validate=validate,
)  # fmt: skip


Solver = Callable[[Array, float], Array]  # of seen pixels, and a parameter


def solvers(X: Array, Y: Array) -> dict[str, tuple[Solver, Sequence[float]]]:
    """How seen pixels give hidden ones, by what is known of both (X, Y), and parameters to try."""
    centred = X - X.mean(axis=0)
    scale = float(np.median(np.square(centred).sum(axis=1)))

    def code(queries: Array, lam: float) -> Array:
        found = sparse_code(queries - X.mean(axis=0), centred, lam=lam * scale, tol=1e-4)
        return Y.mean(axis=0) + found.coef @ (Y - Y.mean(axis=0))

    def embed(queries: Array, k: float) -> Array:
        return locally_linear_weights(X, n_neighbors=int(k), queries=queries) @ Y

    def smooth(queries: Array, share: float) -> Array:
        return nadaraya_watson(queries, X, Y, bandwidth=share * scale**0.5)

    def regress(queries: Array, alpha: float) -> Array:
        return Ridge(alpha * scale).fit(X, Y).predict(queries)

    return {
        "mean image": (lambda queries, _: np.tile(Y.mean(axis=0), (len(queries), 1)), [0]),
        "non-local means": (smooth, [0.1, 0.15, 0.2, 0.3, 0.5]),
        "LLE": (embed, [5, 10, 20, 40, 80, 160, 320, 640]),
        "sparse coding (SSC)": (code, [0.003, 0.01, 0.03, 0.1, 0.3]),
        "ridge": (regress, [0.01, 0.1, 1, 10]),
    }


def fill_by_solvers(splits: Splits, patches: Callable[[Tensor], Tensor]) -> list[dict[str, Any]]:
    """Each solver with the parameter that is best on validation images, a line each."""
    train, tried, test = (
        patches(part.levels).double().numpy()
        for part in (splits.train, splits.validation, splits.test)
    )
    tried = tried[:_TRIED]
    found: dict[tuple[str, float], tuple[Array, Array]] = {}
    for place, mask in enumerate(hidden_patches(train.shape[1]).numpy()):
        own = slice(place, None, N_MASKS)
        seen, hidden = (
            [x[:, side].reshape(len(x), -1) for x in (train, tried[own], test[own])]
            for side in (~mask, mask)
        )
        for name, (solve, values) in solvers(seen[0], hidden[0]).items():
            for value in values:
                key = name, value
                both = found.setdefault(key, (np.empty(len(tried)), np.empty(len(test))))
                for kept, queries, true in zip(both, seen[1:], hidden[1:], strict=True):
                    kept[own] = np.square(solve(queries, value) - true).mean(axis=1)
    scores = pd.Series({key: errors[0].mean() for key, errors in found.items()})
    return [
        {
            "row": name, "kind": "solved", "seed": 0, "parameter": value,
            "validation": scores[name, value], "errors": found[name, value][1].tolist(),
        }
        for name, value in scores.groupby(level=0, sort=False).idxmin()
    ]  # fmt: skip


def fill_by_network(
    data: str, data_home: str | None, directory: str, settings: dict[str, Any], row: str, seed: int
) -> list[dict[str, Any]]:
    """Train one network to fill patches, and two to classify: from its weights, and from none."""
    splits, options = load_splits(data, data_home), row_options(IMAGES, row)
    candidate = settings["candidates"][-1]
    start = build(splits, settings, placed(options, candidate), seed)
    torch.manual_seed(seed)
    filler = PatchFiller(start.options, start.mean, start.std)
    filler.classifier.load_state_dict(start.state_dict())
    twice = recipe_of(settings, candidate | {"n_steps": 2 * candidate["n_steps"]}, seed)
    trained, _ = train_kept(
        FILLING, filler, splits, settings, twice, {"data": data, "of": "filling"}, directory,
        options=options,
    )  # fmt: skip
    found: dict[str, Any] = {
        "row": row, "kind": "learned", "seed": seed,
        "errors": errors_of(trained, splits.test).tolist(),
    }  # fmt: skip
    few = Images(splits.train.levels[:FEW], splits.train.target[:FEW])
    fewer, recipe = replace(splits, train=few), recipe_of(settings, candidate, seed)
    for name, weights in (("pretrained", trained.classifier), ("from scratch", start)):
        model = with_weights_of(build(splits, settings, placed(options, candidate), seed), weights)
        task = {"data": data, "few": FEW, "weights": name}
        tuned, _ = train_kept(
            IMAGES, model, fewer, settings, recipe, task, directory, options=options
        )
        found[name], found[f"{name}, top-5"] = accuracies(tuned, splits.test).values()
    return [found]


def run(
    rows: Sequence[str] | None, data: str = "digits", *, seeds: int, steps: int | None,
    recipe: Mapping[str, Any], n_jobs: int, data_home: str | None, directory: Path, progress: Any,
) -> pd.DataFrame:  # fmt: skip
    """Errors of all rows; of networks also what they classify of images, trained on few labels."""
    settings = settings_of(data, recipe)
    if steps is not None:
        settings["candidates"] = [settings["candidates"][-1] | {"n_steps": steps}]
    splits = load_splits(data, data_home)
    plain = build(splits, settings, {}, 0)
    jobs: list[Job] = [
        {
            "data": data, "data_home": data_home, "directory": str(directory),
            "settings": settings, "row": row, "seed": seed,
        }
        for row in rows or ROWS
        for seed in range(seeds)
    ]  # fmt: skip
    options = Options(0, seeds, n_jobs, data_home, directory, progress)
    learned = run_jobs(fill_by_network, jobs, options, content=contents(splits))
    embedding: Any = plain.network.patch_embedding
    solved = fill_by_solvers(splits, lambda x: embedding.patches(plain.standardised(x)))
    return pd.concat([pd.DataFrame(solved), learned], ignore_index=True)


def best_solved(table: pd.DataFrame) -> str:
    """The solved row with the smallest mean error on validation images."""
    return str(table.row[table.validation.idxmin()])


def differences(table: pd.DataFrame) -> dict[str, Paired]:
    """By how much a network errs less than the best solved row, in % of the mean image's error."""
    unit = np.mean(table.errors[table.row == "mean image"].iloc[0]) / 100
    best = np.asarray(table.errors[table.row == best_solved(table)].iloc[0])
    return {
        str(row): paired_difference(pd.DataFrame((best - np.stack(list(own.errors))) / unit))
        for row, own in table[table.kind == "learned"].groupby("row", sort=False)
    }


def gains(table: pd.DataFrame) -> dict[str, Paired]:
    """Of pretraining, in points of accuracy, over seeds."""
    learned = table[table.kind == "learned"].set_index("seed")
    return {
        str(row): paired_difference(own["pretrained"], own["from scratch"])
        for row, own in learned.groupby("row", sort=False)
    }


def filled_lines(table: pd.DataFrame) -> Lines:
    """A line for each row: its error, and the difference to the best solved one."""
    unit = np.mean(table.errors[table.row == "mean image"].iloc[0]) / 100
    verdicts = judge(differences(table))
    lines = [
        (
            str(row), own.kind.iloc[0], number(own.parameter.iloc[0], "g"),
            number(np.mean([np.mean(x) for x in own.errors]) / unit, ".1f"),
            *(verdicts[row].cells if row in verdicts else ("-",) * len(COMPARED)),
        )
        for row, own in table.groupby("row", sort=False)
    ]  # fmt: skip
    return ("row", "kind", "parameter", "error, % of the mean image's", *COMPARED), lines


def tuned_lines(table: pd.DataFrame) -> Lines:
    """Top-1 and top-5 after training on few labels, from scratch and from weights that fill."""
    verdicts = judge(gains(table))
    learned = table[table.kind == "learned"]
    lines = [
        (
            str(row), *(number(own[name].mean(), ".2f") for name in ("from scratch", "pretrained")),
            *verdicts[str(row)].cells, number(own["pretrained, top-5"].mean(), ".2f"),
        )
        for row, own in learned.groupby("row", sort=False)
    ]  # fmt: skip
    return ("row", "from scratch", "pretrained", *COMPARED, "pretrained, top-5"), lines


def notes(table: pd.DataFrame) -> Iterator[str]:
    """How to read the tables."""
    yield (
        "Half of the patches of each test image are hidden; errors are squared, of standardised "
        "hidden pixels, in % of that of the mean training image. Solved rows write the seen pixels "
        "by those of training images, and the hidden ones by the same weights; their parameter "
        "is the best on validation images. Networks are trained on the same images, with another "
        f"half hidden each time. Differences are to {best_solved(table)}, the best solved row on "
        "the validation images, above 0 where a network errs less. "
        f"{note_on_verdicts(differences(table))}"
    )
    yield (
        f"Top-1 on test images after training on {FEW} labelled images: from random weights, and "
        "from those of the network that fills patches. Differences are over seeds."
    )


def compare_rows(results: Results, rows: Sequence[str] | None, **given: Any) -> None:
    """Train the rows, and write what they and the solvers fill."""
    table = run(rows, **given)
    write_table(table, results.directory)
    results.add_table("Hidden patches filled", filled_lines(table), file="filled")
    results.add_table(f"Classes from {FEW} labels", tuned_lines(table), file="tuned")
    results.add_sentences(notes(table))
    results.write()


if __name__ == "__main__":
    run_script(__file__)
