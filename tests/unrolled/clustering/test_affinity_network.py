"""The network of edges: its loss, its training, its file, and the clusterer by it."""

import inspect

import numpy as np
import pytest
import torch
import train_affinity_network as learn_affinity
from numpy.testing import assert_allclose
from sklearn.preprocessing import normalize
from train_affinity_network import KINDS, make_union

from twinsolve.datasets import make_union_of_subspaces
from twinsolve.solvers import clustering_accuracy
from twinsolve.unrolled.clustering import LearnedAffinityClustering
from twinsolve.unrolled.clustering.affinity_network import (
    AffinityNetwork,
    LabelledEdges,
    load_affinity_network,
    save_affinity_network,
    train_affinity_network,
    walk_loss,
)
from twinsolve.unrolled.clustering.edge_features import Edges, edge_features
from twinsolve.unrolled.generators import seeded

from .learned_cases import data


def subspaces(seeds):
    drawn = (data(seed, noise=0.4) for seed in seeds)
    return [LabelledEdges(edge_features(normalize(X)), y) for X, y in drawn]


def test_loss_is_the_divergence_of_literal_walks():
    rng = np.random.default_rng(0)
    n, labels = 7, np.array([0, 0, 0, 1, 1, 2, 2])
    i, j = np.triu_indices(n, 1)
    weights = rng.uniform(size=len(i))
    W = np.full((n, n), 1e-4 / n)
    W[i, j] += weights
    W[j, i] += weights
    P, own = W / W.sum(axis=1, keepdims=True), labels[:, None] == labels
    uniform = own / own.sum(axis=1)
    walks = [np.linalg.matrix_power(P, t)[own] for t in (2, 8)]
    expected = sum((uniform[own] * np.log(uniform[own] / walk)).sum() for walk in walks) / n / 2
    problem = LabelledEdges(Edges(i, j, np.zeros((len(i), 1)), np.zeros(1), n), labels)
    found = walk_loss(torch.tensor(weights), problem, (1, 3))
    assert_allclose(float(found), expected, rtol=1e-4)


def test_gradient_of_the_loss():
    labels = np.array([0, 0, 1, 1, 1])
    i, j = np.triu_indices(5, 1)
    problem = LabelledEdges(Edges(i, j, np.zeros((10, 1)), np.zeros(1), 5), labels)
    weights = torch.linspace(0.1, 0.9, 10, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda w: walk_loss(w, problem, (1, 2)), weights)


def test_training_finds_clusters_of_new_unions():
    problems, new = subspaces((0, 1, 2, 3, 4, 5)), subspaces((6, 7))
    network, losses = train_affinity_network(problems, n_epochs=40, doublings=(3, 6))
    assert losses[-1] < 0.5 * losses[0]
    with seeded(0):
        untrained = AffinityNetwork()
    untrained.standardise(problem.edges for problem in problems)
    with torch.no_grad():
        before, after = (
            np.mean([float(walk_loss(net(p.edges), p, (3, 6))) for p in new])
            for net in (untrained, network)
        )
    assert after < 0.7 * before


def test_file_gives_the_network_again(tmp_path):
    torch.manual_seed(0)
    network, edges = AffinityNetwork(width=8), edge_features(normalize(data()[0]))
    network.standardise([edges])
    save_affinity_network(network, tmp_path / "some.npz")
    again = load_affinity_network(tmp_path / "some.npz")
    assert torch.equal(network(edges), again(edges))
    with np.load(tmp_path / "some.npz", allow_pickle=False) as arrays:
        assert set(arrays.files) == set(network.state_dict())


def test_command_writes_a_network(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(learn_affinity, "KINDS", {"subspaces": KINDS["subspaces"]})
    learn_affinity.main([str(tmp_path / "net.npz"), "--n-each", "1", "--n-epochs", "2"])
    assert capsys.readouterr().out.count("loss") == 2
    network = load_affinity_network(tmp_path / "net.npz")
    model = LearnedAffinityClustering(3, network=network).fit(data()[0])
    for own, given in zip(model.network_.parameters(), network.parameters(), strict=True):
        assert torch.equal(own, given)


@pytest.mark.parametrize("kind", KINDS)
def test_unions_are_clusters_of_unit_rows_and_repeat(kind):
    (X, y), (again, _) = make_union(kind, 3), make_union(kind, 3)
    assert_allclose(np.linalg.norm(X, axis=1), 1)
    assert np.bincount(y).min() >= 15
    assert (again == X).all()


def test_weights_are_symmetric_and_the_fit_reads_no_labels():
    X, y = data(noise=0.3)
    model = LearnedAffinityClustering(3, random_state=0).fit(X)
    assert (model.coef_ != model.coef_.T).nnz == 0
    assert model.coef_.max() <= 1
    assert clustering_accuracy(y, model.labels_) == 1
    assert (model.fit(X, 1 - y).coef_ != model.coef_).nnz == 0
    assert "y" not in inspect.signature(edge_features).parameters


@pytest.mark.parametrize("network", [3, AffinityNetwork])
def test_what_is_no_network_is_refused(network):
    with pytest.raises(TypeError, match="network: must be an AffinityNetwork or None, got"):
        LearnedAffinityClustering(2, network=network).fit(data()[0])


def test_fits_share_no_network():
    X, _ = make_union_of_subspaces(12, n_subspaces=2, random_state=0)
    before = LearnedAffinityClustering(2).fit(X)
    with pytest.raises(NotImplementedError):
        LearnedAffinityClustering(2, device="meta").fit(X)
    own = before.network_
    with torch.no_grad():
        for parameter in own.parameters():
            parameter.zero_()
    after = LearnedAffinityClustering(2, network=own).fit(X)
    assert after.network_ is not own
    again = LearnedAffinityClustering(2).fit(X)
    assert abs(again.coef_ - before.coef_).max() == 0
