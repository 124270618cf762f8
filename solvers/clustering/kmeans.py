"""k-means of few points with many restarts, with the random draws and stopping of scikit-learn."""

import numpy as np
from sklearn.cluster import KMeans
from sklearn.utils import check_random_state

from ..inputs import Array
from ..kernels.compiled import jit_reordered

_N_INIT = 20
_MAX_ITER, _TOL = 300, 1e-4
_ROUNDING = 1e-12  # share of the potential below which a distance is rounding
_PART = 512  # points whose distances are computed at a time


class RepeatedKMeans:
    """k-means with 20 restarts on the same points, for many seeds.

    The labels are those of ``sklearn.cluster.KMeans(n_clusters, n_init=20, random_state=seed)`` up
    to rounding: greedy k-means++ with the same draws, Lloyd iterations with the same stopping rule,
    and the same choice among the restarts. A distance from a point to a centre is computed only if
    bounds do not determine the nearest centre (Hamerly, "Making k-means even faster", 2010).
    scikit-learn computes the labels of fewer distinct points than clusters, and of seeds for which
    a cluster becomes empty. Exact ties, as on a grid, may lead to another local optimum.

    Parameters
    ----------
    X : ndarray of shape (n_samples, n_features)
    n_clusters : int
    """

    def __init__(self, X: Array, n_clusters: int) -> None:
        self.X, self.n_clusters = X, n_clusters
        centred = np.ascontiguousarray(X - X.mean(axis=0), dtype=np.float64)
        self._points = centred, (centred**2).sum(axis=1)

    def labels(self, random_state: int | np.random.RandomState | None) -> Array:
        """Labels for one seed."""
        rng = check_random_state(random_state)
        begun = rng.get_state()
        labels, failed = _best_of_restarts(*self._points, *self._draws(rng), self._tol())
        if not failed:
            return labels
        rng.set_state(begun)
        model = KMeans(self.n_clusters, n_init=_N_INIT, random_state=rng)
        return model.fit_predict(self.X)

    def _draws(self, rng: np.random.RandomState) -> tuple[Array, Array]:
        """Draw first centres, and uniform numbers that choose candidates for further centres."""
        n, k = len(self.X), self.n_clusters
        n_trials = 2 + int(np.log(k))
        weights = np.full(n, 1 / n)
        first = np.empty(_N_INIT, dtype=np.intp)
        uniform = np.empty((_N_INIT, k - 1, n_trials))
        for restart in range(_N_INIT):
            first[restart] = rng.choice(n, p=weights)
            uniform[restart] = rng.uniform(size=uniform.shape[1:])
        return first, uniform

    def _tol(self) -> float:
        return _TOL * float(self.X.var(axis=0).mean())


@jit_reordered
def _best_of_restarts(
    X: Array, squares: Array, first: Array, uniform: Array, tol: float
) -> tuple[Array, bool]:
    """Return the labels of smallest inertia, and whether clusters coincide or one got empty."""
    n, n_restarts, k = len(X), len(first), uniform.shape[1] + 1
    rounding = _ROUNDING * 2 * squares.sum()  # the mean potential of a single centre
    closest, second = np.full((n_restarts, n), np.inf), np.full((n_restarts, n), np.inf)
    labels, best_labels = np.empty((n_restarts, n), np.int32), np.empty(n, np.int32)
    chosen, potential = _choose_centres(X, squares, first, uniform, closest, second, labels)
    best = np.inf
    for restart in range(n_restarts):
        if potential[restart] <= rounding:
            return best_labels, True
        own = labels[restart]
        inertia = _alternate(X, X[chosen[restart]], own, closest[restart], second[restart], tol)
        if inertia < 0:
            return best_labels, True
        if inertia < best and (restart == 0 or not _has_same_clusters(own, best_labels, k)):
            best = inertia
            best_labels[:] = own
    return best_labels, False


@jit_reordered
def _choose_centres(
    X: Array,
    squares: Array,
    first: Array,
    uniform: Array,
    closest: Array,
    second: Array,
    labels: Array,
) -> tuple[Array, Array]:
    """Choose the centres of all restarts by greedy k-means++.

    Of a few candidates, the one of smallest potential becomes a centre. Writes, for each restart
    and point, the squared distances to the two closest centres and the number of the closest.
    Returns the indices of the centres, and each potential before the last choice.
    """
    n_restarts, n = closest.shape
    k, n_trials = uniform.shape[1] + 1, uniform.shape[2]
    chosen = np.empty((n_restarts, k), np.intp)
    candidates, cumulated = np.empty((n_restarts, n_trials), np.intp), np.empty(n)
    chosen[:, 0] = first
    potential = before = _add_centres(X, squares, chosen[:, 0].copy(), 0, closest, second, labels)
    for j in range(1, k):
        before = potential
        for restart in range(n_restarts):
            total = 0.0
            for i in range(n):
                total += closest[restart, i]
                cumulated[i] = total
            for trial in range(n_trials):
                at = uniform[restart, j - 1, trial] * potential[restart]
                candidates[restart, trial] = min(np.searchsorted(cumulated, at), n - 1)
        potentials = _potentials(X, squares, candidates.reshape(-1), closest)
        for restart in range(n_restarts):
            own = potentials[restart * n_trials : (restart + 1) * n_trials]
            chosen[restart, j] = candidates[restart, np.argmin(own)]
        potential = _add_centres(X, squares, chosen[:, j].copy(), j, closest, second, labels)
    return chosen, before


@jit_reordered
def _potentials(X: Array, squares: Array, candidates: Array, closest: Array) -> Array:
    """Potentials of all restarts, were a candidate of theirs a centre, restart after restart."""
    totals = np.zeros(len(candidates))
    n_trials = len(candidates) // len(closest)
    for start in range(0, len(X), _PART):
        products = np.dot(X[candidates], X[start : start + _PART].T)
        own = squares[start : start + _PART]
        for c in range(len(candidates)):
            near, row = closest[c // n_trials, start : start + _PART], products[c]
            total, square = 0.0, squares[candidates[c]]
            for i in range(row.size):
                total += min(near[i], max(own[i] + square - 2 * row[i], 0.0))
            totals[c] += total
    return totals


@jit_reordered
def _add_centres(
    X: Array, squares: Array, centres: Array, j: int, closest: Array, second: Array, labels: Array
) -> Array:
    """Make one point the centre j of each restart; return the potentials."""
    totals = np.zeros(len(centres))
    for start in range(0, len(X), _PART):
        part = slice(start, start + _PART)
        products, own = np.dot(X[centres], X[part].T), squares[part]
        for c in range(len(centres)):
            row, square = products[c], squares[centres[c]]
            if start <= centres[c] < start + _PART:
                row[centres[c] - start] = np.inf  # the distance is zero in spite of rounding
            near, next_near, label = closest[c, part], second[c, part], labels[c, part]
            total = 0.0
            for i in range(row.size):
                distance = max(own[i] + square - 2 * row[i], 0.0)
                next_near[i] = min(next_near[i], max(near[i], distance))
                label[i] = j if distance < near[i] else label[i]
                near[i] = min(near[i], distance)
                total += near[i]
            totals[c] += total
    return totals


@jit_reordered
def _alternate(
    X: Array, centres: Array, labels: Array, closest: Array, second: Array, tol: float
) -> float:
    """Run Lloyd iterations from squared distances to the two closest centres.

    Returns the inertia, or -1 if a cluster becomes empty.
    """
    n, d = X.shape
    k = len(centres)
    upper, lower, means = np.sqrt(closest), np.sqrt(second), np.empty((k, d))
    counts, moved = np.empty(k, np.intp), np.empty(k)
    columns, scores = np.empty((d, k)), np.empty(k)
    for iteration in range(_MAX_ITER):
        changed = _assign(X, centres, columns, scores, labels, upper, lower)
        means[:] = 0.0
        counts[:] = 0
        for i in range(n):
            counts[labels[i]] += 1
            for t in range(d):
                means[labels[i], t] += X[i, t]
        if counts.min() == 0:
            return -1.0
        for j in range(k):
            for t in range(d):
                means[j, t] /= counts[j]
            moved[j] = _squared_distance(means[j], centres[j])
            centres[j] = means[j]
        shift = moved.sum()
        moved[:] = np.sqrt(moved)
        furthest = np.argmax(moved)
        others = 0.0
        for j in range(k):
            if j != furthest:
                others = max(others, moved[j])
        for i in range(n):
            upper[i] += moved[labels[i]]
            lower[i] -= others if labels[i] == furthest else moved[furthest]
        if iteration > 0 and not changed:
            break
        if shift <= tol or iteration == _MAX_ITER - 1:
            _assign(X, centres, columns, scores, labels, upper, lower)
            break
    inertia = 0.0
    for i in range(n):
        inertia += _squared_distance(X[i], centres[labels[i]])
    return inertia


@jit_reordered
def _assign(
    X: Array,
    centres: Array,
    columns: Array,
    scores: Array,
    labels: Array,
    upper: Array,
    lower: Array,
) -> bool:
    """Move each point to its nearest centre; return whether any label has changed.

    `upper` bounds the distance of a point to its own centre from above, `lower` the distances to
    the other centres from below.
    """
    k, d = centres.shape
    squares = np.empty(k)
    for j in range(k):
        squares[j] = 0.0
        for t in range(d):
            columns[t, j] = centres[j, t]
            squares[j] += centres[j, t] ** 2
    changed = False
    for i in range(len(X)):
        if upper[i] < lower[i]:
            continue
        square = _squared_distance(X[i], centres[labels[i]])
        upper[i] = np.sqrt(square)
        if upper[i] < lower[i]:
            continue
        scores[:] = squares
        norm = 0.0
        for t in range(d):
            norm += X[i, t] ** 2
            twice = 2 * X[i, t]
            for j in range(k):
                scores[j] -= twice * columns[t, j]
        nearest, least, second = 0, np.inf, np.inf
        for j in range(k):
            if scores[j] < least:
                nearest, least, second = j, scores[j], least
            elif scores[j] < second:
                second = scores[j]
        if nearest != labels[i]:
            labels[i] = nearest
            changed = True
        upper[i] = np.sqrt(max(least + norm, 0.0))
        lower[i] = np.sqrt(max(second + norm, 0.0))
    return changed


@jit_reordered
def _squared_distance(x: Array, y: Array) -> float:
    total = 0.0
    for t in range(len(x)):
        total += (x[t] - y[t]) ** 2
    return total


@jit_reordered
def _has_same_clusters(labels: Array, others: Array, k: int) -> bool:
    """Whether two clusterings are equal up to the names of the clusters."""
    name = np.full(k, -1, np.int32)
    for i in range(len(labels)):
        if name[labels[i]] == -1:
            name[labels[i]] = others[i]
        elif name[labels[i]] != others[i]:
            return False
    return True
