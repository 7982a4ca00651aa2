"""Configurations of llm-foundry -> tables of a run file: ``read_llmfoundry``."""

from semu.imports.llmfoundry.read import is_llmfoundry, read_llmfoundry

__all__ = ["is_llmfoundry", "read_llmfoundry"]
