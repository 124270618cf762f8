"""A network that weighs the edges of any graph of points, trained by random walks on its graph."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
import torch
from scipy.sparse import csr_array
from torch import Tensor, nn

from ...solvers.solution import Array, narrow
from .edge_features import Edges
from .training import seeded_initialization

WEIGHTS = Path(__file__).with_name("affinity_network.npz")
_LARGEST = 4.0  # of a standardised feature
_SPREAD = 1e-3
_UNJOINED = 1e-4  # weight of all pairs of points together, for each point
_SMALLEST = 1e-6  # probability whose logarithm is taken
_BATCH, _LEARNING_RATE, _DECAY, _AVERAGE = 4, 2e-3, 1e-3, 0.02


class AffinityNetwork(nn.Module):
    """Weights in (0, 1) of the edges of a graph, by a perceptron of their `edge_features`.

    ::

        w_ij = sigmoid(mlp(f_ij, (f_ij - m) / s, m, s, context))

    with f the features of an edge, m and s their means and standard deviations over the edges of
    the graph, and two hidden layers with SiLU. It knows neither how many points there are nor of
    what dimension, and the order of points does not matter.

    Parameters
    ----------
    n_features : int, default=53
    n_context : int, default=27
    width : int, default=32
        Of the hidden layers.
    """

    mean: Tensor
    scale: Tensor

    def __init__(self, n_features: int = 53, n_context: int = 27, width: int = 32) -> None:
        super().__init__()
        n_inputs = 4 * n_features + n_context
        self.register_buffer("mean", torch.zeros(n_inputs))
        self.register_buffer("scale", torch.ones(n_inputs))
        self.layers = nn.Sequential(
            nn.Linear(n_inputs, width),
            nn.SiLU(),
            nn.Linear(width, width),
            nn.SiLU(),
            nn.Linear(width, 1),
        )

    def forward(self, edges: Edges) -> Tensor:
        """Weights of shape (n_edges,)."""
        inputs = (self._join_features(edges) - self.mean) / self.scale
        weights: Tensor = torch.sigmoid(self.layers(inputs)[:, 0])
        return weights

    @torch.no_grad()
    def affinity(self, edges: Edges) -> csr_array:
        """The weights as a symmetric matrix of shape (n_points, n_points), in float64."""
        weights = self(edges).double().cpu().numpy()
        shape = edges.n_points, edges.n_points
        upper = csr_array((weights, (edges.i, edges.j)), shape=shape)
        return narrow(upper + upper.T)

    def standardise(self, problems: Iterable[Edges]) -> None:
        """Take mean and spread of the inputs from edges, each graph alike."""
        inputs = [self._join_features(edges) for edges in problems]
        means = torch.stack([some.mean(dim=0) for some in inputs])
        squares = torch.stack([some.square().mean(dim=0) for some in inputs])
        self.mean.copy_(means.mean(dim=0))
        spread = squares.mean(dim=0) - self.mean.square()
        self.scale.copy_(spread.clamp(min=0).sqrt() + 0.05)

    def _join_features(self, edges: Edges) -> Tensor:
        features, context = (
            torch.as_tensor(some, dtype=self.mean.dtype, device=self.mean.device)
            for some in (edges.features, edges.context)
        )
        if not len(features):
            return features.new_zeros(0, len(self.mean))
        mean, spread = features.mean(dim=0), features.std(dim=0, correction=0)
        relative = ((features - mean) / (spread + _SPREAD)).clamp(-_LARGEST, _LARGEST)
        whole = torch.cat([mean, spread, context]).expand(len(features), -1)
        return torch.cat([features, relative, whole], dim=1)


@dataclass(frozen=True, eq=False)
class LabelledEdges:
    """A graph to learn from: edges, and the clusters of the points."""

    edges: Edges
    labels: Array


def walk_loss(weights: Tensor, problem: LabelledEdges, doublings: Sequence[int]) -> Tensor:
    """How far random walks on the graph are from drawing a point of the own cluster at random.

    ::

        mean over i of  KL(q_i || (P^t)_i),    P = D^(-1) W,   t = 2^m for m in doublings

    with ``q_i`` uniform on the cluster of point i: a walk that leaves the cluster costs, and so
    does one that does not reach all of it. Short walks ask for short ways between any two points of
    a cluster, long ones for few ways out. Every pair of points has a weight of 1e-4 / n at least.

    Returns
    -------
    Tensor of shape ()
        The mean over the t.
    """
    edges, n = problem.edges, problem.edges.n_points
    pairs = torch.as_tensor(edges.i), torch.as_tensor(edges.j)
    W = weights.new_zeros(n, n).index_put(pairs, weights)
    P = W + W.T + _UNJOINED / n
    P = P / P.sum(dim=1, keepdim=True)
    labels = torch.as_tensor(problem.labels)
    own = (labels[:, None] == labels).to(P)
    own = own / own.sum(dim=1, keepdim=True)
    negative_entropy = torch.special.xlogy(own, own).sum(dim=1).mean()
    total = weights.new_zeros(())
    for m in range(1, max(doublings) + 1):
        P = P @ P
        if m in doublings:
            cross = (own * torch.log(P + _SMALLEST)).sum(dim=1).mean()
            total = total + (negative_entropy - cross) / len(doublings)
    return total


def train_affinity_network(
    problems: Sequence[LabelledEdges],
    *,
    n_epochs: int = 6,
    doublings: Sequence[int] = (6,),
    width: int = 32,
    seed: int = 0,
) -> tuple[AffinityNetwork, list[float]]:
    """Train on graphs whose clusters are known, by AdamW on the `walk_loss` of four at a time.

    The parameters are averages over the last steps, with weights that fall by 0.02 a step.

    Returns
    -------
    network : AffinityNetwork
    losses : list of float
        Mean loss of each epoch.
    """
    first = problems[0].edges
    with seeded_initialization(seed):
        network = AffinityNetwork(first.features.shape[1], len(first.context), width)
    network.standardise(problem.edges for problem in problems)
    averaged = torch.optim.swa_utils.AveragedModel(
        network, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(1 - _AVERAGE)
    )
    batches = -(-len(problems) // _BATCH)
    optimizer = torch.optim.AdamW(network.parameters(), lr=_LEARNING_RATE, weight_decay=_DECAY)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, _LEARNING_RATE, total_steps=n_epochs * batches
    )
    rng = np.random.default_rng(seed)
    losses = []
    for _ in range(n_epochs):
        total = 0.0
        for batch in np.array_split(rng.permutation(len(problems)), batches):
            optimizer.zero_grad()
            for index in batch:
                problem = problems[index]
                loss = walk_loss(network(problem.edges), problem, doublings) / len(batch)
                loss.backward()
                total += float(loss.detach()) * len(batch)
            nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            averaged.update_parameters(network)
        losses.append(total / len(problems))
    return cast(AffinityNetwork, averaged.module.eval()), losses


def save_affinity_network(network: AffinityNetwork, path: str | Path) -> None:
    """Write parameters and buffers in float32 to a file of arrays."""
    np.savez(path, **{name: some.float().numpy() for name, some in network.state_dict().items()})


def load_affinity_network(path: str | Path = WEIGHTS) -> AffinityNetwork:
    """The network of a file that `save_affinity_network` wrote: by default the packaged one."""
    with np.load(path) as arrays:
        state = {name: torch.from_numpy(arrays[name]) for name in arrays.files}
    width = len(state["layers.0.bias"])
    network = AffinityNetwork(width=width)
    network.load_state_dict(state)
    return network.eval()
