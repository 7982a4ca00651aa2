"""Kernels of assignment: ``bins`` (dealing, local search, sums, latencies), ``pairs`` (what microbatches defer)."""
