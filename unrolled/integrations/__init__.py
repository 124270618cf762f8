"""Operators in models that others have written."""

from .deepinv import deepinv_start
from .huggingface import attach_huggingface, register_huggingface
from .loading import load_huggingface
from .replacement import replace_attention
from .saving import save_huggingface

__all__ = [
    "attach_huggingface",
    "deepinv_start",
    "load_huggingface",
    "register_huggingface",
    "replace_attention",
    "save_huggingface",
]
