"""Kernels of the search: interleaving, bounds, sequences of segment groups, refinement."""
