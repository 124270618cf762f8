"""Condition numbers of token matrices, bounds on them, and token graying, which lowers them."""

from .bounds import attention_condition_bound, feed_forward_condition_bound, skip_condition_bound
from .graying import gray_tokens
from .spectrum import condition_number

__all__ = [
    "attention_condition_bound",
    "condition_number",
    "feed_forward_condition_bound",
    "gray_tokens",
    "skip_condition_bound",
]
