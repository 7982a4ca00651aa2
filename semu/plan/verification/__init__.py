"""Checks of whether an execution plan can run, without running it."""
