"""``FLAGS``: Megatron-LM's arguments, and the sizes of its tokenizers' vocabularies."""

from __future__ import annotations

from collections.abc import Mapping

from semu.imports.flags import FlagTable, read_table

_DATA = read_table("semu.imports.megatron")
FLAGS = FlagTable(_DATA, "Megatron-LM", "--")
"""The arguments that semu knows."""
TOKENIZERS: Mapping[str, int] = {name: size for name, size in _DATA["tokenizers"].items() if isinstance(size, int)}
"""Tokenizer -> entries of its vocabulary, of those that need no file to know."""
ADDED_TOKENS: Mapping[str, int] = _DATA["tokenizers"]["more"]
"""Tokenizer -> entries that it has beside ``--vocab-size``."""
