"""Train the packaged affinity network on generated data, from nothing.

``python studies/train_affinity_network.py OUTPUT.npz`` takes two to three minutes of one
processor and 2 GiB, and gives the packaged file again, up to rounding of other processors.
"""

import argparse
from dataclasses import replace

import numpy as np
from unions import make_unions

from twinsolve.unrolled.clustering.affinity_network import (
    LabelledEdges,
    save_affinity_network,
    train_affinity_network,
)
from twinsolve.unrolled.clustering.edge_features import edge_features

N_EACH = 60


def training_problems(n_each: int = N_EACH, seed: int = 0) -> list[LabelledEdges]:
    """Graphs of generated unions, `n_each` of every kind, with features in float32."""
    found = []
    for X, labels in make_unions(n_each, seed):
        edges = edge_features(X)
        features = edges.features.astype(np.float32)
        found.append(LabelledEdges(replace(edges, features=features), labels))
    return found


def main(arguments: list[str] | None = None) -> None:
    """Train and write the network; the loss of each epoch goes to the screen."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("output", help="file of arrays to write, .npz")
    parser.add_argument("--n-each", type=int, default=N_EACH, help="problems of each kind")
    parser.add_argument("--n-epochs", type=int, default=6)
    given = parser.parse_args(arguments)
    network, losses = train_affinity_network(
        training_problems(given.n_each), n_epochs=given.n_epochs
    )
    for epoch, loss in enumerate(losses):
        print(f"epoch {epoch}: loss {loss:.4f}")
    save_affinity_network(network, given.output)


if __name__ == "__main__":
    main()
