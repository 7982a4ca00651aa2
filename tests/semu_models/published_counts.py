"""Parameters of published models, counted by transformers on its meta device: what semu must give, to the last one.

From ``AutoModelForCausalLM.from_config`` (or the class that ``architectures`` names) under transformers 5.23.0 and
4.57.6, which agree (Phi, OLMo, GLM, Falcon and BLOOM: 5.23.0 alone), on the fixtures of
``tests/semu_models/hf/configs``; distinct parameters, a tied table once. The fixtures hold the published
hyper-parameters: the papers' tables and the released config.json of each model.
"""

from __future__ import annotations

from pathlib import Path

CONFIGS = Path(__file__).parent / "hf" / "configs"
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
    "vit-base-patch16": (86_567_656, "2010.11929 Table 1; google/vit-base-patch16-224"),
    "clip-vision-l-14-336": (303_507_456, "2103.00020 Table 20; vision tower of openai/clip-vit-large-patch14-336"),
    "siglip-so400m": (428_225_600, "2303.15343 §4; vision tower of google/siglip-so400m-patch14-384"),
    "whisper-large-v3": (1_543_490_560, "2212.04356 Table 1; openai/whisper-large-v3"),
    "llava-1.5-7b": (7_063_427_072, "2310.03744 §3; llava-hf/llava-1.5-7b-hf"),
    "llava-1.5-13b": (13_351_494_656, "2310.03744 §3; llava-hf/llava-1.5-13b-hf"),
    "qwen2-vl-2b": (2_208_985_600, "2409.12191 Table 1; Qwen/Qwen2-VL-2B-Instruct"),
    "qwen2-vl-7b": (8_291_375_616, "2409.12191 Table 1; Qwen/Qwen2-VL-7B-Instruct"),
    "qwen2-vl-7b-nested": (8_291_375_616, "as qwen2-vl-7b, in the words of transformers 5"),
    "qwen2-vl-72b": (73_405_560_320, "2409.12191 Table 1; Qwen/Qwen2-VL-72B-Instruct"),
    "qwen2.5-vl-3b": (3_754_622_976, "2502.13923 Table 1; Qwen/Qwen2.5-VL-3B-Instruct"),
    "qwen2.5-vl-7b": (8_292_166_656, "2502.13923 Table 1; Qwen/Qwen2.5-VL-7B-Instruct"),
    "qwen2.5-vl-32b": (33_452_718_336, "Qwen/Qwen2.5-VL-32B-Instruct"),
    "qwen2.5-vl-72b": (73_410_777_344, "2502.13923 Table 1; Qwen/Qwen2.5-VL-72B-Instruct"),
    "internvl3-1b": (802_293_120, "2504.10479 Table 1; OpenGVLab/InternVL3-1B-hf"),
    "internvl3-8b": (7_944_373_760, "2504.10479 Table 1; OpenGVLab/InternVL3-8B-hf"),
    "internvl3-78b": (78_408_318_336, "2504.10479 Table 1; OpenGVLab/InternVL3-78B-hf"),
    "gemma3-vl-4b": (4_300_079_472, "2503.19786 Table 1; google/gemma-3-4b-pt"),
    "gemma3-vl-12b": (12_187_325_040, "2503.19786 Table 1; google/gemma-3-12b-pt"),
    "gemma3-vl-27b": (27_432_406_640, "2503.19786 Table 1; google/gemma-3-27b-pt"),
    "qwen2-audio-7b": (8_397_094_912, "2407.10759 §2; Qwen/Qwen2-Audio-7B"),
    "qwen2.5-omni-7b-thinker": (8_931_813_888, "2503.20215 §2; thinker_config of Qwen/Qwen2.5-Omni-7B"),
    "llama3.2-1b": (1_235_814_400, "meta-llama/Llama-3.2-1B"),
    "llama3.2-3b": (3_212_749_824, "meta-llama/Llama-3.2-3B"),
    "qwen2.5-0.5b": (494_032_768, "2412.15115 Table 1; Qwen/Qwen2.5-0.5B"),
    "qwen3-0.6b": (596_049_920, "2505.09388 Table 1; Qwen/Qwen3-0.6B"),
    "qwen3-8b": (8_190_735_360, "2505.09388 Table 1; Qwen/Qwen3-8B"),
    "qwen3-32b": (32_762_123_264, "2505.09388 Table 1; Qwen/Qwen3-32B"),
    "mistral-7b-v0.1": (7_241_732_096, "2310.06825 Table 1; mistralai/Mistral-7B-v0.1"),
    "mistral-nemo-12b": (12_247_782_400, "mistralai/Mistral-Nemo-Base-2407"),
    "gemma2-9b": (9_241_705_984, "2408.00118 Table 1; google/gemma-2-9b"),
    "gemma2-27b": (27_227_128_320, "2408.00118 Table 1; google/gemma-2-27b"),
    "gemma3-1b": (999_885_952, "2503.19786 Table 1; google/gemma-3-1b-pt"),
    "gemma3-4b-text": (3_880_263_168, "2503.19786 Table 1; the text_config of google/gemma-3-4b-pt"),
    "gemma3-12b-text": (11_766_034_176, "2503.19786 Table 1; the text_config of google/gemma-3-12b-pt"),
    "gemma3-27b-text": (27_009_346_304, "2503.19786 Table 1; the text_config of google/gemma-3-27b-pt"),
    "gpt2": (124_439_808, "Radford et al. 2019 Table 2; openai-community/gpt2"),
    "gpt2-xl": (1_557_611_200, "Radford et al. 2019 Table 2; openai-community/gpt2-xl"),
    "qwen1.5-moe-a2.7b": (14_315_784_192, "Qwen/Qwen1.5-MoE-A2.7B"),
    "qwen2-57b-a14b": (57_408_658_944, "2407.10671 Table 1; Qwen/Qwen2-57B-A14B"),
    "deepseek-v2-lite": (15_706_484_224, "2405.04434 appendix B; deepseek-ai/DeepSeek-V2-Lite"),
    "deepseek-v2": (235_741_434_880, "2405.04434 §3.1.2; deepseek-ai/DeepSeek-V2"),
    "gpt-oss-20b": (20_914_757_184, "2508.10925 Table 1; openai/gpt-oss-20b"),
    "gpt-oss-120b": (116_829_156_672, "2508.10925 Table 1; openai/gpt-oss-120b"),
    "bert-base-uncased": (109_514_298, "1810.04805 §3; google-bert/bert-base-uncased, with its masked-token head"),
    "bert-large-pretraining": (336_226_108, "1810.04805 §3; bert-large-uncased as BertForPreTraining"),
    "clip-vit-b-32": (151_277_313, "2103.00020 Table 20; openai/clip-vit-base-patch32"),
    "clip-vit-l-14": (427_616_513, "2103.00020 Table 20; openai/clip-vit-large-patch14"),
    "siglip-so400m-dual": (877_960_498, "2303.15343 §4; google/siglip-so400m-patch14-384"),
    "phi3-mini-4k": (3_821_079_552, "2404.14219; microsoft/Phi-3-mini-4k-instruct"),
    "phi4-mini": (3_836_021_760, "2503.01743; microsoft/Phi-4-mini-instruct"),
    "olmo2-7b": (7_298_617_344, "2501.00656; allenai/OLMo-2-1124-7B"),
    "olmo2-32b": (32_234_279_936, "2501.00656; allenai/OLMo-2-0325-32B"),
    "glm4-9b-0414": (9_400_279_040, "THUDM/GLM-4-9B-0414"),
    "falcon-7b": (6_921_720_704, "2311.16867; tiiuae/falcon-7b"),
    "falcon-11b": (11_102_822_400, "tiiuae/falcon-11B"),
    "falcon-40b": (41_303_293_952, "2311.16867; tiiuae/falcon-40b"),
    "falcon-rw-1b": (1_311_625_216, "2306.01116; tiiuae/falcon-rw-1b"),
    "bloom-7b1": (7_069_016_064, "2211.05100; bigscience/bloom-7b1"),
    "bloom-176b": (176_247_271_424, "2211.05100; bigscience/bloom"),
}
"""Name of a fixture -> (parameters, where its hyper-parameters are published)."""
