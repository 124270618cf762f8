"""Boosting of filters: recursions that filter again what a filter returned or removed.

The recursions take any filter, linear or not. Measures and bounds describe their effect on the
signal, the noise and the Lipschitz constant.
"""

from .measures import method_noise, residual_noise_share, signal_to_noise_ratio, snr_gain_bound
from .residual_fitting import l2_boosting, twicing
from .skip_connections import boost, boosting_lipschitz_bound, generalized_residual
from .strengthening import sos_boosting, sos_tau_max

__all__ = [
    "boost",
    "boosting_lipschitz_bound",
    "generalized_residual",
    "l2_boosting",
    "method_noise",
    "residual_noise_share",
    "signal_to_noise_ratio",
    "snr_gain_bound",
    "sos_boosting",
    "sos_tau_max",
    "twicing",
]
