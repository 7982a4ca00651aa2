"""Runs in the words of other programs."""
