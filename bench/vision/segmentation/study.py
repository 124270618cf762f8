"""Train segmenters with the same seeds, and compare how well they classify pixels."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from time import process_time
from typing import Any

import joblib
import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ....datasets import fetch_camvid
from ....solvers.inputs import Array
from ....unrolled import operator_names
from ....unrolled.generators import seeded
from ....unrolled.models import Segmenter
from ...devices import device_of, find_device
from ...jobs import Job, Options, run_jobs
from ...names import close_names
from ...parts import resolve_options
from ...recipe import Recipe
from ...timing import Progress
from ...training import Listener, StudyListener, generator_of, operator_sources, train

_LARGEST = 1.5  # largest factor by which a picture is enlarged before it is cropped
_MEAN, _SPREAD = 0.45, 0.25  # of levels in [0, 1], roughly


class LabelledPictures:
    """Batches of pictures and their classes: enlarged, cropped and mirrored at random.

    Parameters
    ----------
    images : uint8 ndarray of shape (n_images, height, width, channels)
    target : uint8 ndarray of shape (n_images, height, width)
    """

    def __init__(self, images: Array, target: Array) -> None:
        self.images, self.target = images, target

    def __call__(self, seed: int, step: int, samples: range) -> tuple[Tensor, Tensor]:
        drawn = [self._draw_sample(generator_of(seed, step, sample)) for sample in samples]
        images, target = (torch.cat(parts) for parts in zip(*drawn, strict=True))
        return images, target

    def _draw_sample(self, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        number = int(rng.integers(len(self.images)))
        image, target = levels(self.images[[number]]), torch.from_numpy(self.target[[number]])
        scale = rng.uniform(1, _LARGEST)
        height, width = self.target.shape[1:]
        size = (round(scale * height), round(scale * width))
        top, left = (
            int(rng.integers(a - b + 1)) for a, b in zip(size, (height, width), strict=True)
        )
        image = resize(image, size)[..., top : top + height, left : left + width]
        target = F.interpolate(target[:, None].float(), size, mode="nearest-exact")[:, 0].long()
        target = target[:, top : top + height, left : left + width]
        return (image.flip(-1), target.flip(-1)) if rng.random() < 0.5 else (image, target)


def levels(images: Array) -> Tensor:
    """8-bit pictures as float32 (n_images, channels, height, width), roughly standardised."""
    planes = torch.from_numpy(images).movedim(-1, 1).float() / 255
    return (planes - _MEAN) / _SPREAD


def resize(planes: Tensor, size: tuple[int, int]) -> Tensor:
    """Interpolate planes to another height and width."""
    return F.interpolate(planes, size, mode="bilinear", align_corners=False)


def class_weights(target: Array, n_classes: int) -> Tensor:
    """Square roots of the weights of median frequency balancing.

    A weight is the median share of all classes over the share of the class, in pixels of pictures
    that hold it. Without the root, rare classes cost more on validation pictures than they gain.

    References
    ----------
    Eigen and Fergus (2015); Badrinarayanan et al., *SegNet* (2017).

    Examples
    --------
    >>> import numpy as np
    >>> from twinsolve.bench.vision.segmentation.study import class_weights
    >>> class_weights(np.array([[[0, 0, 0, 1]]]), 2)
    tensor([0.8165, 1.4142])
    """
    counts = np.stack([(target == c).sum(axis=(1, 2)) for c in range(n_classes)], axis=1)
    size = target[0].size
    present = np.maximum((counts > 0).sum(axis=0), 1)
    shares = counts.sum(axis=0) / (present * size)
    if not shares.all():
        raise ValueError(f"target: holds no pixel of class {int(np.argmin(shares))}")
    return torch.tensor(np.sqrt(np.median(shares) / shares), dtype=torch.float32)


def cross_entropy(
    weights: Tensor, ignored: int
) -> Callable[[nn.Module, tuple[Tensor, Tensor]], Tensor]:
    """Weighted cross entropy over the pixels whose label is not `ignored`."""

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        images, target = batch
        scores = model(images).float()
        return F.cross_entropy(scores, target, weights.to(scores.device), ignore_index=ignored)

    return loss


_AT_ONCE = 16
SCALES = (1.0, 1.25, 1.5)


@torch.no_grad()
def scores_of(model: nn.Module, images: Tensor, scales: Sequence[float] = (1.0,)) -> Tensor:
    """Mean class probabilities over enlarged copies of the images, each seen in windows.

    Windows have the size of the images, cover a copy evenly and are at most half a window apart.
    Probabilities are averaged where windows overlap, then resized to the images. The scale 1 has
    one window.
    """
    size = (images.shape[-2], images.shape[-1])
    total = torch.zeros(())
    for scale in scales:
        enlarged = (round(scale * size[0]), round(scale * size[1]))
        total = total + resize(_score_windows(model, resize(images, enlarged), size), size)
    return total / len(scales)


def _score_windows(model: nn.Module, images: Tensor, size: Sequence[int]) -> Tensor:
    found: Any = 0.0
    counts = images.new_zeros(images.shape[-2:])
    for top in _place_windows(images.shape[-2], size[0]):
        for left in _place_windows(images.shape[-1], size[1]):
            place = (..., slice(top, top + size[0]), slice(left, left + size[1]))
            seen = model(images[place]).softmax(dim=1)
            if not torch.is_tensor(found):
                found = images.new_zeros(seen.shape[:2] + images.shape[-2:])
            found[place] += seen
            counts[place] += 1
    return found / counts


def _place_windows(extent: int, size: int) -> list[int]:
    n = 1 + int(np.ceil(2 * (extent - size) / size))
    return [round(x) for x in np.linspace(0, extent - size, n)]


def segmentation_quality(
    model: nn.Module,
    images: Array,
    target: Array,
    *,
    n_classes: int,
    scales: Sequence[float] = (1.0,),
) -> dict[str, Any]:
    """Intersection over union of each class, its mean, and accuracies.

    ::

        IoU_c = |found c and true c| / |found c or true c|
        accuracy_c = |found c and true c| / |true c|

    over the pixels of all images whose label is a class; others do not count. The mean over classes
    is no mean over images. Each image therefore gets a pseudo-value: the mean, plus its first-order
    change with the weight of the image. The mean of the pseudo-values is ``miou``.

    Parameters
    ----------
    model : nn.Module
        Returns scores (n_images, n_classes, height, width) of pictures.
    images : uint8 ndarray of shape (n_images, height, width, channels)
    target : ndarray of shape (n_images, height, width)
    n_classes : int
    scales : sequence of float, default=(1.0,)
        As in `scores_of`.

    Returns
    -------
    dict
        ``miou``; ``accuracy``, the share of correct pixels; ``class_accuracy``, the mean over the
        classes that occur; ``iou``, a list with NaN for a class that neither occurs nor was found,
        which the mean leaves out; and ``pictures``, the pseudo-values.
    """
    pairs = np.zeros((len(images), n_classes, n_classes), dtype=np.int64)
    for start in range(0, len(images), _AT_ONCE):
        part = slice(start, start + _AT_ONCE)
        planes = levels(images[part]).to(device_of(model))
        found = scores_of(model, planes, scales).argmax(dim=1).cpu().numpy()
        labelled = target[part] < n_classes
        image = start + np.nonzero(labelled)[0]
        np.add.at(pairs, (image, target[part][labelled], found[labelled]), 1)
    both = np.diagonal(pairs, axis1=1, axis2=2)
    union = pairs.sum(axis=1) + pairs.sum(axis=2) - both
    whole = union.sum(axis=0)
    iou = np.divide(both.sum(axis=0), whole, out=np.full(n_classes, np.nan), where=whole > 0)
    own = len(images) * (both - iou * union) / np.maximum(whole, 1)
    true = pairs.sum(axis=(0, 2))
    return {
        "miou": float(np.nanmean(iou)),
        "accuracy": float(both.sum() / pairs.sum()),
        "class_accuracy": float((both.sum(axis=0)[true > 0] / true[true > 0]).mean()),
        "iou": iou.tolist(),
        "pictures": np.nanmean(iou + own, axis=1).tolist(),
    }


PLAIN = "plain"
# Options of `PixelClassifier`; the others are those of the plain model.
_MODELS: dict[str, dict[str, Any]] = {
    PLAIN: {},
    "NeuTRENO": {"correction": "neutreno"},
    "bilateral": {"operator": "bilateral"},
    "GRC": {"residual": "boosting"},
    "twicing": {"correction": "twicing"},
    "bilateral + GRC": {"operator": "bilateral", "residual": "boosting"},
    "symmetric": {"operator": "symmetric"},
    "symmetric + NeuTRENO": {"operator": "symmetric", "correction": "neutreno"},
}
# Chosen for the plain model on validation pictures, among rates of 0.001 and 0.003.
RECIPE = {
    "batch_size": 8, "learning_rate": 3e-3, "weight_decay": 0.05, "warm_up": 0.1, "ema_decay": 0.99,
}  # fmt: skip
SIZE = {"dim": 64, "depth": 6, "num_heads": 4}
N_STEPS = 800


class PixelClassifier(nn.Module):
    """A `Segmenter` whose parts are named in plain words.

    Parameters
    ----------
    options : dict
        ``operator``, ``correction``, ``residual`` and so on, as of `Classifier`, and what
        `Segmenter` takes.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        super().__init__()
        self.options = dict(options)
        self.network = Segmenter(**resolve_options(**self.options))

    def forward(self, images: Tensor) -> Tensor:
        """Scores of shape (batch, n_classes, height, width)."""
        return self.network(images)


def segment(
    models: Iterable[str] | None = None,
    *,
    n_seeds: int = 3,
    seed: int = 0,
    n_steps: int = N_STEPS,
    n_jobs: int = 1,
    data_home: str | None = None,
    device: str = "auto",
    directory: Path = Path("results/segment"),
    progress: Progress | None = None,
    on_step: Listener | None = None,
) -> pd.DataFrame:
    """Train segmenters on CamVid and measure them on its test pictures.

    All models share their seeds: with a seed, they see the same crops in the same order. The final
    averaged weights are measured, once.

    Parameters
    ----------
    models : iterable of str, optional
        Names of `model_names`, or of operators (`twinsolve.unrolled.operator_names`). None is all
        of `model_names`.
    n_seeds : int, default=3
    seed : int, default=0
        The first seed.
    n_steps : int, default=800
        Steps of training, of 8 pictures each.
    n_jobs : int, default=1
        Number of processes, each of which trains one model at a time.
    data_home : str, optional
        Folder of the data sets, as in `twinsolve.datasets.fetch_camvid`.
    device : str, default="auto"
        Where models are trained: "auto" is a GPU if there is one. They are tested on the CPU.
    directory : Path
        Folder with a folder for each run, from which an interrupted command continues.
    progress : callable, optional
        ``progress(iterable, total)`` wraps the iteration over the runs.
    on_step : callable, optional
        As of `run_study`.

    Returns
    -------
    DataFrame
        A row for each model and seed: ``miou`` and ``miou_multi_scale`` (see
        `segmentation_quality`, the latter over copies of `SCALES`), ``accuracy``,
        ``class_accuracy``, ``iou CLASS``, all in percent; ``pictures`` and
        ``pictures_multi_scale``, a pseudo-value of the mean IoU for each test picture;
        ``parameters``; ``seconds`` of processor time per picture.

    Raises
    ------
    ValueError
        If a model is unknown, or a number is out of range.
    """
    names = list(_MODELS) if models is None else list(dict.fromkeys(models))
    if n_steps < 1 or not names:
        raise ValueError(f"n_steps: must be >= 1, got {n_steps}" if names else "models: got none")
    settings = {name: model_settings(name) for name in names}
    options = Options(seed, n_seeds, n_jobs, data_home, directory / "runs", progress)
    device = str(find_device(device))
    jobs: list[Job] = [
        {
            "model": name, "settings": settings[name], "seed": number, "recipe": RECIPE,
            "size": SIZE, "n_steps": n_steps, "directory": str(directory), "data_home": data_home,
            "device": device,
        }
        for number in options.seeds
        for name in names
    ]  # fmt: skip
    known = [fetch_camvid(subset=name, data_home=data_home) for name in ("train", "val", "test")]
    pictures = joblib.hash([x for part in known for x in (part.images, part.target)])
    about = {"steps_of_study": n_steps * len(jobs)}
    return run_jobs(
        _train_and_judge, jobs, options, content={"pictures": pictures, **operator_sources()},
        listeners={"on_step": on_step and StudyListener(on_step, about)},
    )  # fmt: skip


def model_names() -> list[str]:
    """Names of the models that are compared by default."""
    return list(_MODELS)


def model_settings(name: str) -> dict[str, Any]:
    """Options of `PixelClassifier` that a name stands for.

    Raises
    ------
    ValueError
        If it is neither in `model_names` nor an operator.
    """
    if name in _MODELS:
        return dict(_MODELS[name])
    if name in operator_names():
        return {"operator": name}
    known = [*_MODELS, *operator_names()]
    raise ValueError(f"models: none is named {name!r}{close_names(name, known)}")


def _train_and_judge(
    model: str,
    settings: dict[str, Any],
    seed: int,
    recipe: dict[str, Any],
    size: dict[str, int],
    n_steps: int,
    directory: str,
    data_home: str | None,
    device: str,
    on_step: StudyListener | None = None,
) -> list[dict[str, Any]]:
    """Train a model in the folder of the run, or continue, and return a row of measures."""
    pictures = {
        name: fetch_camvid(subset=name, data_home=data_home) for name in ("train", "val", "test")
    }
    known, tried, test = pictures["train"], pictures["val"], pictures["test"]
    n_classes = len(known.target_names)
    sizes = {"n_classes": n_classes, "image_size": list(known.target.shape[1:]), **size}
    with seeded(seed):
        network = PixelClassifier(sizes | settings).to(device)

    def validate(model: torch.nn.Module) -> dict[str, float]:
        found = segmentation_quality(model, tried.images, tried.target, n_classes=n_classes)
        return {"validation_miou": 100 * found["miou"]}

    trained = train(
        network,
        LabelledPictures(known.images, known.target),
        cross_entropy(class_weights(known.target, n_classes), known.ignored),
        Recipe(n_steps=n_steps, seed=seed, validate_every=n_steps, **recipe),
        directory=Path(directory) / f"{model}-{seed}",
        validate=validate,
        task={
            "data": "camvid", "operators": joblib.hash(operator_sources()), "device": device,
        },
        on_step=on_step and on_step.of(row=model, seed=seed),
    ).cpu()  # fmt: skip
    start = process_time()
    once = segmentation_quality(trained, test.images, test.target, n_classes=n_classes)
    seconds = (process_time() - start) / len(test.images)
    often = segmentation_quality(
        trained, test.images, test.target, n_classes=n_classes, scales=SCALES
    )
    row = {
        "model": model, "seed": seed, "miou": 100 * once["miou"],
        "miou_multi_scale": 100 * often["miou"], "accuracy": 100 * once["accuracy"],
        "class_accuracy": 100 * once["class_accuracy"],
        "parameters": sum(p.numel() for p in trained.parameters()), "seconds": seconds,
        "pictures": [round(100 * x, 3) for x in once["pictures"]],
        "pictures_multi_scale": [round(100 * x, 3) for x in often["pictures"]],
    }  # fmt: skip
    each = zip(test.target_names, once["iou"], strict=True)
    return [row | {f"iou {name}": 100 * iou for name, iou in each}]
