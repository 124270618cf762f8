"""Faults of the shell and the blocks around operators."""

# fmt: off
from .fault import Faults

models = Faults("shell and block")

add = models.add
add("attention/shell.py", "bias-of-projections-dropped",
    "F.linear(inputs[0], self.in_proj_weight, self.in_proj_bias)",
    "F.linear(inputs[0], self.in_proj_weight)",
    "attention-shell", "attention-shell-no-bias")
add("attention/shell.py", "bias-of-cross-projections-dropped",
    "(None,) * len(inputs) if bias is None else bias.chunk(len(inputs))", "(None,) * len(inputs)",
    "attention-shell", "attention-shell-no-bias")
add("attention/shell.py", "output-projection-dropped",
    "return self.out_proj(output.transpose(1, 2).flatten(2)),",
    "return output.transpose(1, 2).flatten(2),",
    "attention-shell", "attention-shell-no-bias")
add("attention/shell.py", "heads-joined-in-wrong-order",
    "output.transpose(1, 2).flatten(2)", "output.permute(0, 2, 3, 1).flatten(2)",
    "attention-shell", "attention-shell-no-bias")
add("attention/shell.py", "heads-split-in-wrong-order",
    "x.unflatten(-1, (self.num_heads, self.head_dim)).transpose(-3, -2)",
    "x.unflatten(-1, (self.head_dim, self.num_heads)).movedim(-1, -3)",
    "attention-shell", "attention-shell-no-bias")
add("attention/shell.py", "masks-hide-where-both-do",
    "~(masks[0] | masks[1])", "~(masks[0] & masks[1])",
    "attention-shell", "attention-shell-no-bias")
add("attention/shell.py", "padding-hides-queries",
    "key_padding_mask[:, None, None, :]", "key_padding_mask[:, None, :, None]",
    "attention-shell", "attention-shell-no-bias")
add("attention/shell.py", "mask-polarity-kept",
    "return ~masks[0] if", "return masks[0] if",
    "attention-shell", "attention-shell-no-bias")
add("attention/shell.py", "causal-hint-dropped",
    "is_causal = is_causal and attn_mask is None", "is_causal = False",
    "attention-shell", "attention-shell-no-bias")
add("attention/shell.py", "weights-of-first-head",
    "weights = weights.mean(dim=1)", "weights = weights[:, 0]",
    "attention-shell", "attention-shell-no-bias")
add("attention/shell.py", "weights-unmasked",
    "self.operator.matrix(q, k, mask=mask, is_causal=is_causal, context=seen)",
    "self.operator.matrix(q, k, context=seen)",
    "attention-shell", "attention-shell-no-bias")
add("attention/shell.py", "positions-through-exchanged-projections",
    "F.linear(positions, weights[name])) for name in \"qk\")",
    "F.linear(positions, weights[name])) for name in \"kq\")",
    "vision-transformer-positions-apart")
add("attention/context.py", "first-values-of-present-layer",
    "values if self.first_values is None else self.first_values", "values",
    "vision-transformer")
add("models/blocks.py", "norm-before-attention-dropped",
    "keys = values = self.attention_norm(tokens)", "keys = values = tokens",
    "block")
add("models/blocks.py", "norm-before-feed-forward-dropped",
    "self.feed_forward(self.feed_forward_norm(x))", "self.feed_forward(x)",
    "block")
add("models/blocks.py", "feed-forward-of-relu",
    "self.activation = nn.GELU()", "self.activation = nn.ReLU()",
    "block")
add("models/blocks.py", "padding-not-handed-on",
    "queries, keys, values, key_padding_mask,", "queries, keys, values, None,",
    "block", "block-feat-scale")
add("models/blocks.py", "memory-behind-tokens",
    "torch.cat([memory, x], dim=-2)", "torch.cat([x, memory], dim=-2)",
    "class-attention-transformer", "block")
add("models/blocks.py", "positions-not-added",
    "keys = self.attention_norm(tokens + context.positions)", "pass",
    "vision-transformer-positions-apart", "block")
add("self_expression/deep_self_expression.py", "mixing-exchanged",
    "(1 - self.mixing) * y + self.mixing * attended",
    "self.mixing * y + (1 - self.mixing) * attended",
    "deep-self-expression")
add("self_expression/deep_self_expression.py", "heads-summed",
    "/ self.num_heads\n", "\n",
    "deep-self-expression")
