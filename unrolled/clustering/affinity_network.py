"""A network that weighs the edges of a graph of points, and its training by random walks."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
import torch
from scipy.sparse import csr_array
from torch import Tensor, nn

from ...solvers.inputs import Array, narrow
from ..generators import seeded
from .edge_features import Edges

WEIGHTS = Path(__file__).with_name("affinity_network.npz")
_LARGEST = 4.0  # largest standardised feature
_SPREAD = 1e-3  # added to standard deviations
_UNJOINED = 1e-4  # weight of each point that is spread over all points
_SMALLEST = 1e-6  # added to probabilities before their logarithm
_BATCH, _LEARNING_RATE, _DECAY, _AVERAGE = 4, 2e-3, 1e-3, 0.02


class AffinityNetwork(nn.Module):
    """Weights in (0, 1) of the edges of a graph, by a perceptron of their `edge_features`.

    ::

        w_ij = sigmoid(mlp(f_ij, (f_ij - m) / s, m, s, context))

    f_ij are the features of an edge, m and s their means and standard deviations over the edges of
    the graph; the perceptron has two hidden layers with SiLU. The network itself
    does not depend on the number, the dimension or the order of the points.

    Parameters
    ----------
    n_features : int, default=53
    n_context : int, default=27
    width : int, default=32
        Width of the hidden layers.
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
        """Return the weights, of shape (n_edges,)."""
        inputs = (self._join_features(edges) - self.mean) / self.scale
        weights: Tensor = torch.sigmoid(self.layers(inputs)[:, 0])
        return weights

    @torch.no_grad()
    def affinity(self, edges: Edges) -> csr_array:
        """Return the weights as a symmetric matrix of shape (n_points, n_points), in float64."""
        weights = self(edges).double().cpu().numpy()
        shape = edges.n_points, edges.n_points
        upper = csr_array((weights, (edges.i, edges.j)), shape=shape)
        return narrow(upper + upper.T)

    def standardise(self, problems: Iterable[Edges]) -> None:
        """Set mean and scale of the inputs from several graphs; each graph has the same weight."""
        inputs = [self._join_features(edges) for edges in problems]
        means = torch.stack([x.mean(dim=0) for x in inputs])
        squares = torch.stack([x.square().mean(dim=0) for x in inputs])
        self.mean.copy_(means.mean(dim=0))
        spread = squares.mean(dim=0) - self.mean.square()
        self.scale.copy_(spread.clamp(min=0).sqrt() + 0.05)

    def _join_features(self, edges: Edges) -> Tensor:
        """Return the inputs of the perceptron, one row an edge, before they are standardised."""
        features, context = (
            torch.as_tensor(x, dtype=self.mean.dtype, device=self.mean.device)
            for x in (edges.features, edges.context)
        )
        if not len(features):
            return features.new_zeros(0, len(self.mean))
        mean, spread = features.mean(dim=0), features.std(dim=0, correction=0)
        relative = ((features - mean) / (spread + _SPREAD)).clamp(-_LARGEST, _LARGEST)
        graph_features = torch.cat([mean, spread, context]).expand(len(features), -1)
        return torch.cat([features, relative, graph_features], dim=1)


@dataclass(frozen=True, eq=False)
class LabelledEdges:
    """A graph for training: its edges, and the cluster labels of its points."""

    edges: Edges
    labels: Array


def walk_loss(weights: Tensor, problem: LabelledEdges, doublings: Sequence[int]) -> Tensor:
    """Return how far random walks are from drawing points of their own cluster at random.

    ::

        mean over i of  KL(q_i || (P^t)_i),    P = D^(-1) W,   t = 2^m for m in doublings

    The target ``q_i`` is uniform on the cluster of point i. W holds the `weights`, with at least
    1e-4 / n for every pair of points, and D its row sums. A walk that leaves the cluster increases
    the loss, and so does one that does not reach all of it. Short walks require short paths between
    any two points of a cluster, long walks few edges out of it.

    Returns
    -------
    Tensor of shape ()
        The mean over all t.
    """
    edges, n = problem.edges, problem.edges.n_points
    pairs = torch.as_tensor(edges.i), torch.as_tensor(edges.j)
    W = weights.new_zeros(n, n).index_put(pairs, weights)
    P = W + W.T + _UNJOINED / n
    P = P / P.sum(dim=1, keepdim=True)
    labels = torch.as_tensor(problem.labels)
    q = (labels[:, None] == labels).to(P)
    q = q / q.sum(dim=1, keepdim=True)
    negative_entropy = torch.special.xlogy(q, q).sum(dim=1).mean()
    total = weights.new_zeros(())
    for m in range(1, max(doublings) + 1):
        P = P @ P
        if m in doublings:
            cross_entropy_term = (q * torch.log(P + _SMALLEST)).sum(dim=1).mean()
            total = total + (negative_entropy - cross_entropy_term) / len(doublings)
    return total


def train_affinity_network(
    problems: Sequence[LabelledEdges],
    *,
    n_epochs: int = 6,
    doublings: Sequence[int] = (6,),
    width: int = 32,
    seed: int = 0,
) -> tuple[AffinityNetwork, list[float]]:
    """Train on graphs with known clusters, by AdamW on the `walk_loss` of four graphs at a time.

    The returned parameters are an exponential average over the steps; each step has the weight
    0.02.

    Returns
    -------
    network : AffinityNetwork
    losses : list of float
        Mean loss of each epoch.
    """
    first = problems[0].edges
    with seeded(seed):
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
    """Write parameters and buffers in float32 to a NumPy archive."""
    np.savez(path, **{name: x.float().numpy() for name, x in network.state_dict().items()})


def load_affinity_network(path: str | Path = WEIGHTS) -> AffinityNetwork:
    """Load a network that `save_affinity_network` wrote, by default the packaged one."""
    with np.load(path) as arrays:
        state = {name: torch.from_numpy(arrays[name]) for name in arrays.files}
    width = len(state["layers.0.bias"])
    network = AffinityNetwork(width=width)
    network.load_state_dict(state)
    return network.eval()
