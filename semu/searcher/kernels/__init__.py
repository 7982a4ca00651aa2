"""Kernels of the search: dual queue, memory choice, bounds, sequences of segment groups, annealing, tabu search."""
