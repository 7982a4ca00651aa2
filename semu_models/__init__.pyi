# The names of ``semu_models``, each beside the module that has it.

from semu_models.generation.dit import DiT as DiT
from semu_models.generation.dit import DiTConfig as DiTConfig
from semu_models.generation.dit import dit_5b as dit_5b
from semu_models.generation.dit import dit_30b as dit_30b
from semu_models.generation.mmdit import MMDiT as MMDiT
from semu_models.generation.mmdit import flux_12b as flux_12b
from semu_models.generation.mmdit import hunyuan_video_13b as hunyuan_video_13b
from semu_models.generation.mmdit import make_mmdit as make_mmdit
from semu_models.generation.mmdit import sd3_8b as sd3_8b
from semu_models.generation.mmdit_layers import MMDiTConfig as MMDiTConfig
from semu_models.generation.t2v import T2VConfig as T2VConfig
from semu_models.generation.t2v import make_t2v as make_t2v
from semu_models.generation.t2v import t2v_l as t2v_l
from semu_models.generation.t2v import t2v_s as t2v_s
from semu_models.generation.t2v import t2v_xl as t2v_xl
from semu_models.generation.unet import sd_1_5 as sd_1_5
from semu_models.generation.unet import sd_2 as sd_2
from semu_models.generation.unet import sdxl as sdxl
from semu_models.generation.video_dit import VideoDiT as VideoDiT
from semu_models.generation.video_dit import VideoDiTConfig as VideoDiTConfig
from semu_models.generation.video_dit import make_video_dit as make_video_dit
from semu_models.generation.video_dit import movie_gen_30b as movie_gen_30b
from semu_models.generation.video_dit import step_video_30b as step_video_30b
from semu_models.hf import HfModel as HfModel
from semu_models.hf import load_hf as load_hf
from semu_models.listing import parameter_table as parameter_table
from semu_models.multimodal.gemma_vl import gemma3_vl_4b as gemma3_vl_4b
from semu_models.multimodal.gemma_vl import gemma3_vl_12b as gemma3_vl_12b
from semu_models.multimodal.gemma_vl import gemma3_vl_27b as gemma3_vl_27b
from semu_models.multimodal.intern_vl import internvl2_5_8b as internvl2_5_8b
from semu_models.multimodal.intern_vl import internvl3_1b as internvl3_1b
from semu_models.multimodal.intern_vl import internvl3_8b as internvl3_8b
from semu_models.multimodal.intern_vl import internvl3_78b as internvl3_78b
from semu_models.multimodal.llava import llava_1_5_7b as llava_1_5_7b
from semu_models.multimodal.llava import llava_1_5_13b as llava_1_5_13b
from semu_models.multimodal.qwen_audio import qwen2_audio_7b as qwen2_audio_7b
from semu_models.multimodal.qwen_omni import qwen2_5_omni_7b as qwen2_5_omni_7b
from semu_models.multimodal.qwen_vl import qwen2_5_vl_3b as qwen2_5_vl_3b
from semu_models.multimodal.qwen_vl import qwen2_5_vl_7b as qwen2_5_vl_7b
from semu_models.multimodal.qwen_vl import qwen2_5_vl_32b as qwen2_5_vl_32b
from semu_models.multimodal.qwen_vl import qwen2_5_vl_72b as qwen2_5_vl_72b
from semu_models.multimodal.qwen_vl import qwen2_vl_2b as qwen2_vl_2b
from semu_models.multimodal.qwen_vl import qwen2_vl_7b as qwen2_vl_7b
from semu_models.multimodal.qwen_vl import qwen2_vl_72b as qwen2_vl_72b
from semu_models.multimodal.vlm import VLMConfig as VLMConfig
from semu_models.multimodal.vlm import make_vlm as make_vlm
from semu_models.multimodal.vlm import vlm_7b as vlm_7b
from semu_models.multimodal.vlm import vlm_l as vlm_l
from semu_models.multimodal.vlm import vlm_m as vlm_m
from semu_models.multimodal.vlm import vlm_s as vlm_s
from semu_models.multimodal.vlm import vlm_xl as vlm_xl
from semu_models.multimodal.whisper import whisper_large_v3 as whisper_large_v3
from semu_models.registry import MODELS as MODELS
from semu_models.registry import Family as Family
from semu_models.registry import ModelEntry as ModelEntry
from semu_models.registry import build as build
from semu_models.registry import find_model as find_model
from semu_models.setups import SETUPS as SETUPS
from semu_models.setups import Setup as Setup
from semu_models.setups import find_setup as find_setup
from semu_models.text.bert import Bert as Bert
from semu_models.text.bert import BertConfig as BertConfig
from semu_models.text.bert import bert_base as bert_base
from semu_models.text.bert import bert_large as bert_large
from semu_models.text.bert import make_bert as make_bert
from semu_models.text.decoder import ConfiguredDecoder as ConfiguredDecoder
from semu_models.text.decoder import Decoder as Decoder
from semu_models.text.decoder import DecoderConfig as DecoderConfig
from semu_models.text.decoder import DecoderStyle as DecoderStyle
from semu_models.text.decoder import decoder_model as decoder_model
from semu_models.text.deepseek import DeepSeek as DeepSeek
from semu_models.text.deepseek import DeepSeekConfig as DeepSeekConfig
from semu_models.text.deepseek import deepseek_model as deepseek_model
from semu_models.text.deepseek import deepseek_v2 as deepseek_v2
from semu_models.text.deepseek import deepseek_v2_lite as deepseek_v2_lite
from semu_models.text.deepseek import deepseek_v3 as deepseek_v3
from semu_models.text.deepseek import deepseek_v3_mtp as deepseek_v3_mtp
from semu_models.text.deepseek import kimi_k2 as kimi_k2
from semu_models.text.gemma import Gemma as Gemma
from semu_models.text.gemma import Gemma2Config as Gemma2Config
from semu_models.text.gemma import Gemma3Config as Gemma3Config
from semu_models.text.gemma import gemma2_2b as gemma2_2b
from semu_models.text.gemma import gemma2_9b as gemma2_9b
from semu_models.text.gemma import gemma2_27b as gemma2_27b
from semu_models.text.gemma import gemma3_1b as gemma3_1b
from semu_models.text.gemma import gemma3_4b as gemma3_4b
from semu_models.text.gemma import gemma3_12b as gemma3_12b
from semu_models.text.gemma import gemma3_27b as gemma3_27b
from semu_models.text.gpt import GPT as GPT
from semu_models.text.gpt import GPTConfig as GPTConfig
from semu_models.text.gpt import gpt2 as gpt2
from semu_models.text.gpt import gpt2_large as gpt2_large
from semu_models.text.gpt import gpt2_medium as gpt2_medium
from semu_models.text.gpt import gpt2_xl as gpt2_xl
from semu_models.text.gpt import gpt3_175b as gpt3_175b
from semu_models.text.gpt_oss import GptOss as GptOss
from semu_models.text.gpt_oss import GptOssConfig as GptOssConfig
from semu_models.text.gpt_oss import gpt_oss_20b as gpt_oss_20b
from semu_models.text.gpt_oss import gpt_oss_120b as gpt_oss_120b
from semu_models.text.language import LanguageConfig as LanguageConfig
from semu_models.text.language import language_model as language_model
from semu_models.text.language import text_encoder as text_encoder
from semu_models.text.llama import Llama as Llama
from semu_models.text.llama import LlamaConfig as LlamaConfig
from semu_models.text.llama import llama2_7b as llama2_7b
from semu_models.text.llama import llama2_13b as llama2_13b
from semu_models.text.llama import llama2_70b as llama2_70b
from semu_models.text.llama import llama3_2_1b as llama3_2_1b
from semu_models.text.llama import llama3_2_3b as llama3_2_3b
from semu_models.text.llama import llama3_8b as llama3_8b
from semu_models.text.llama import llama3_70b as llama3_70b
from semu_models.text.llama import llama3_405b as llama3_405b
from semu_models.text.llama import lm_5b as lm_5b
from semu_models.text.llama import lm_7b as lm_7b
from semu_models.text.mistral import Mistral as Mistral
from semu_models.text.mistral import MistralConfig as MistralConfig
from semu_models.text.mistral import mistral_7b as mistral_7b
from semu_models.text.mistral import mistral_7b_v0_3 as mistral_7b_v0_3
from semu_models.text.mistral import mistral_nemo_12b as mistral_nemo_12b
from semu_models.text.mistral import mistral_small_24b as mistral_small_24b
from semu_models.text.mixtral import Mixtral as Mixtral
from semu_models.text.mixtral import MixtralConfig as MixtralConfig
from semu_models.text.mixtral import mixtral_8x7b as mixtral_8x7b
from semu_models.text.mixtral import mixtral_8x22b as mixtral_8x22b
from semu_models.text.mtp import predicting_model as predicting_model
from semu_models.text.qwen import Qwen as Qwen
from semu_models.text.qwen import QwenConfig as QwenConfig
from semu_models.text.qwen import qwen2_0_5b as qwen2_0_5b
from semu_models.text.qwen import qwen2_1_5b as qwen2_1_5b
from semu_models.text.qwen import qwen2_5_3b as qwen2_5_3b
from semu_models.text.qwen import qwen2_5_7b as qwen2_5_7b
from semu_models.text.qwen import qwen2_5_14b as qwen2_5_14b
from semu_models.text.qwen import qwen2_5_32b as qwen2_5_32b
from semu_models.text.qwen import qwen2_5_72b as qwen2_5_72b
from semu_models.text.qwen import qwen2_7b as qwen2_7b
from semu_models.text.qwen import qwen2_32b as qwen2_32b
from semu_models.text.qwen import qwen2_72b as qwen2_72b
from semu_models.text.qwen2_moe import Qwen2MoE as Qwen2MoE
from semu_models.text.qwen2_moe import Qwen2MoEConfig as Qwen2MoEConfig
from semu_models.text.qwen2_moe import qwen1_5_moe_a2_7b as qwen1_5_moe_a2_7b
from semu_models.text.qwen2_moe import qwen2_57b_a14b as qwen2_57b_a14b
from semu_models.text.qwen3 import Qwen3 as Qwen3
from semu_models.text.qwen3 import Qwen3Config as Qwen3Config
from semu_models.text.qwen3 import qwen3_0_6b as qwen3_0_6b
from semu_models.text.qwen3 import qwen3_1_7b as qwen3_1_7b
from semu_models.text.qwen3 import qwen3_4b as qwen3_4b
from semu_models.text.qwen3 import qwen3_8b as qwen3_8b
from semu_models.text.qwen3 import qwen3_14b as qwen3_14b
from semu_models.text.qwen3 import qwen3_32b as qwen3_32b
from semu_models.text.qwen_moe import QwenMoE as QwenMoE
from semu_models.text.qwen_moe import QwenMoEConfig as QwenMoEConfig
from semu_models.text.qwen_moe import qwen3_30b_a3b as qwen3_30b_a3b
from semu_models.text.qwen_moe import qwen3_235b_a22b as qwen3_235b_a22b
from semu_models.vision.clip import DualEncoderConfig as DualEncoderConfig
from semu_models.vision.clip import TextTowerConfig as TextTowerConfig
from semu_models.vision.clip import clip_vit_b_32 as clip_vit_b_32
from semu_models.vision.clip import clip_vit_l_14 as clip_vit_l_14
from semu_models.vision.clip import make_dual_encoder as make_dual_encoder
from semu_models.vision.clip import siglip_so400m_dual as siglip_so400m_dual
from semu_models.vision.clip_vision import clip_vision_l_14_336 as clip_vision_l_14_336
from semu_models.vision.siglip import siglip_so400m as siglip_so400m
from semu_models.vision.vit import ViT as ViT
from semu_models.vision.vit import ViTConfig as ViTConfig
from semu_models.vision.vit import vit_2b as vit_2b
from semu_models.vision.vit import vit_5b as vit_5b
from semu_models.vision.vit import vit_22b as vit_22b
from semu_models.vision.vit_classic import vit_base_patch16 as vit_base_patch16
from semu_models.vision.vit_classic import vit_large_patch16 as vit_large_patch16

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
    "kimi_k2",
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
from semu_models.text.bloom import bloom_7b1 as bloom_7b1
from semu_models.text.bloom import bloom_176b as bloom_176b
from semu_models.text.falcon import falcon_7b as falcon_7b
from semu_models.text.falcon import falcon_40b as falcon_40b
from semu_models.text.glm import glm4_9b as glm4_9b
from semu_models.text.llama import llama_30b as llama_30b
from semu_models.text.llama import llama_65b as llama_65b
from semu_models.text.olmo import olmo2_7b as olmo2_7b
from semu_models.text.olmo import olmo2_13b as olmo2_13b
from semu_models.text.olmo import olmo2_32b as olmo2_32b
from semu_models.text.phi import phi_3_mini as phi_3_mini
from semu_models.text.phi import phi_4 as phi_4
