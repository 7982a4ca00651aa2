"""Parameters of published models, counted by transformers on its meta device: what semu must give, to the last one.

From ``AutoModelForCausalLM.from_config`` (or the class that ``architectures`` names) under transformers 5.23.0 and
4.57.6, which agree, on the fixtures of ``tests/semu_models/hf/configs``; distinct parameters, a tied table once. The
fixtures hold the published hyper-parameters: the papers' tables and the released config.json of each model.
"""

from __future__ import annotations

from pathlib import Path

CONFIGS = Path(__file__).parent / "semu_models" / "hf" / "configs"
"""Folder of the fixtures, ``NAME.json``."""

PUBLISHED: dict[str, tuple[int, str]] = {
    "llama2-7b": (6_738_415_616, "2307.09288 Table 1; meta-llama/Llama-2-7b-hf"),
    "llama2-13b": (13_015_864_320, "2307.09288 Table 1; meta-llama/Llama-2-13b-hf"),
    "llama2-70b": (68_976_648_192, "2307.09288 Table 1; meta-llama/Llama-2-70b-hf"),
    "llama3-8b": (8_030_261_248, "2407.21783 Table 3; meta-llama/Meta-Llama-3-8B"),
    "llama3-70b": (70_553_706_496, "2407.21783 Table 3; meta-llama/Meta-Llama-3-70B"),
    "llama3.1-8b": (8_030_261_248, "2407.21783 Table 3; meta-llama/Llama-3.1-8B"),
    "llama3.1-405b": (405_853_388_800, "2407.21783 Table 3; meta-llama/Llama-3.1-405B"),
    "qwen2-7b": (7_615_616_512, "2407.10671 Table 1; Qwen/Qwen2-7B"),
    "qwen2-72b": (72_706_203_648, "2407.10671 Table 1; Qwen/Qwen2-72B"),
    "qwen2.5-32b": (32_763_876_352, "2412.15115 Table 1; Qwen/Qwen2.5-32B"),
    "mixtral-8x7b": (46_702_792_704, "2401.04088 Table 1; mistralai/Mixtral-8x7B-v0.1"),
    "mixtral-8x22b": (140_620_634_112, "mistralai/Mixtral-8x22B-v0.1"),
    "qwen3-30b-a3b": (30_532_122_624, "2505.09388 Table 2; Qwen/Qwen3-30B-A3B"),
    "qwen3-235b-a22b": (235_093_634_560, "2505.09388 Table 2; Qwen/Qwen3-235B-A22B"),
    "deepseek-v3": (671_026_404_352, "2412.19437 §4.2; deepseek-ai/DeepSeek-V3; without multi-token prediction"),
}
"""Name of a fixture -> (parameters, where its hyper-parameters are published)."""
