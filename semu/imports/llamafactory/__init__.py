"""Configurations of LLaMA-Factory -> tables of a run file."""
