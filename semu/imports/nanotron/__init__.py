"""Configurations of nanotron -> tables of a run file: ``read_nanotron``."""

from semu.imports.nanotron.read import is_nanotron, read_nanotron

__all__ = ["is_nanotron", "read_nanotron"]
