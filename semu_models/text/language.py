"""A language model of any family inside a multimodal model: all of it, or its layers as an encoder."""

from __future__ import annotations

from typing import TypeAlias

from semu.nn import LMHead, Sequential
from semu_models.text.decoder import ConfiguredDecoder, Decoder, DecoderConfig
from semu_models.text.gpt import GPT, GPTConfig
from semu_models.text.llama import Llama, LlamaConfig
from semu_models.text.qwen import Qwen, QwenConfig

LanguageConfig: TypeAlias = GPTConfig | DecoderConfig
"""Configuration of a language model; its type tells the family (a ``QwenConfig`` is a ``LlamaConfig``)."""


def language_model(config: LanguageConfig) -> Decoder:
    """Members ``embedding``, ``layers.0`` ..., ``head``: ids [tokens] -> scalar loss."""
    if isinstance(config, GPTConfig):
        return GPT(config)
    if isinstance(config, QwenConfig):
        return Qwen(config)
    return Llama(config) if isinstance(config, LlamaConfig) else ConfiguredDecoder(config)


def text_encoder(config: LanguageConfig) -> Sequential:
    """A language model without its vocabulary projection and loss: ids [tokens] -> features [tokens, hidden].

    Members ``embedding``, ``layers.0`` ..., ``norm``: the last block is the final norm alone.
    """
    blocks = dict(language_model(config).named_children())
    head = blocks.pop("head")
    assert isinstance(head, LMHead)
    return Sequential({**blocks, "norm": head.norm})
