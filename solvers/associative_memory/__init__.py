"""Modern Hopfield memories: the energy of a state, retrieval of patterns, and how exact it is."""

from .energy import hopfield_energy, retrieval_error_bound, retrieval_lipschitz_bound
from .retrieval import Retrieval, RetrievalStep, retrieval_step, retrieve

__all__ = [
    "Retrieval",
    "RetrievalStep",
    "hopfield_energy",
    "retrieval_error_bound",
    "retrieval_lipschitz_bound",
    "retrieval_step",
    "retrieve",
]
