"""One page of all results folders: `twinsolve report`."""
