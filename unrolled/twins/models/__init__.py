"""Twins of the shell, blocks and backbones, which are run whole by `twinsolve check` alone.

`twinsolve.check` of a user's model judges its layers, each where it stands.
"""
