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
        self._points = centred, np.ascontiguousarray(centred.T), (centred**2).sum(axis=1)

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
    X: Array, columns: Array, squares: Array, first: Array, uniform: Array, tol: float
) -> tuple[Array, bool]:
    """Return the labels of smallest inertia, and whether clusters coincide or one got empty."""
    n, k = len(X), uniform.shape[1] + 1
    rounding = _ROUNDING * 2 * squares.sum()  # the mean potential of a single centre
    distances = np.empty((k, n))
    labels = np.empty(n, np.int32)
    best_labels = np.empty(n, np.int32)
    best = np.inf
    for restart in range(len(first)):
        chosen, potential = _choose_centres(
            X, columns, squares, first[restart], uniform[restart], distances
        )
        if potential <= rounding:
            return best_labels, True
        inertia = _alternate(X, distances, chosen, labels, tol)
        if inertia < 0:
            return best_labels, True
        if inertia < best and (restart == 0 or not _has_same_clusters(labels, best_labels, k)):
            best = inertia
            best_labels[:] = labels
    return best_labels, False


@jit_reordered
def _choose_centres(
    X: Array, columns: Array, squares: Array, first: int, uniform: Array, distances: Array
) -> tuple[Array, float]:
    """Choose centres by greedy k-means++: of a few candidates, the one of smallest potential.

    Writes the squared distances of all points to each centre. Returns the indices of the centres,
    and the potential before the last choice.
    """
    n = len(X)
    k, n_trials = uniform.shape[0] + 1, uniform.shape[1]
    chosen = np.empty(k, np.intp)
    cumulated, to_candidate = np.empty(n), np.empty(n)
    chosen[0] = first
    _find_distances(X, columns, squares, first, distances[0])
    closest = distances[0].copy()
    potential = before = closest.sum()
    for j in range(1, k):
        before = potential
        total = 0.0
        for i in range(n):
            total += closest[i]
            cumulated[i] = total
        lowest, to_chosen = np.inf, distances[j]
        for trial in range(n_trials):
            candidate = min(np.searchsorted(cumulated, uniform[j - 1, trial] * potential), n - 1)
            _find_distances(X, columns, squares, candidate, to_candidate)
            sum_of_least = 0.0
            for i in range(n):
                sum_of_least += min(closest[i], to_candidate[i])
            if sum_of_least < lowest:
                lowest, chosen[j] = sum_of_least, candidate
                to_chosen[:] = to_candidate
        potential = lowest
        for i in range(n):
            closest[i] = min(closest[i], to_chosen[i])
    return chosen, before


@jit_reordered
def _find_distances(X: Array, columns: Array, squares: Array, centre: int, out: Array) -> None:
    """Write the squared distances of all points to point `centre`."""
    for start in range(0, out.size, _PART):
        end = min(start + _PART, out.size)
        part, own = out[start:end], squares[start:end]
        for i in range(part.size):
            part[i] = own[i] + squares[centre]
        for t in range(len(columns)):
            twice, column = 2 * X[centre, t], columns[t, start:end]
            for i in range(part.size):
                part[i] -= twice * column[i]
        for i in range(part.size):
            part[i] = max(part[i], 0.0)
    out[centre] = 0.0


@jit_reordered
def _alternate(X: Array, distances: Array, chosen: Array, labels: Array, tol: float) -> float:
    """Run Lloyd iterations; return the inertia, or -1 if a cluster becomes empty."""
    n, d = X.shape
    k = len(chosen)
    upper, lower = np.full(n, np.inf), np.full(n, np.inf)
    for j in range(k):
        to_chosen = distances[j]
        for i in range(n):
            if to_chosen[i] < upper[i]:
                labels[i], upper[i], lower[i] = j, to_chosen[i], upper[i]
            elif to_chosen[i] < lower[i]:
                lower[i] = to_chosen[i]
    upper, lower = np.sqrt(upper), np.sqrt(lower)
    centres, means = X[chosen], np.empty((k, d))
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
        second = 0.0
        for j in range(k):
            if j != furthest:
                second = max(second, moved[j])
        for i in range(n):
            upper[i] += moved[labels[i]]
            lower[i] -= second if labels[i] == furthest else moved[furthest]
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
