"""What every attention layer shares: the operator protocol, its context, masks and the shell.

Tokens are rows. Operators take ``(..., heads, tokens, head_dim)`` and masks as in
``scaled_dot_product_attention``: True (or 0) may attend, False (or -inf) may not.
"""

from ...validation import check_integer as check_count
from ...validation import check_positive
from .blocked import blocked_attention, blocks_serve
from .call import Call
from .context import Context
from .derivatives import is_one_of_many, largest_eigenvalue, once_in, recomputed, vjp
from .flex import attend_by_flex, flex_serves
from .fused import fused_attention, map_query_blocks
from .inputs import check_input, of_common_batch, own_copy
from .masks import (
    boolean_mask,
    causal_mask,
    combine_masks,
    drop_hidden,
    explicit_mask,
    hidden_by,
    hidden_by_layer,
    mask_rows,
    masked_softmax,
    padding_mask,
    query_offset,
    read_mask,
)
from .operator import Correction, Operator, SoftmaxSmoother
from .parameters import Positive
from .precision import without_autocast
from .shell import Attention, keep_projected
from .tracing import has_no_values, has_static_value, is_transformed, untraced

__all__ = [
    "Attention",
    "Call",
    "Context",
    "Correction",
    "Operator",
    "Positive",
    "SoftmaxSmoother",
    "attend_by_flex",
    "blocked_attention",
    "blocks_serve",
    "boolean_mask",
    "causal_mask",
    "check_count",
    "check_input",
    "check_positive",
    "combine_masks",
    "drop_hidden",
    "explicit_mask",
    "flex_serves",
    "fused_attention",
    "has_no_values",
    "has_static_value",
    "hidden_by",
    "hidden_by_layer",
    "is_one_of_many",
    "is_transformed",
    "keep_projected",
    "largest_eigenvalue",
    "map_query_blocks",
    "mask_rows",
    "masked_softmax",
    "of_common_batch",
    "once_in",
    "own_copy",
    "padding_mask",
    "query_offset",
    "read_mask",
    "recomputed",
    "untraced",
    "vjp",
    "without_autocast",
]
