"""Measures of what passes through an attention layer, by column of the table."""

from dataclasses import replace

from torch import Tensor

from ....unrolled.diagnostics import MEASURES, Observation, map_similarity, nonzero_share
from ....unrolled.diagnostics.energies import kernel_energy
from ....unrolled.diagnostics.hooks import Measure, find_neutreno

_LAM = 0.6  # of the energy if the layer has none; from the paper


def hides_keys(seen: Observation) -> bool:
    """Whether some keys are hidden from some queries."""
    return any(x is not None and x is not False for x in seen.masks.values())


def _measure_sum(seen: Observation) -> Tensor | None:
    """J without division by the sum of kernel weights; None with masks."""
    share = MEASURES["smoothness"](seen)
    if share is None or hides_keys(seen):
        return None
    logits = seen.k @ seen.k.mT * seen.k.shape[-1] ** -0.5
    return share * logits.exp().sum(dim=(-2, -1))


def _measure_head_redundancy(seen: Observation) -> Tensor | None:
    """Mean absolute cosine of the attention matrices of two heads."""
    heads = seen.attention_matrix.flatten(-2)
    return map_similarity(heads.mT) if heads.shape[-2] > 1 else None


def _measure_nonzeros(seen: Observation) -> Tensor | None:
    """Share of weights that are not zero, of sparse attention without masks."""
    if hides_keys(seen):
        return None
    share = nonzero_share(seen.attention_matrix)
    return share if share.lt(1).any() else None


def _measure_energy(seen: Observation) -> Tensor | None:
    """E with a pull to the first layer's values; lam is that of the layer or of the paper."""
    found = find_neutreno(seen.operator)
    lam = _LAM if found is None else found.lam()
    if seen.first_values.shape != seen.output.shape or "k" not in seen.operator.reads:
        return None
    return kernel_energy(seen.output, seen.k, f=seen.first_values, lam=lam, **seen.masks)


def _mix(seen: Observation) -> Observation:
    """The observation with mixing matrices in place of attention matrices."""
    mixed = replace(seen, previous=None if seen.previous is None else _mix(seen.previous))
    mixed.attention_matrix = seen.matrix
    return mixed


def _of_mixing(measure: Measure) -> Measure:
    """The measure of the mixing matrix; None where it is the attention matrix."""
    return lambda seen: None if seen.matrix is seen.attention_matrix else measure(_mix(seen))


OF_LAYERS: dict[str, Measure] = {
    "token_cosine": MEASURES["token_similarity"],
    "hc_share": MEASURES["high_frequency_share"],
    "J": MEASURES["smoothness"],
    "gradient_cosine": MEASURES["gradient_cosine"],
    "map_similarity": MEASURES["map_similarity"],
    "map_similarity_to_previous": MEASURES["map_similarity_to_previous"],
    "high_bands": MEASURES["high_band_intensity"],
    "nonzero_mean": _measure_nonzeros,
    "head_redundancy": _measure_head_redundancy,
    "J_sum": _measure_sum,
    "E": _measure_energy,
    "mixing_map_similarity": _of_mixing(MEASURES["map_similarity"]),
    "mixing_map_similarity_to_previous": _of_mixing(MEASURES["map_similarity_to_previous"]),
    "mixing_high_bands": _of_mixing(MEASURES["high_band_intensity"]),
    "mixing_head_redundancy": _of_mixing(_measure_head_redundancy),
}
