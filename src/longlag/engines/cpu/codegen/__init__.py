"""Kernels as text: a cell's equations printed as Numba modules."""
