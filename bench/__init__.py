"""What the command `twinsolve` runs, as functions that return DataFrames."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .checks import check_twins

__all__ = ["check_twins"]


def __getattr__(name: str) -> Any:
    # On demand, so that the command line answers --help without loading torch.
    if name == "check_twins":
        from .checks import check_twins

        return check_twins
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
