"""Kernels of rules: Algorithm 1, gradient separation, and the ranks in order of time."""
