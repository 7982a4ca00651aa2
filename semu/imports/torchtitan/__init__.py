"""Configurations of torchtitan -> tables of a run file: ``read_torchtitan``.

Files:

    flags.toml     every key of releases 0.1 and 0.2, and the flavors of models
    tables.py      keys -> tables
    following.py   what a function of a Python file returns, read as text
    registry.py    functions of a Python registry (0.3) -> the same keys
    read.py        recognition, and all of these
"""

from semu.imports.torchtitan.read import is_torchtitan, read_torchtitan

__all__ = ["is_torchtitan", "read_torchtitan"]
