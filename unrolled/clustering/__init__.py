"""Learned subspace clusterers as scikit-learn estimators: networks before the spectral step.

Imported by name, as `unrolled.twins` is: they need the solvers' spectral step beside torch.
"""
