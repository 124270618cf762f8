"""Data sets: `load_*` is packaged, `make_*` generated, `fetch_*` read from the data root."""

from sklearn.datasets import load_digits

from .faces import fetch_extended_yale_b
from .images import fetch_set12, load_photographs, make_noisy_crop
from .motion import fetch_hopkins155, homogeneous_coordinates, project_trajectories
from .objects import fetch_coil20
from .root import data_root
from .subspaces import make_union_of_subspaces

__all__ = [
    "data_root",
    "fetch_coil20",
    "fetch_extended_yale_b",
    "fetch_hopkins155",
    "fetch_set12",
    "homogeneous_coordinates",
    "load_digits",
    "load_photographs",
    "make_noisy_crop",
    "make_union_of_subspaces",
    "project_trajectories",
]
