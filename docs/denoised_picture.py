"""The picture of the page on denoising: a photograph with the noise of a sensor, denoised.

Run it from anywhere: it writes `denoised_picture.png` beside itself.
"""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from skimage.metrics import peak_signal_noise_ratio

from twinsolve.bench import denoise_image
from twinsolve.bench.figures import write_png
from twinsolve.datasets import load_photographs

CROP = slice(170, 330), slice(310, 490)
SIGMA = 22
PHOTONS, READOUT = 90, 8 / 255  # of white; standard deviation


def add_sensor_noise(clean: np.ndarray) -> np.ndarray:
    """Poisson noise of photons and Gaussian noise of the readout, in a file of 16 bits."""
    rng = np.random.default_rng(0)
    noisy = rng.poisson(PHOTONS * clean) / PHOTONS + READOUT * rng.standard_normal(clean.shape)
    return np.rint(65535 * noisy.clip(0, 1)).astype(np.uint16)


def main() -> None:
    clean = load_photographs(colour=True).images[1]
    noisy = add_sensor_noise(clean)
    estimated, given = denoise_image(noisy), denoise_image(noisy, sigma=SIGMA)
    shown = {
        "noisy": noisy,
        f"noise estimated as {estimated.sigma:.1f}": estimated.image,
        f"noise given as {SIGMA}": given.image,
    }
    plt.rcParams["font.size"] = 10
    figure, axes = plt.subplots(1, 4, figsize=(12.6, 3.1), layout="constrained")
    for axis, (title, pixels) in zip(axes, shown.items(), strict=False):
        quality = peak_signal_noise_ratio(clean, pixels / 65535, data_range=1)
        axis.imshow(pixels[CROP] / 65535)
        axis.set_title(f"{title}: {quality:.1f} dB")
    axes[3].imshow(clean[CROP])
    axes[3].set_title("clean")
    for axis in axes:
        axis.set_axis_off()
    write_png(figure, Path(__file__).with_suffix(".png"), dpi=90)


if __name__ == "__main__":
    main()
