"""Twins whose agreement is judged on data, but that serve neither clustering nor denoising."""

_REASONS = {
    "is solved on a dozen points, of which others are no nonnegative mixtures": (
        "nonnegative-coding-limit",
    ),
    "reads tokens as its norm leaves them, without brightness or contrast": (
        "block-without-skips",
    ),
    "runs a model whose weights are drawn, on a few images": (
        "language-model",
    ),
}  # fmt: skip
WITHOUT_TASK = {name: reason for reason, names in _REASONS.items() for name in names}
