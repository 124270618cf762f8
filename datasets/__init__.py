"""Data sets: `load_*` reads packaged data or your files, `make_*` draws, `fetch_*` reads the root.

The data root is the folder of the published data sets, see `data_root`.
"""

from sklearn.datasets import load_digits

from .camvid import fetch_camvid
from .cifar import fetch_cifar10
from .faces import fetch_extended_yale_b, select_classes, yale_b_subsets
from .features import fourier_energies, pca_features
from .image_folder import load_image_folder, pack_image_folder
from .images import add_noise, fetch_set12, fetch_train400, load_photographs, make_noisy_crop
from .list_ops import make_list_ops
from .manifolds import make_union_of_manifolds
from .matlab_images import fetch_coil20, fetch_coil100, fetch_orl, fetch_usps, fetch_yale
from .mnist import fetch_emnist, fetch_fashion_mnist, fetch_mnist
from .motion import fetch_hopkins155, homogeneous_coordinates, project_trajectories
from .pathfinder import make_pathfinder
from .points import load_points
from .rigid import make_rigid_motions
from .root import data_root
from .scattering import scattering_features
from .subspaces import make_union_of_subspaces
from .wikitext import fetch_wikitext2

__all__ = [
    "add_noise",
    "data_root",
    "fetch_camvid",
    "fetch_cifar10",
    "fetch_coil20",
    "fetch_coil100",
    "fetch_emnist",
    "fetch_extended_yale_b",
    "fetch_fashion_mnist",
    "fetch_hopkins155",
    "fetch_mnist",
    "fetch_orl",
    "fetch_set12",
    "fetch_train400",
    "fetch_usps",
    "fetch_wikitext2",
    "fetch_yale",
    "fourier_energies",
    "homogeneous_coordinates",
    "load_digits",
    "load_image_folder",
    "load_photographs",
    "load_points",
    "make_list_ops",
    "make_noisy_crop",
    "make_pathfinder",
    "make_rigid_motions",
    "make_union_of_manifolds",
    "make_union_of_subspaces",
    "pack_image_folder",
    "pca_features",
    "project_trajectories",
    "scattering_features",
    "select_classes",
    "yale_b_subsets",
]
