"""Energies of filter responses: diffusion, convex ridges, l1 analysis and total variation."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.fft import dctn, idctn

from twinsolve.solvers.nonlocal_energy import (
    FilterBank,
    NonlocalFilterBank,
    Potentials,
    convex_ridge,
    dct_filters,
    filter_diffusion_step,
    filter_energy,
    filter_energy_gradient,
    l1_analysis,
    minimize_convex_ridge,
    total_variation,
)
from twinsolve.solvers.oracles import nonlocal_energy as oracles

BORDERS = ("inside", "circular", "zero")
rng = np.random.default_rng(0)
IMAGE, OTHER = rng.random((9, 11)), rng.random((9, 11))
FILTERS = rng.standard_normal((4, 3, 3))
POTENTIALS = Potentials(rng.random((4, 2)), rng.standard_normal((4, 2)))


SIMILAR = rng.integers(0, 63, (63, 3))
BANKS = [FilterBank(FILTERS, borders=borders) for borders in BORDERS]
SHARING = np.array([-0.3, 0.0, 0.6, 1.4])
BANKS += [NonlocalFilterBank(FILTERS, SIMILAR, sharing=SHARING)]


def matrix(bank, shape):
    """K, a column a pixel."""
    units = np.eye(shape[0] * shape[1]).reshape(-1, *shape)
    return np.stack([bank(unit).ravel() for unit in units], axis=1)


def test_adjoint_is_the_transpose_fe_1():
    for bank in BANKS:
        p = rng.standard_normal(bank(IMAGE).shape)
        expected = matrix(bank, IMAGE.shape).T @ p.ravel()
        assert_allclose(bank.adjoint(p).ravel(), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("bank", BANKS)
def test_gradient_is_that_of_the_energy_fe_1(bank):
    lam, step = 0.3, 1e-6
    slope = (filter_energy_gradient(IMAGE, OTHER, bank, POTENTIALS, lam=lam) * OTHER).sum()
    ahead, behind = (
        filter_energy(IMAGE + h * OTHER, OTHER, bank, POTENTIALS, lam=lam) for h in (step, -step)
    )
    assert_allclose((ahead - behind) / (2 * step), slope, rtol=1e-6)


def test_transform_reaches_all_but_means_fe_2():
    for size in [3, 4]:
        bank = FilterBank(dct_filters(size), borders="circular")
        mean = FilterBank(np.full((1, size, size), size**-2.0), borders="circular")
        without = IMAGE - mean.adjoint(mean(IMAGE))
        assert_allclose(bank.adjoint(bank(IMAGE)), size**2 * without, rtol=0, atol=1e-12 * size**2)


@pytest.mark.parametrize("borders", ["inside", "circular"])
def test_first_step_is_soft_thresholding_of_windows_fe_2(borders):
    size, t = 4, 0.2
    continued = np.pad(IMAGE, (0, size - 1), mode="wrap") if borders == "circular" else IMAGE
    total, counts = np.zeros((12, 14)), np.zeros((12, 14))
    for y in range(continued.shape[0] - size + 1):
        for x in range(continued.shape[1] - size + 1):
            c = dctn(continued[y : y + size, x : x + size], norm="ortho")
            mean = c[0, 0]
            c = np.sign(c) * np.maximum(np.abs(c) - t, 0)
            c[0, 0] = mean
            for dy, row in enumerate(idctn(c, norm="ortho")):
                for dx, value in enumerate(row):
                    place = (y + dy) % 9, (x + dx) % 11
                    total[place] += value
                    counts[place] += 1
    expected = total[:9, :11] / counts[:9, :11]
    bank = FilterBank(dct_filters(size), borders=borders)
    huber = Potentials(np.full((15, 1), t), np.ones((15, 1)))
    found = filter_diffusion_step(IMAGE, IMAGE, bank, huber, lam=0.7)
    assert_allclose(found, expected, rtol=0, atol=1e-12)


def test_steps_on_a_convex_energy_descend_at_the_proved_rate_fe_1():
    for borders in BORDERS:
        bank, lam = FilterBank(dct_filters(3), borders=borders), 0.2
        huber = Potentials(np.full((8, 1), 0.1), np.full((8, 1), 1 - lam))  # so that L = 1
        counts, u, energies = bank.counts(IMAGE.shape), IMAGE, []
        for _ in range(400):
            u = filter_diffusion_step(u, IMAGE, bank, huber, lam=lam)
            energies.append(filter_energy(u, IMAGE, bank, huber, lam=lam))
        assert np.diff(energies).max() <= 1e-12
        size = (counts * (IMAGE - u) ** 2).sum()
        bound = size / (2 * np.arange(1, 401))
        assert ((np.array(energies) - energies[-1]) <= bound).all()


def test_norm_is_bounded_closely():
    for borders, shape in [
        ("inside", (9, 9)),
        ("circular", (14, 16)),
        ("zero", (9, 9)),
        ("zero", (14, 16)),
    ]:
        weights = rng.random(4)
        bank = FilterBank(FILTERS, borders=borders)
        K = matrix(FilterBank(np.sqrt(weights)[:, None, None] * FILTERS, borders=borders), shape)
        norm, bound = np.linalg.norm(K, 2) ** 2, bank.norm_bound(weights)
        assert norm <= bound
        assert borders != "zero" or shape == (9, 9) or bound <= 1.1 * norm


def test_responses_are_mixed_with_those_to_similar_windows():
    alone = FilterBank(FILTERS)(IMAGE).reshape(4, -1)
    b = SHARING[:, None]
    expected = (1 - b) * alone + b * alone[:, SIMILAR].mean(axis=2)
    assert_allclose(BANKS[-1](IMAGE).reshape(4, -1), expected, rtol=1e-12)


def test_norm_is_bounded_where_the_one_of_the_filters_does_not_hold():
    weights = np.array([0.5, 1.0, 2.0, 0.1])
    all_to_one = NonlocalFilterBank(FILTERS, np.full((63, 1), 7), sharing=1.0)
    for bank in (BANKS[-1], all_to_one):
        K = matrix(bank, IMAGE.shape).reshape(4, -1, IMAGE.size)
        exact = np.linalg.norm(np.einsum("i,iwp,iwq->pq", weights, K, K), 2)
        assert exact <= bank.norm_bound(weights)
    assert exact > FilterBank(FILTERS).norm_bound(weights)


def concave_ridge(rho=0.9):
    """W of norm 1, and potentials convex near 0 and concave beyond."""
    bank = FilterBank(FILTERS)
    bank = FilterBank(FILTERS / np.sqrt(bank.norm_bound()))
    thresholds = np.tile([0.05, 0.3], (4, 1))
    return bank, Potentials(thresholds, np.tile([3 + rho, -rho], (4, 1)))


def test_certificate_holds_against_a_hundred_times_the_accuracy_fe_3():
    bank, potentials = concave_ridge()
    exact = minimize_convex_ridge(IMAGE, bank, potentials, lam=1.0, tol=1e-12)
    for tol in (1e-2, 1e-4, 1e-6):
        found = minimize_convex_ridge(IMAGE, bank, potentials, lam=1.0, tol=tol)
        assert found.gap <= tol
        assert exact.gap <= tol / 100
        distance = np.sqrt(((found.coef - exact.coef) ** 2).mean())
        assert 0 < distance <= found.gap + exact.gap
        problem = convex_ridge(IMAGE, bank, potentials, lam=1.0)
        excess = found.objective - exact.objective
        assert excess <= problem.convexity * IMAGE.size * found.gap**2 / 2 + 1e-15


def test_convexity_and_smoothness_bound_the_curvature_fe_3():
    bank, potentials = concave_ridge()
    problem = convex_ridge(IMAGE, bank, potentials, lam=1.0)
    assert_allclose(problem.convexity, 0.1, rtol=1e-12)
    for _ in range(20):
        u, v = (rng.standard_normal(IMAGE.shape) * rng.choice([0.1, 1, 5]) for _ in range(2))
        product = ((problem.gradient(u) - problem.gradient(v)) * (u - v)).sum()
        ratio = product / ((u - v) ** 2).sum()
        assert problem.convexity <= ratio <= problem.smoothness


def test_the_root_of_what_is_convex_is_not_convex_erratum_e10l():
    # H = I/2, so that lam_min(H^T H) = 1/4: with rho = 1, lam = 0.4 is under its root, 1/2.
    lam, bank = 0.4, FilterBank(np.ones((1, 1, 1)))
    potentials = Potentials(np.array([[0.1, 2.0]]), np.array([[2.0, -1.0]]))  # rho = 1

    def energy(u):
        return (0.5 * u) ** 2 / 2 + lam * potentials.value(np.full((1, 1, 1), u))

    assert energy(0.5) > (energy(0.3) + energy(0.7)) / 2
    convex_ridge([[0.5]], bank, potentials, lam=0.9)
    with pytest.raises(ValueError, match=r"^lam: .*convex"):
        convex_ridge([[0.5]], bank, potentials, lam=1.0)


def test_convex_ridge_is_the_oracle_s_fe_3():
    image, potentials = IMAGE[:6, :7], Potentials(rng.random((4, 2)), rng.random((4, 2)))
    found = minimize_convex_ridge(image, FilterBank(FILTERS), potentials, lam=0.3)
    expected = oracles.minimize_convex_ridge(image, FILTERS, *potentials, lam=0.3)
    assert_allclose(found.coef, expected, atol=1e-5)


def test_l1_analysis_is_the_oracle_s_fe_5():
    image, filters = IMAGE[:6, :7], FILTERS - FILTERS.mean(axis=(1, 2), keepdims=True)
    found = l1_analysis(image, FilterBank(filters), lam=0.02)
    assert_allclose(found.coef, oracles.l1_analysis(image, filters, lam=0.02), atol=1e-5)


def test_total_variation_is_the_oracle_s_fe_5():
    for isotropic in [True, False]:
        image = IMAGE[:6, :7]
        found = total_variation(image, lam=0.1, isotropic=isotropic)
        expected = oracles.total_variation(image, lam=0.1, isotropic=isotropic)
        assert_allclose(found.coef, expected, atol=1e-5)


HOLES = np.random.default_rng(2).random(IMAGE.shape) > 0.2
HOLES[1:4, 2:5] = False


@pytest.mark.parametrize("lam", [1e-3, 0.1, 3.0])
@pytest.mark.parametrize("isotropic", [True, False])
def test_total_variation_fills_holes_as_the_oracle(isotropic, lam):
    image, mask = IMAGE[:6, :7], HOLES[:6, :7]
    found = total_variation(image, lam=lam, isotropic=isotropic, mask=mask, tol=1e-9)
    expected = oracles.total_variation(image, lam=lam, isotropic=isotropic, mask=mask)

    def objective(u):
        down, right = (np.diff(u, axis=a, append=u.take([-1], axis=a)) for a in (0, 1))
        size = np.hypot(down, right) if isotropic else np.abs(down) + np.abs(right)
        return ((u - image)[mask] ** 2).sum() / 2 + lam * size.sum()

    # Only valid pixels are determined; a gap of 1e-9 lets them be 1e-4 apart.
    assert_allclose(found.coef[mask], expected[mask], atol=3e-4)
    unit = ((image[mask] - image[mask].mean()) ** 2).sum()
    assert found.converged
    assert found.objective == pytest.approx(objective(found.coef), rel=1e-12)
    assert objective(found.coef) - objective(expected) <= found.gap * unit + 1e-12


def test_total_variation_never_reads_holes_and_keeps_its_gap_true():
    exact = total_variation(IMAGE, lam=0.02, mask=HOLES, tol=1e-9)
    rough = total_variation(IMAGE, lam=0.02, mask=HOLES, tol=1e-3)
    unit = ((IMAGE[HOLES] - IMAGE[HOLES].mean()) ** 2).sum()
    apart = ((rough.coef - exact.coef)[HOLES] ** 2).sum() / 2
    assert 0 < apart <= (rough.gap + exact.gap) * unit
    for value in (1e6, np.nan, np.inf):
        filled = np.where(HOLES, IMAGE, value)
        found = total_variation(filled, lam=0.02, mask=HOLES, tol=1e-3)
        assert_array_equal(found.coef, rough.coef)
    whole = total_variation(IMAGE, lam=0.02, mask=np.ones(IMAGE.shape, bool))
    assert_array_equal(whole.coef, total_variation(IMAGE, lam=0.02).coef)
    for changed in (5 + IMAGE, 1e-6 * IMAGE):
        scale = np.ptp(changed) / np.ptp(IMAGE)
        moved = total_variation(changed, lam=0.02 * scale, mask=HOLES, tol=1e-3)
        assert moved.gap == pytest.approx(rough.gap, rel=1e-5)
    flat = total_variation(np.where(HOLES, 2.0, np.nan), lam=0.1, mask=HOLES)
    assert_allclose(flat.coef, 2, rtol=1e-15)
    with pytest.raises(ValueError, match="f: must not hold NaN or infinity, but where mask is"):
        total_variation(np.where(HOLES, IMAGE, np.nan), lam=0.1)
    with pytest.raises(ValueError, match="mask: must be an array of bool of shape"):
        total_variation(IMAGE, lam=0.1, mask=HOLES[1:])


@pytest.mark.parametrize("solve", [total_variation, lambda f, **options: l1_analysis(
    f, FilterBank(dct_filters(3)), **options)])  # fmt: skip
def test_gap_bounds_the_distance_fe_5(solve):
    exact = solve(IMAGE, lam=0.02, tol=1e-12)
    found = solve(IMAGE, lam=0.02, tol=1e-3)
    unit = ((IMAGE - IMAGE.mean()) ** 2).sum()
    assert 0 < ((found.coef - exact.coef) ** 2).sum() / 2 <= (found.gap + exact.gap) * unit
    assert found.objective - exact.objective <= found.gap * unit


def test_bad_arguments_are_named():
    bank = FilterBank(dct_filters(3))
    huber = Potentials(np.ones((8, 1)), np.ones((8, 1)))
    for name, call in [
        ("borders", lambda: FilterBank(FILTERS, borders="symmetric")),
        ("filters", lambda: FilterBank(FILTERS[0])),
        ("filters", lambda: FilterBank(FILTERS * np.nan)),
        ("f", lambda: filter_energy(IMAGE, IMAGE[:5], bank, huber, lam=1.0)),
        ("image", lambda: bank(np.zeros((2, 9)))),
        ("bank", lambda: l1_analysis(IMAGE, FilterBank(np.ones((1, 2, 2))), lam=1.0)),
        *(
            (name, lambda x=similar, b=sharing: NonlocalFilterBank(FILTERS, x, sharing=b)(IMAGE))
            for name, similar, sharing in [
                ("similar", np.full((63, 2), 63), 0.5),
                ("similar", np.full((63, 2), -1), 0.5),
                ("similar", np.zeros((63, 2)), 0.5),
                ("similar", np.zeros(63, dtype=int), 0.5),
                ("similar", np.zeros((62, 2), dtype=int), 0.5),
                ("sharing", SIMILAR, np.nan),
                ("sharing", SIMILAR, np.ones(3)),
            ]
        ),
    ]:
        with pytest.raises(ValueError, match=f"^{name}: "):
            call()
