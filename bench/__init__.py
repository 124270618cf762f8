"""What research scripts use: the functions behind the command `twinsolve`, and parts of them.

Studies return DataFrames. Names are imported when they are used, so that the command prints its
help without torch.
"""

import ast
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .audit.study import audit_networks as audit_networks
    from .check.checks import check_twins as check_twins
    from .clustering.auto import choose_clusters as choose_clusters
    from .clustering.methods import Method as Method
    from .clustering.methods import register_method as register_method
    from .clustering.presets import cluster as cluster
    from .language.data import Text as Text
    from .language.data import load_text as load_text
    from .language.study import train_language_models as train_language_models
    from .longrange.study import classify_sequences as classify_sequences
    from .paired import Paired as Paired
    from .paired import Verdict as Verdict
    from .paired import judge as judge
    from .paired import paired_difference as paired_difference
    from .paired_training import train_rows as train_rows
    from .recipe import Recipe as Recipe
    from .run_folder import load_model as load_model
    from .run_folder import read_metrics as read_metrics
    from .speed.attention import time_attention as time_attention
    from .speed.filters import time_filters as time_filters
    from .speed.scale import time_scale as time_scale
    from .speed.sparse import time_self_expression as time_self_expression
    from .speed.sparse import time_sparse_coding as time_sparse_coding
    from .task import Task as Task
    from .training import train as train
    from .vectors.holding import hold as hold
    from .vectors.writing import write_vectors as write_vectors
    from .vision.classification.data import Images as Images
    from .vision.classification.data import Splits as Splits
    from .vision.classification.data import load_splits as load_splits
    from .vision.classification.networks import Classifier as Classifier
    from .vision.classification.study import classify as classify
    from .vision.denoising.methods import DenoisingMethod as DenoisingMethod
    from .vision.denoising.methods import register_denoiser as register_denoiser
    from .vision.denoising.networks import load_denoiser as load_denoiser
    from .vision.denoising.pictures import DenoisedImage as DenoisedImage
    from .vision.denoising.pictures import denoise_image as denoise_image
    from .vision.denoising.study import denoise as denoise
    from .vision.denoising.training import train_denoiser as train_denoiser
    from .vision.inspection.study import inspect_model as inspect_model
    from .vision.segmentation.study import segment as segment

# The names above, each with its module: they are listed once.
_MODULES = {
    alias.name: str(node.module)
    for node in ast.walk(ast.parse(Path(__file__).read_text()))
    if isinstance(node, ast.ImportFrom) and node.level
    for alias in node.names
}
__all__ = sorted(_MODULES)


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(f".{_MODULES[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
