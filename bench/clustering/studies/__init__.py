"""Studies of one experiment each, for the presets of `twinsolve cluster`."""
