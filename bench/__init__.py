"""Functions behind the command `twinsolve`, most of which return DataFrames."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .check.checks import check_twins
    from .clustering.auto import choose_clusters
    from .clustering.methods import Method, register_method
    from .clustering.presets import cluster
    from .speed.attention import time_attention
    from .speed.filters import time_filters
    from .speed.scale import time_scale
    from .speed.sparse import time_self_expression, time_sparse_coding
    from .vision.denoising.methods import DenoisingMethod, register_denoiser
    from .vision.denoising.networks import load_denoiser
    from .vision.denoising.pictures import DenoisedImage, denoise_image
    from .vision.denoising.study import denoise
    from .vision.inspection.study import inspect_model
    from .vision.segmentation import segment

__all__ = [
    "DenoisedImage",
    "DenoisingMethod",
    "Method",
    "check_twins",
    "choose_clusters",
    "cluster",
    "denoise",
    "denoise_image",
    "inspect_model",
    "load_denoiser",
    "register_denoiser",
    "register_method",
    "segment",
    "time_attention",
    "time_filters",
    "time_scale",
    "time_self_expression",
    "time_sparse_coding",
]
_MODULES = {
    "DenoisedImage": "vision.denoising.pictures",
    "DenoisingMethod": "vision.denoising.methods",
    "Method": "clustering.methods",
    "check_twins": "check.checks",
    "choose_clusters": "clustering.auto",
    "cluster": "clustering.presets",
    "denoise": "vision.denoising.study",
    "denoise_image": "vision.denoising.pictures",
    "inspect_model": "vision.inspection.study",
    "load_denoiser": "vision.denoising.networks",
    "register_denoiser": "vision.denoising.methods",
    "register_method": "clustering.methods",
    "segment": "vision.segmentation",
    "time_attention": "speed.attention",
    "time_filters": "speed.filters",
    "time_scale": "speed.scale",
    "time_self_expression": "speed.sparse",
    "time_sparse_coding": "speed.sparse",
}


def __getattr__(name: str) -> Any:
    # Import on demand, so that the command line prints --help without loading torch.
    if name in _MODULES:
        return getattr(import_module(f".{_MODULES[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
