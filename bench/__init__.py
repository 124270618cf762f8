"""What the command `twinsolve` runs, as functions that return DataFrames."""

from .checks import check_twins

__all__ = ["check_twins"]
