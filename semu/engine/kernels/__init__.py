"""Kernels of the engine: dispatch, given orders, contention, memory of a pipeline, the caching allocator."""
