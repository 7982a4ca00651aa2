"""Names of shipped models: those of DIP's and the first setups, and one or two of every family added to them."""

from __future__ import annotations

PAPER = (
    "gpt3-175b",
    "lm-5b",
    "lm-7b",
    "llama3-8b",
    "qwen2-32b",
    "qwen2-72b",
    "mixtral-8x7b",
    "mixtral-8x22b",
    "qwen3-30b-a3b",
    "qwen3-235b-a22b",
    "deepseek-v3",
    "vit-2b",
    "vit-5b",
    "vit-22b",
    "dit-5b",
    "dit-30b",
    "vlm-7b",
    "vlm-s",
    "vlm-m",
    "vlm-l",
    "vlm-xl",
    "t2v-s",
    "t2v-l",
    "t2v-xl",
)
DECODERS = (
    "llama3.2-1b",
    "mistral-nemo-12b",
    "qwen3-32b",
    "gemma2-27b",
    "gemma3-12b",
    "qwen2-57b-a14b",
    "deepseek-v2-lite",
    "deepseek-v3-mtp",
    "kimi-k2",
    "gpt-oss-20b",
)
