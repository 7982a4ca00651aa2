"""Configurations of NeMo and Megatron-Bridge -> tables of a run file: ``read_nemo``.

Their keys stand for arguments of Megatron-LM (``keys.toml``), whose tables are then made as for Megatron-LM itself
(``semu.imports.megatron``).
"""

from semu.imports.nemo.read import is_nemo, read_nemo

__all__ = ["is_nemo", "read_nemo"]
