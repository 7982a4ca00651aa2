"""From graphs to times and memory: costs, stages, kernels, timelines."""
