"""Latency and memory columns of operators and stages, for many shapes at once."""
