"""Learned subspace clusterers as scikit-learn estimators: networks before the spectral step.

Imported by name, as `twins` is: they need the solvers' spectral step beside torch.
"""

from .attention_affinity import AttentionSubspaceClustering
from .deep import DeepSubspaceClustering
from .learned_affinity import LearnedAffinityClustering
from .self_expressive_network import SelfExpressiveSubspaceClustering
from .unrolled_ista import UnrolledSubspaceClustering

__all__ = [
    "AttentionSubspaceClustering",
    "DeepSubspaceClustering",
    "LearnedAffinityClustering",
    "SelfExpressiveSubspaceClustering",
    "UnrolledSubspaceClustering",
]
