"""Operators in models that others have written."""

from .huggingface import (
    attach_huggingface,
    register_huggingface,
)
from .replacement import (
    replace_attention,
)

__all__ = [
    "attach_huggingface",
    "register_huggingface",
    "replace_attention",
]
