"""How alike tokens become over the layers of untrained transformers of published sizes.

``python studies/untrained.py`` needs transformers.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from shared.script import run_script, write_found
from sklearn.datasets import load_sample_images
from torch import Tensor
from transformers import BertConfig, BertModel, ViTConfig, ViTModel

from twinsolve.bench.figures import legend, panels, plain, save
from twinsolve.bench.jobs import Options
from twinsolve.bench.options import Output, Seeds
from twinsolve.bench.study import Study
from twinsolve.bench.tables import Lines, number
from twinsolve.unrolled import Neutreno, Softmax, attach_huggingface
from twinsolve.unrolled.diagnostics import token_similarity

# Touvron et al. (2021) and Devlin et al. (2019); weights as transformers draws them.
MODELS: dict[str, Any] = {
    "DeiT-Ti": (ViTModel, ViTConfig, {
        "hidden_size": 192, "num_attention_heads": 3, "intermediate_size": 768,
    }),
    "BERT-base": (BertModel, BertConfig, {}),
}  # fmt: skip
OPERATORS: dict[str, Any] = {"softmax": Softmax, "NeuTRENO": lambda: Neutreno(Softmax())}
_N_LAYERS, _N_WORDS, _N_SENTENCES = 12, 128, 8
_MEAN, _SPREAD = 0.5, 0.5  # of levels, the library's own


def draw_inputs(name: str, n_words: int) -> Tensor:
    """The two photographs of scikit-learn, or sentences of words drawn at random."""
    if name == "BERT-base":
        generator = torch.Generator().manual_seed(0)
        return torch.randint(1000, 30_000, (_N_SENTENCES, n_words), generator=generator)
    pictures = torch.from_numpy(np.stack(load_sample_images().images))
    planes = pictures.movedim(-1, 1).float() / 255
    return torch.nn.functional.interpolate((planes - _MEAN) / _SPREAD, (224, 224), mode="area")


@torch.no_grad()
def measure_cosines(
    name: str, operator: str, seed: int, n_layers: int, n_words: int
) -> Iterator[dict[str, Any]]:
    """Mean cosine of two tokens before the first layer, 0, and behind each."""
    kind, config, sizes = MODELS[name]
    torch.manual_seed(seed)
    model = kind(config(num_hidden_layers=n_layers, **sizes)).eval()
    attach_huggingface(model, OPERATORS[operator]())
    states = model(draw_inputs(name, n_words), output_hidden_states=True).hidden_states
    for layer, tokens in enumerate(states):
        cosine = float(token_similarity(tokens.double()).mean())
        yield {
            "network": name, "operator": operator, "seed": seed, "layer": layer,
            "token_cosine": cosine,
        }  # fmt: skip


def cosine_lines(table: pd.DataFrame) -> Lines:
    """Headings and cells: a line for each layer, means over seeds."""
    means = table.groupby(["layer", "network", "operator"], sort=False).token_cosine.mean()
    columns = means.unstack(["network", "operator"])
    head = ("layer", *(f"{name}, {operator}" for name, operator in columns))
    lines = [(f"{layer}", *(number(x, ".3f") for x in own)) for layer, own in columns.iterrows()]
    return head, lines


def draw_cosines(table: pd.DataFrame, path: Path) -> None:
    """Draw a panel for each network, a line for each operator and seed."""
    names = table.network.unique()
    figure, axes = panels(len(names), (3.6, 2.8), sharey=True)
    colours = dict(zip(OPERATORS, ("#0072B2", "#D55E00"), strict=True))
    for own, name in zip(axes, names, strict=True):
        for (operator, seed), rows in table[table.network == name].groupby(["operator", "seed"]):
            own.plot(
                rows.layer, rows.token_cosine, color=colours[str(operator)],
                label=operator if seed == 0 else None,
            )  # fmt: skip
        own.set_title(f"{name}, untrained")
        own.set_xlabel("layer")
        plain(own)
    axes[0].set_ylabel("mean cosine of two tokens")
    legend(figure, "lower center", ncols=len(colours))
    save(figure, path)


def measure_all(options: Options) -> pd.DataFrame:
    """The cosines of all networks with every operator."""
    return pd.DataFrame(
        row
        for name in MODELS
        for operator in OPERATORS
        for seed in options.all_seeds
        for row in measure_cosines(name, operator, seed, _N_LAYERS, _N_WORDS)
    )


NOTE = (
    "Weights are drawn as transformers draws them, with a standard deviation of 0.02; nothing is "
    "trained. 0 is what enters the first layer. DeiT-Ti is shown two photographs, BERT "
    f"{_N_SENTENCES} sentences of {_N_WORDS} words drawn at random."
)


def main(seeds: Seeds = 3, output: Output = Path("results/untrained")) -> None:
    """Measure all networks with every operator, and write the table."""
    title, figures = "Mean cosine of two tokens, by layer", {"cosines.png": draw_cosines}
    study = Study("", title, measure_all, cosine_lines, figures, notes=lambda table: [NOTE])
    settings = {"seeds": seeds, "layers": _N_LAYERS, "words": _N_WORDS}
    write_found(__file__, [study], settings, output, seeds=seeds)


if __name__ == "__main__":
    run_script(__file__)
