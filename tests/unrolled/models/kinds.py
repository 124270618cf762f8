"""One operator by name for each set of what operators declare to the models that hold them."""

from twinsolve.unrolled import make_operator, operator_names

_DECLARED = (
    "needs", "positions_apart", "positional", "square_only", "pair_masks", "causal", "reads",
    "linear_in_values", "gates", "query_gates",
)  # fmt: skip


def _declared(name):
    operator = make_operator(name, num_heads=2, head_dim=4)
    return tuple(str(getattr(operator, law)) for law in _DECLARED)


# The last of a kind; what differs within it is for the tests of operators.
KINDS = sorted({_declared(name): name for name in operator_names()}.values())
CAUSAL_KINDS = [name for name in KINDS if make_operator(name, num_heads=3, head_dim=4).causal]
