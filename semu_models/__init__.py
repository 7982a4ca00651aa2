"""Models that papers trained, described with ``semu.nn``; none of them knows its parallelism.

One file per family, a frozen configuration beside its module (``decoder`` and ``language`` hold what language models
share); ``registry`` names the models, ``setups`` the published training configurations. ``semu_models.vlm_m()`` or
``semu_models.build("vlm-m")`` makes a ``semu.nn.Model``.
"""

from semu_models.bert import Bert, BertConfig, bert_base, bert_large, make_bert
from semu_models.clip import (
    DualEncoderConfig,
    TextTowerConfig,
    clip_vit_b_32,
    clip_vit_l_14,
    make_dual_encoder,
    siglip_so400m_dual,
)
from semu_models.deepseek import DeepSeek, DeepSeekConfig, deepseek_v3
from semu_models.dit import DiT, DiTConfig, dit_5b, dit_30b
from semu_models.gpt import GPT, GPTConfig, gpt3_175b
from semu_models.language import LanguageConfig, language_model, text_encoder
from semu_models.llama import Llama, LlamaConfig, llama3_8b, lm_5b, lm_7b
from semu_models.mixtral import Mixtral, MixtralConfig, mixtral_8x7b, mixtral_8x22b
from semu_models.mmdit import MMDiT, MMDiTConfig, flux_12b, hunyuan_video_13b, make_mmdit, sd3_8b
from semu_models.qwen import Qwen, QwenConfig, qwen2_32b, qwen2_72b
from semu_models.qwen_moe import QwenMoE, QwenMoEConfig, qwen3_30b_a3b, qwen3_235b_a22b
from semu_models.registry import MODELS, Family, ModelEntry, build, find_model, parameter_table
from semu_models.setups import SETUPS, Setup, find_setup
from semu_models.t2v import T2VConfig, make_t2v, t2v_l, t2v_s, t2v_xl
from semu_models.video_dit import VideoDiT, VideoDiTConfig, make_video_dit, movie_gen_30b, step_video_30b
from semu_models.vit import ViT, ViTConfig, vit_2b, vit_5b, vit_22b
from semu_models.vlm import VLMConfig, make_vlm, vlm_7b, vlm_l, vlm_m, vlm_s, vlm_xl

__all__ = [
    "GPT",
    "MODELS",
    "SETUPS",
    "Bert",
    "BertConfig",
    "DeepSeek",
    "DeepSeekConfig",
    "DiT",
    "DiTConfig",
    "DualEncoderConfig",
    "Family",
    "GPTConfig",
    "LanguageConfig",
    "Llama",
    "LlamaConfig",
    "MMDiT",
    "MMDiTConfig",
    "Mixtral",
    "MixtralConfig",
    "ModelEntry",
    "Qwen",
    "QwenConfig",
    "QwenMoE",
    "QwenMoEConfig",
    "Setup",
    "T2VConfig",
    "TextTowerConfig",
    "VLMConfig",
    "ViT",
    "ViTConfig",
    "VideoDiT",
    "VideoDiTConfig",
    "bert_base",
    "bert_large",
    "build",
    "clip_vit_b_32",
    "clip_vit_l_14",
    "deepseek_v3",
    "dit_5b",
    "dit_30b",
    "find_model",
    "find_setup",
    "flux_12b",
    "gpt3_175b",
    "hunyuan_video_13b",
    "language_model",
    "llama3_8b",
    "lm_5b",
    "lm_7b",
    "make_bert",
    "make_dual_encoder",
    "make_mmdit",
    "make_t2v",
    "make_video_dit",
    "make_vlm",
    "mixtral_8x7b",
    "mixtral_8x22b",
    "movie_gen_30b",
    "parameter_table",
    "qwen2_32b",
    "qwen2_72b",
    "qwen3_30b_a3b",
    "qwen3_235b_a22b",
    "sd3_8b",
    "siglip_so400m_dual",
    "step_video_30b",
    "t2v_l",
    "t2v_s",
    "t2v_xl",
    "text_encoder",
    "vit_2b",
    "vit_5b",
    "vit_22b",
    "vlm_7b",
    "vlm_l",
    "vlm_m",
    "vlm_s",
    "vlm_xl",
]
