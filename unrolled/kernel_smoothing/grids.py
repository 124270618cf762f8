"""Where tokens stand: class tokens in front, and the others row by row on a grid."""

from torch import Tensor

from ..attention import Context, check_count


class Grid:
    """The grid of an operator: its own, or that of the model around it.

    Parameters
    ----------
    width : int, optional
        Number of columns. None is the model's, and without one a sequence, which is one column.
    n_class_tokens : int
        Tokens in front that stand nowhere.
    """

    def __init__(self, width: int | None, n_class_tokens: int) -> None:
        self.width = None if width is None else check_count(width, "width", 1)
        self.n_class_tokens = check_count(n_class_tokens, "n_class_tokens", 0)

    def on(self, k: Tensor, context: Context | None) -> tuple[int, int]:
        """Number of columns and of class tokens of the tokens that keys stand for.

        Raises
        ------
        ValueError
            If the model's grid is another one, or not that of the keys.
        """
        if context is None or context.grid is None:
            return self.width or 1, self.n_class_tokens
        (rows, columns), n_class = context.grid, context.n_class_tokens
        if self.width not in (None, columns):
            raise ValueError(
                f"width: must be None or the model's number of columns, {columns}, got {self.width}"
            )
        if self.n_class_tokens not in (0, n_class):
            raise ValueError(
                f"n_class_tokens: must be the model's, {n_class}, got {self.n_class_tokens}"
            )
        if k.shape[-2] != rows * columns + n_class:
            raise ValueError(
                f"context.grid: {rows} x {columns} and {n_class} class tokens are not the "
                f"{k.shape[-2]} tokens that there are"
            )
        return columns, n_class

    def __repr__(self) -> str:
        shown = [] if self.width is None else [f"width={self.width}"]
        shown += [f"n_class_tokens={self.n_class_tokens}"] if self.n_class_tokens else []
        return ", ".join(shown)
