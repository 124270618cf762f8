"""The picture of the README: one problem, its solver, its layer, and what lies between them.

Run it from anywhere: it writes `front_picture.png` beside itself.
"""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
from skimage.data import camera
from skimage.metrics import peak_signal_noise_ratio

from twinsolve.bench.figures import write_png
from twinsolve.solvers import nonlocal_means
from twinsolve.unrolled import NonLocalMeansAttention

SIGMA, H = 25 / 255, 20 / 255
SIZES = {"patch_size": 7, "patch_distance": 10}
CROP = slice(60, 220), slice(160, 320)


def main() -> None:
    clean = camera()[CROP] / 255
    noisy = clean + SIGMA * np.random.default_rng(0).standard_normal(clean.shape)
    solved = nonlocal_means(noisy, h=H, sigma=SIGMA, **SIZES)
    layer = NonLocalMeansAttention(h=H, sigma=SIGMA, **SIZES).double()
    with torch.no_grad():
        attended = layer(torch.from_numpy(noisy)[None, None])[0, 0].numpy()
    between = abs(attended - solved)

    def quality(image: np.ndarray) -> str:
        return f"{peak_signal_noise_ratio(clean, image, data_range=1):.1f} dB"

    shown = [
        (f"a noisy image\n{quality(noisy)}", noisy),
        (f"the problem, solved (NumPy, Numba)\n{quality(solved)}", solved),
        (f"the attention layer (PyTorch)\n{quality(attended)}", attended),
    ]
    plt.rcParams["font.size"] = 10
    figure, axes = plt.subplots(1, 4, figsize=(12.6, 3.9), layout="constrained")
    for axis, (title, image) in zip(axes, shown, strict=False):
        axis.imshow(image, cmap="gray", vmin=0, vmax=1)
        axis.set_title(title)
    drawn = axes[3].imshow(between / 1e-16, cmap="magma", vmin=0)
    axes[3].set_title(f"what lies between them\nat most {between.max():.0e}")
    figure.colorbar(drawn, ax=axes[3], shrink=0.8, label="difference in 1e-16 grey levels")
    for axis in axes:
        axis.set_axis_off()
    figure.suptitle(
        r"Non-local means is attention:   $\min_u\ \sum_{ij} w_{ij}\,|y_j - u_i|^2"
        r"\quad\Longrightarrow\quad"
        r" u = \mathrm{softmax}\left(-\max(d^2 - 2\sigma^2, 0)/h^2\right)\, y$",
        fontsize=13,
    )
    write_png(figure, Path(__file__).with_suffix(".png"), dpi=90)


if __name__ == "__main__":
    main()
