"""The figure of each page on a family: a function of its name, of the variables of its page."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure

COLOURS = {"noisy": "0.7", "clean": "black", "solver": "tab:blue", "layer": "tab:orange"}


def _panels(count: int, width: float = 3.3, height: float = 3.2) -> tuple[Figure, Any]:
    figure = Figure(figsize=(width * count, height), layout="constrained")
    return figure, np.atleast_1d(figure.subplots(1, count))


def _picture(ax: Any, values: Any, title: str, **settings: Any) -> Any:
    ax.set_title(title)
    ax.set_xticks([])
    ax.set_yticks([])
    return ax.imshow(values, **settings)


def _matrix(ax: Any, matrix: Any, title: str) -> None:
    dense = np.abs(matrix.toarray() if hasattr(matrix, "toarray") else matrix)
    off_diagonal = dense[~np.eye(len(dense), dtype=bool)]
    _picture(ax, dense, title, cmap="magma", vmin=0, vmax=np.quantile(off_diagonal, 0.995))


def _regression(places: Any, clean: Any, noisy: Any, title: str) -> tuple[Figure, Any]:
    figure, (ax,) = _panels(1, width=7.5)
    ax.plot(places, noisy, ".", color=COLOURS["noisy"], label="noisy values")
    ax.plot(places, clean, "--", color=COLOURS["clean"], linewidth=1, label="truth")
    ax.set_title(title)
    ax.set_xlabel("query and key")
    ax.set_ylabel("value")
    return figure, ax


def _twins(ax: Any, places: Any, solved: Any, attended: Any) -> None:
    ax.plot(places, solved, color=COLOURS["solver"], linewidth=3, label="solver")
    ax.plot(places[::3], attended[::3], "o", color=COLOURS["layer"], markersize=4, label="layer")
    ax.legend()


def kernel_smoothing(places: Any, clean: Any, noisy: Any, solved: Any, attended: Any) -> Figure:
    title = "Kernel regression and attention with the same bandwidth"
    figure, ax = _regression(places, clean, noisy, title)
    _twins(ax, places, solved, attended)
    return figure


def image_filters(noisy: Any, solved: Any, filtered: Any) -> Figure:
    figure, axes = _panels(4, width=2.7, height=3.0)
    for ax, (title, image) in zip(
        axes, {"noisy": noisy, "solver": solved, "layer": filtered}.items(), strict=False
    ):
        _picture(ax, image, title, cmap="gray", vmin=0, vmax=1)
    shown = _picture(axes[3], np.abs(filtered - solved), "difference", cmap="magma")
    figure.colorbar(shown, ax=axes[3], shrink=0.75)
    return figure


def locally_linear(points: Any, along: Any, flat: Any) -> Figure:
    figure = Figure(figsize=(8, 3.6), layout="constrained")
    rolled = figure.add_subplot(1, 2, 1, projection="3d")
    rolled.scatter(*points.T, c=along, s=8)
    rolled.view_init(12, -72)
    rolled.set_title("1,000 points on a rolled sheet")
    unrolled = figure.add_subplot(1, 2, 2)
    unrolled.scatter(*flat.T, c=along, s=8)
    unrolled.set_title("Coordinates that keep the weights")
    unrolled.set_xlabel("first coordinate")
    unrolled.set_ylabel("second coordinate")
    return figure


def self_expression(X: Any, solution: Any, distances: Any) -> Figure:
    import torch

    from twinsolve.unrolled import SparseCoding

    tokens = torch.tensor(X)
    layer = SparseCoding(0.2, n_iter=10, zero_diagonal=True, dtype=torch.float64)
    figure, (left, middle, right) = _panels(3)
    _matrix(left, layer.matrix(tokens, tokens).detach().numpy(), "layer, 10 iterations")
    _matrix(middle, solution.coef, "solver")
    right.loglog(list(distances), list(distances.values()), "o-", color=COLOURS["layer"])
    right.set_title("Layer against solver")
    right.set_xlabel("iterations")
    right.set_ylabel("relative distance of the coefficients")
    right.grid(alpha=0.3)
    return figure


def sparse_coding(atoms: Any, depths: Any, gaps: Any) -> Figure:
    figure, (left, right) = _panels(2, width=3.9)
    tiles = atoms[:20].reshape(4, 5, 8, 8)
    padded = np.pad(tiles, ((0, 0), (0, 0), (0, 1), (0, 1)), constant_values=np.nan)
    _picture(
        left, np.vstack([np.hstack(list(row)) for row in padded]), "20 of 60 atoms", cmap="gray"
    )
    for name, values in gaps.items():
        right.loglog(depths, values, "o-", label=name)
    right.set_xticks(depths, depths)
    right.set_yticks((0.03, 0.1, 0.3), (0.03, 0.1, 0.3))
    right.set_ylim(0.02, 0.4)
    right.minorticks_off()
    right.set_title("Objective above the optimum, new digits")
    right.set_xlabel("layers")
    right.grid(alpha=0.3)
    right.legend()
    return figure


def nonlocal_energy(X: Any, A: Any, steps: Any, lowest: float) -> Figure:
    figure, (left, right) = _panels(2, width=3.9)
    left.semilogy(range(1, len(steps) + 1), np.array(steps) - lowest, "o-", color=COLOURS["layer"])
    left.set_title("Energy above its least, NeuTRENO")
    left.set_xlabel("layers")
    left.grid(alpha=0.3)
    for name, pull in {"attention alone": 0.0, "NeuTRENO": 0.4}.items():
        u, spread = X, []
        for _ in range(11):
            spread.append(np.linalg.norm(u - u.mean(axis=0)) / np.linalg.norm(X))
            u = A @ u + pull * (X - u)
        right.plot(range(11), spread, "o-", label=name)
    right.set_ylim(bottom=0)
    right.set_title("Spread of the tokens around their mean")
    right.set_xlabel("layers")
    right.grid(alpha=0.3)
    right.legend()
    return figure


def boosting(places: Any, clean: Any, noisy: Any, once: Any, twice: Any, attended: Any) -> Figure:
    title = "Twicing gives back part of a peak that was smoothed away"
    figure, ax = _regression(places, clean, noisy, title)
    ax.plot(places, once, color="tab:green", label="smoothed once")
    _twins(ax, places, twice, attended)
    return figure


def spectral_filtering(A: Any, matrix: Any, shares: Any) -> Figure:
    figure, (left, right) = _panels(2, width=3.9)
    for omega, values in shares.items():
        left.plot(range(len(values)), values, "o-", markersize=4, label=rf"$\omega$ = {omega}")
    left.set_title("Share of high frequencies")
    left.set_xlabel("layers")
    left.set_ylim(0, 1.03)
    left.grid(alpha=0.3)
    left.legend()
    for name, values in {"base": A, r"layer, $\omega$ = 0.5": matrix}.items():
        right.plot(np.sort(np.linalg.eigvals(values).real)[::-1], ".", label=name)
    right.set_title("Eigenvalues of the matrix")
    right.set_xlabel("rank")
    right.grid(alpha=0.3)
    right.legend()
    return figure


def conditioning(patches: Any, grayed: Any) -> Figure:
    figure, (first, second, right) = _panels(3)
    for ax, title, tokens in (
        (first, "patches as they are", patches),
        (second, "grayed, eps = 0.7", grayed[0.7]),
    ):
        image = tokens.reshape(16, 16, 8, 8).swapaxes(1, 2).reshape(128, 128)
        _picture(ax, image, title, cmap="gray")
    for name, tokens in {
        "as they are": patches,
        **{f"eps {e}": t for e, t in grayed.items()},
    }.items():
        right.semilogy(np.linalg.svd(tokens, compute_uv=False), label=name)
    right.set_title("Singular values")
    right.set_xlabel("rank")
    right.grid(alpha=0.3)
    right.legend()
    return figure


def online_regression(errors: Any) -> Figure:
    figure, (ax,) = _panels(1, width=7.5)
    for name, error in errors.items():
        ax.plot(range(1, len(error) + 1), error, "o-", markersize=4, label=name)
    ax.set_title("24 values stored under random keys of 16 dimensions")
    ax.set_xlabel("token")
    ax.set_ylabel("squared error / size")
    ax.set_ylim(0)
    ax.grid(alpha=0.3)
    ax.legend()
    return figure


def clustering(y: Any, plain: Any, solved: Any, learned: Any) -> Figure:
    order = np.argsort(y, kind="stable")
    figure, axes = _panels(3)
    models = {"solved": plain, "solved, three largest": solved, "learned, three largest": learned}
    for ax, (title, model) in zip(axes, models.items(), strict=True):
        affinity = np.abs(model.affinity_matrix_.toarray())[np.ix_(order, order)]
        _picture(ax, affinity, title, cmap="magma", vmin=0, vmax=np.quantile(affinity, 0.995))
        for edge in np.flatnonzero(np.diff(y[order])) + 0.5:
            ax.axhline(edge, color="white", linewidth=0.4)
            ax.axvline(edge, color="white", linewidth=0.4)
    return figure


def coding_rate(rates: Any, proved: Any) -> Figure:
    figure, (left, right) = _panels(2, width=3.9)
    left.plot(range(len(rates)), rates, "o-", color=COLOURS["solver"])
    left.set_title("Rate of the tokens in the heads")
    left.set_xlabel("steps")
    steps = range(1, len(rates))
    right.plot(steps, -np.diff(rates), "o-", color=COLOURS["solver"], label="decrease")
    right.plot(steps, proved, "--", color=COLOURS["clean"], label="proved")
    right.set_title("What each step lowers it by")
    right.set_ylim(0)
    right.set_xlabel("step")
    right.legend()
    for ax in (left, right):
        ax.grid(alpha=0.3)
    return figure


def associative_memory(patterns: Any, states: Any, found: Any) -> Figure:
    figure, axes = _panels(len(found) + 1, width=2.9)
    for ax, (beta, memory) in zip(axes, found.items(), strict=False):
        ax.plot(*np.stack([states, memory.states]).transpose(2, 0, 1), color="0.8", linewidth=0.7)
        ax.plot(*patterns.T, "*", color=COLOURS["clean"], markersize=11, label="patterns")
        ax.plot(*memory.states.T, "o", color=COLOURS["solver"], markersize=4, label="retrieved")
        ax.set_title(rf"$\beta$ = {beta:g}")
        ax.set_aspect("equal")
        axes[-1].plot(memory.energy.mean(axis=1)[:30], label=rf"$\beta$ = {beta:g}")
    axes[0].legend(loc="upper left", fontsize="small")
    axes[-1].set_title("Mean energy")
    axes[-1].set_xlabel("steps")
    axes[-1].legend()
    return figure
