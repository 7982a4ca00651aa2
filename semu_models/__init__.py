"""Models that papers trained, described with ``semu.nn``; none of them knows its parallelism.

One file per family, a frozen configuration beside its module; families that differ in data only are a ``DecoderStyle``
and sizes (``decoder``; ``language`` is what multimodal models ask of them). ``registry`` names the models, ``setups``
the published training configurations. ``semu_models.vlm_m()`` or ``semu_models.build("vlm-m")`` makes a
``semu.nn.Model``; ``semu_models.load_hf("config.json")`` reads one (``hf``).
"""

from semu_models.generation.dit import DiT, DiTConfig, dit_5b, dit_30b
from semu_models.generation.mmdit import MMDiT, flux_12b, hunyuan_video_13b, make_mmdit, sd3_8b
from semu_models.generation.mmdit_layers import MMDiTConfig
from semu_models.generation.t2v import T2VConfig, make_t2v, t2v_l, t2v_s, t2v_xl
from semu_models.generation.unet import sd_1_5, sd_2, sdxl
from semu_models.generation.video_dit import VideoDiT, VideoDiTConfig, make_video_dit, movie_gen_30b, step_video_30b
from semu_models.hf import HfModel, load_hf
from semu_models.listing import parameter_table
from semu_models.multimodal.gemma_vl import gemma3_vl_4b, gemma3_vl_12b, gemma3_vl_27b
from semu_models.multimodal.intern_vl import internvl2_5_8b, internvl3_1b, internvl3_8b, internvl3_78b
from semu_models.multimodal.llava import llava_1_5_7b, llava_1_5_13b
from semu_models.multimodal.qwen_audio import qwen2_audio_7b
from semu_models.multimodal.qwen_omni import qwen2_5_omni_7b
from semu_models.multimodal.qwen_vl import (
    qwen2_5_vl_3b,
    qwen2_5_vl_7b,
    qwen2_5_vl_32b,
    qwen2_5_vl_72b,
    qwen2_vl_2b,
    qwen2_vl_7b,
    qwen2_vl_72b,
)
from semu_models.multimodal.vlm import VLMConfig, make_vlm, vlm_7b, vlm_l, vlm_m, vlm_s, vlm_xl
from semu_models.multimodal.whisper import whisper_large_v3
from semu_models.registry import MODELS, Family, ModelEntry, build, find_model
from semu_models.setups import SETUPS, Setup, find_setup
from semu_models.text.bert import Bert, BertConfig, bert_base, bert_large, make_bert
from semu_models.text.decoder import ConfiguredDecoder, Decoder, DecoderConfig, DecoderStyle, decoder_model
from semu_models.text.deepseek import (
    DeepSeek,
    DeepSeekConfig,
    deepseek_model,
    deepseek_v2,
    deepseek_v2_lite,
    deepseek_v3,
    deepseek_v3_mtp,
)
from semu_models.text.gemma import (
    Gemma,
    Gemma2Config,
    Gemma3Config,
    gemma2_2b,
    gemma2_9b,
    gemma2_27b,
    gemma3_1b,
    gemma3_4b,
    gemma3_12b,
    gemma3_27b,
)
from semu_models.text.gpt import GPT, GPTConfig, gpt2, gpt2_large, gpt2_medium, gpt2_xl, gpt3_175b
from semu_models.text.gpt_oss import GptOss, GptOssConfig, gpt_oss_20b, gpt_oss_120b
from semu_models.text.language import LanguageConfig, language_model, text_encoder
from semu_models.text.llama import (
    Llama,
    LlamaConfig,
    llama2_7b,
    llama2_13b,
    llama2_70b,
    llama3_2_1b,
    llama3_2_3b,
    llama3_8b,
    llama3_70b,
    llama3_405b,
    lm_5b,
    lm_7b,
)
from semu_models.text.mistral import (
    Mistral,
    MistralConfig,
    mistral_7b,
    mistral_7b_v0_3,
    mistral_nemo_12b,
    mistral_small_24b,
)
from semu_models.text.mixtral import Mixtral, MixtralConfig, mixtral_8x7b, mixtral_8x22b
from semu_models.text.mtp import predicting_model
from semu_models.text.qwen import (
    Qwen,
    QwenConfig,
    qwen2_0_5b,
    qwen2_1_5b,
    qwen2_5_3b,
    qwen2_5_7b,
    qwen2_5_14b,
    qwen2_5_32b,
    qwen2_5_72b,
    qwen2_7b,
    qwen2_32b,
    qwen2_72b,
)
from semu_models.text.qwen2_moe import Qwen2MoE, Qwen2MoEConfig, qwen1_5_moe_a2_7b, qwen2_57b_a14b
from semu_models.text.qwen3 import Qwen3, Qwen3Config, qwen3_0_6b, qwen3_1_7b, qwen3_4b, qwen3_8b, qwen3_14b, qwen3_32b
from semu_models.text.qwen_moe import QwenMoE, QwenMoEConfig, qwen3_30b_a3b, qwen3_235b_a22b
from semu_models.vision.clip import (
    DualEncoderConfig,
    TextTowerConfig,
    clip_vit_b_32,
    clip_vit_l_14,
    make_dual_encoder,
    siglip_so400m_dual,
)
from semu_models.vision.clip_vision import clip_vision_l_14_336
from semu_models.vision.siglip import siglip_so400m
from semu_models.vision.vit import ViT, ViTConfig, vit_2b, vit_5b, vit_22b
from semu_models.vision.vit_classic import vit_base_patch16, vit_large_patch16

__all__ = [
    "GPT",
    "MODELS",
    "SETUPS",
    "Bert",
    "BertConfig",
    "ConfiguredDecoder",
    "Decoder",
    "DecoderConfig",
    "DecoderStyle",
    "DeepSeek",
    "DeepSeekConfig",
    "DiT",
    "DiTConfig",
    "DualEncoderConfig",
    "Family",
    "GPTConfig",
    "Gemma",
    "Gemma2Config",
    "Gemma3Config",
    "GptOss",
    "GptOssConfig",
    "HfModel",
    "LanguageConfig",
    "Llama",
    "LlamaConfig",
    "MMDiT",
    "MMDiTConfig",
    "Mistral",
    "MistralConfig",
    "Mixtral",
    "MixtralConfig",
    "ModelEntry",
    "Qwen",
    "Qwen2MoE",
    "Qwen2MoEConfig",
    "Qwen3",
    "Qwen3Config",
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
    "clip_vision_l_14_336",
    "clip_vit_b_32",
    "clip_vit_l_14",
    "decoder_model",
    "deepseek_model",
    "deepseek_v2",
    "deepseek_v2_lite",
    "deepseek_v3",
    "deepseek_v3_mtp",
    "dit_5b",
    "dit_30b",
    "find_model",
    "find_setup",
    "flux_12b",
    "gemma2_2b",
    "gemma2_9b",
    "gemma2_27b",
    "gemma3_1b",
    "gemma3_4b",
    "gemma3_12b",
    "gemma3_27b",
    "gemma3_vl_4b",
    "gemma3_vl_12b",
    "gemma3_vl_27b",
    "gpt2",
    "gpt2_large",
    "gpt2_medium",
    "gpt2_xl",
    "gpt3_175b",
    "gpt_oss_20b",
    "gpt_oss_120b",
    "hunyuan_video_13b",
    "internvl2_5_8b",
    "internvl3_1b",
    "internvl3_8b",
    "internvl3_78b",
    "language_model",
    "llama2_7b",
    "llama2_13b",
    "llama2_70b",
    "llama3_2_1b",
    "llama3_2_3b",
    "llama3_8b",
    "llama3_70b",
    "llama3_405b",
    "llava_1_5_7b",
    "llava_1_5_13b",
    "lm_5b",
    "lm_7b",
    "load_hf",
    "make_bert",
    "make_dual_encoder",
    "make_mmdit",
    "make_t2v",
    "make_video_dit",
    "make_vlm",
    "mistral_7b",
    "mistral_7b_v0_3",
    "mistral_nemo_12b",
    "mistral_small_24b",
    "mixtral_8x7b",
    "mixtral_8x22b",
    "movie_gen_30b",
    "parameter_table",
    "predicting_model",
    "qwen1_5_moe_a2_7b",
    "qwen2_0_5b",
    "qwen2_1_5b",
    "qwen2_5_3b",
    "qwen2_5_7b",
    "qwen2_5_14b",
    "qwen2_5_32b",
    "qwen2_5_72b",
    "qwen2_5_omni_7b",
    "qwen2_5_vl_3b",
    "qwen2_5_vl_7b",
    "qwen2_5_vl_32b",
    "qwen2_5_vl_72b",
    "qwen2_7b",
    "qwen2_32b",
    "qwen2_57b_a14b",
    "qwen2_72b",
    "qwen2_audio_7b",
    "qwen2_vl_2b",
    "qwen2_vl_7b",
    "qwen2_vl_72b",
    "qwen3_0_6b",
    "qwen3_1_7b",
    "qwen3_4b",
    "qwen3_8b",
    "qwen3_14b",
    "qwen3_30b_a3b",
    "qwen3_32b",
    "qwen3_235b_a22b",
    "sd3_8b",
    "sd_1_5",
    "sd_2",
    "sdxl",
    "siglip_so400m",
    "siglip_so400m_dual",
    "step_video_30b",
    "t2v_l",
    "t2v_s",
    "t2v_xl",
    "text_encoder",
    "vit_2b",
    "vit_5b",
    "vit_22b",
    "vit_base_patch16",
    "vit_large_patch16",
    "vlm_7b",
    "vlm_l",
    "vlm_m",
    "vlm_s",
    "vlm_xl",
    "whisper_large_v3",
]
