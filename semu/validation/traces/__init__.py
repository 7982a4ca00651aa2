"""Traces of real GPUs, and a trace beside a simulation."""
