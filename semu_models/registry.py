"""``MODELS``: every shipped model by name; ``build``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType

from semu.checks import find_named
from semu.nn import Model
from semu_models.generation.dit import dit_5b, dit_30b
from semu_models.generation.mmdit import flux_12b, hunyuan_video_13b, sd3_8b
from semu_models.generation.t2v import t2v_l, t2v_s, t2v_xl
from semu_models.generation.unet import sd_1_5, sd_2, sdxl
from semu_models.generation.video_dit import movie_gen_30b, step_video_30b
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
from semu_models.multimodal.vlm import vlm_7b, vlm_l, vlm_m, vlm_s, vlm_xl
from semu_models.multimodal.whisper import whisper_large_v3
from semu_models.names import shipped_name
from semu_models.text.bert import bert_base, bert_large
from semu_models.text.deepseek import deepseek_v2, deepseek_v2_lite, deepseek_v3, deepseek_v3_mtp
from semu_models.text.gemma import gemma2_2b, gemma2_9b, gemma2_27b, gemma3_1b, gemma3_4b, gemma3_12b, gemma3_27b
from semu_models.text.gpt import gpt2, gpt2_large, gpt2_medium, gpt2_xl, gpt3_175b
from semu_models.text.gpt_oss import gpt_oss_20b, gpt_oss_120b
from semu_models.text.llama import (
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
from semu_models.text.mistral import mistral_7b, mistral_7b_v0_3, mistral_nemo_12b, mistral_small_24b
from semu_models.text.mixtral import mixtral_8x7b, mixtral_8x22b
from semu_models.text.qwen import (
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
from semu_models.text.qwen2_moe import qwen1_5_moe_a2_7b, qwen2_57b_a14b
from semu_models.text.qwen3 import qwen3_0_6b, qwen3_1_7b, qwen3_4b, qwen3_8b, qwen3_14b, qwen3_32b
from semu_models.text.qwen_moe import qwen3_30b_a3b, qwen3_235b_a22b
from semu_models.vision.clip import clip_vit_b_32, clip_vit_l_14, siglip_so400m_dual
from semu_models.vision.clip_vision import clip_vision_l_14_336
from semu_models.vision.siglip import siglip_so400m
from semu_models.vision.vit import vit_2b, vit_5b, vit_22b
from semu_models.vision.vit_classic import vit_base_patch16, vit_large_patch16


class Family(Enum):
    """What kind of model; the value is its name in lists."""

    GPT = "gpt"
    LLAMA = "llama"
    QWEN = "qwen"
    MIXTRAL = "mixtral"
    QWEN_MOE = "qwen-moe"
    DEEPSEEK = "deepseek"
    VIT = "vit"
    DIT = "dit"
    VLM = "vlm"
    T2V = "t2v"
    MMDIT = "mmdit"
    UNET = "unet"
    BERT = "bert"
    CLIP = "clip"
    MISTRAL = "mistral"
    GEMMA = "gemma"
    GPT_OSS = "gpt-oss"
    CLIP_VISION = "clip-vision"
    SIGLIP = "siglip"
    WHISPER = "whisper"
    LLAVA = "llava"
    QWEN_VL = "qwen-vl"
    INTERN_VL = "internvl"
    GEMMA_VL = "gemma-vl"
    QWEN_AUDIO = "qwen-audio"
    QWEN_OMNI = "qwen-omni"


@dataclass(frozen=True)
class ModelEntry:
    """A shipped model.

    Attributes:
        name: lower case, as run.toml spells it.
        family: what kind of model.
        builder: makes it.
        nominal_parameters: the size that its name promises.
        source: where its shape comes from.
    """

    name: str
    family: Family
    builder: Callable[[], Model]
    nominal_parameters: float
    source: str


_ENTRIES = (
    ModelEntry("gpt3-175b", Family.GPT, gpt3_175b, 175e9, "2005.14165 Table 2.1; 2104.04473 §5.1; DIP Table 6"),
    ModelEntry("lm-5b", Family.LLAMA, lm_5b, 5e9, "DIP Table 1; shape: Llama 7B with 24 layers"),
    ModelEntry("lm-7b", Family.LLAMA, lm_7b, 7e9, "DIP Table 1; shape: 2302.13971 Table 2"),
    ModelEntry("llama3-8b", Family.LLAMA, llama3_8b, 8e9, "2407.21783 Table 3; DIP Table 2"),
    ModelEntry("qwen2-32b", Family.QWEN, qwen2_32b, 32e9, "2412.15115 Table 1; DIP Table 2"),
    ModelEntry("qwen2-72b", Family.QWEN, qwen2_72b, 72e9, "2407.10671 Table 1; DIP Table 2"),
    ModelEntry("mixtral-8x7b", Family.MIXTRAL, mixtral_8x7b, 47e9, "2401.04088 Table 1"),
    ModelEntry("mixtral-8x22b", Family.MIXTRAL, mixtral_8x22b, 141e9, "config.json of Mixtral-8x22B-v0.1"),
    ModelEntry("qwen3-30b-a3b", Family.QWEN_MOE, qwen3_30b_a3b, 30e9, "2505.09388 Table 2; config.json"),
    ModelEntry("qwen3-235b-a22b", Family.QWEN_MOE, qwen3_235b_a22b, 235e9, "2505.09388 Table 2; config.json"),
    ModelEntry("deepseek-v3", Family.DEEPSEEK, deepseek_v3, 671e9, "2412.19437 §4.2, without multi-token prediction"),
    ModelEntry("vit-2b", Family.VIT, vit_2b, 2e9, "DIP Table 1; shape: 2106.04560 Table 2 (G/14)"),
    ModelEntry("vit-5b", Family.VIT, vit_5b, 5e9, "DIP Table 2"),
    ModelEntry("vit-22b", Family.VIT, vit_22b, 22e9, "2302.05442 Table 1; DIP Table 2"),
    ModelEntry("dit-5b", Family.DIT, dit_5b, 5e9, "DIP Table 2"),
    ModelEntry("dit-30b", Family.DIT, dit_30b, 30e9, "DIP Table 2; 2410.13720 §3.1"),
    ModelEntry("vlm-7b", Family.VLM, vlm_7b, 7e9, "DIP Table 1"),
    ModelEntry("vlm-s", Family.VLM, vlm_s, 12e9, "DIP Table 3"),
    ModelEntry("vlm-m", Family.VLM, vlm_m, 37e9, "DIP Table 3"),
    ModelEntry("vlm-l", Family.VLM, vlm_l, 94e9, "DIP Table 3"),
    ModelEntry("vlm-xl", Family.VLM, vlm_xl, 197e9, "DIP Table 6"),
    ModelEntry("t2v-s", Family.T2V, t2v_s, 13e9, "DIP Table 3"),
    ModelEntry("t2v-l", Family.T2V, t2v_l, 62e9, "DIP Table 3"),
    ModelEntry("t2v-xl", Family.T2V, t2v_xl, 102e9, "DIP Table 6"),
    ModelEntry("movie-gen-30b", Family.DIT, movie_gen_30b, 30e9, "2410.13720 Table 1"),
    ModelEntry("step-video-30b", Family.DIT, step_video_30b, 30e9, "2502.10248 §4.2"),
    ModelEntry("sd3-8b", Family.MMDIT, sd3_8b, 8e9, "2403.03206 §5.3; SD 3.5 large in diffusers"),
    ModelEntry("flux-12b", Family.MMDIT, flux_12b, 12e9, "FLUX.1-dev; diffusers' FluxTransformer2DModel"),
    ModelEntry("hunyuan-video-13b", Family.MMDIT, hunyuan_video_13b, 13e9, "2412.03603 Table 2; diffusers"),
    ModelEntry("bert-base", Family.BERT, bert_base, 110e6, "1810.04805 §3; BertForPreTraining"),
    ModelEntry("bert-large", Family.BERT, bert_large, 340e6, "1810.04805 §3; BertForPreTraining"),
    ModelEntry("clip-vit-b-32", Family.CLIP, clip_vit_b_32, 151e6, "2103.00020 Table 20; CLIPModel"),
    ModelEntry("clip-vit-l-14", Family.CLIP, clip_vit_l_14, 428e6, "2103.00020 Table 20; CLIPModel"),
    ModelEntry("siglip-so400m-dual", Family.CLIP, siglip_so400m_dual, 878e6, "2303.15343 §4; SiglipModel"),
    ModelEntry("gpt2", Family.GPT, gpt2, 0.124e9, "GPT-2 paper, Table 2"),
    ModelEntry("gpt2-medium", Family.GPT, gpt2_medium, 0.355e9, "GPT-2 paper, Table 2"),
    ModelEntry("gpt2-large", Family.GPT, gpt2_large, 0.774e9, "GPT-2 paper, Table 2"),
    ModelEntry("gpt2-xl", Family.GPT, gpt2_xl, 1.558e9, "GPT-2 paper, Table 2"),
    ModelEntry("llama2-7b", Family.LLAMA, llama2_7b, 6.7e9, "2307.09288 Table 1; config.json"),
    ModelEntry("llama2-13b", Family.LLAMA, llama2_13b, 13e9, "2307.09288 Table 1; config.json"),
    ModelEntry("llama2-70b", Family.LLAMA, llama2_70b, 69e9, "2307.09288 Table 1; config.json"),
    ModelEntry("llama3-70b", Family.LLAMA, llama3_70b, 70.6e9, "2407.21783 Table 3; 3.1 has its shape"),
    ModelEntry("llama3-405b", Family.LLAMA, llama3_405b, 405e9, "2407.21783 Table 3; 3.1 has its shape"),
    ModelEntry("llama3.2-1b", Family.LLAMA, llama3_2_1b, 1.23e9, "config.json of Llama-3.2-1B"),
    ModelEntry("llama3.2-3b", Family.LLAMA, llama3_2_3b, 3.21e9, "config.json of Llama-3.2-3B"),
    ModelEntry("mistral-7b", Family.MISTRAL, mistral_7b, 7.24e9, "2310.06825 Table 1 (v0.1, windows of 4096)"),
    ModelEntry("mistral-7b-v0.3", Family.MISTRAL, mistral_7b_v0_3, 7.25e9, "config.json of Mistral-7B-v0.3"),
    ModelEntry("mistral-nemo-12b", Family.MISTRAL, mistral_nemo_12b, 12.2e9, "config.json of Mistral-Nemo-Base-2407"),
    ModelEntry("mistral-small-24b", Family.MISTRAL, mistral_small_24b, 23.6e9, "config.json of Mistral-Small-24B-2501"),
    ModelEntry("qwen2-0.5b", Family.QWEN, qwen2_0_5b, 0.49e9, "2407.10671 Table 1; config.json"),
    ModelEntry("qwen2-1.5b", Family.QWEN, qwen2_1_5b, 1.54e9, "2407.10671 Table 1; config.json"),
    ModelEntry("qwen2-7b", Family.QWEN, qwen2_7b, 7.6e9, "2407.10671 Table 1; config.json"),
    ModelEntry("qwen2.5-3b", Family.QWEN, qwen2_5_3b, 3.09e9, "2412.15115 Table 1; config.json"),
    ModelEntry("qwen2.5-7b", Family.QWEN, qwen2_5_7b, 7.61e9, "2412.15115 Table 1; config.json"),
    ModelEntry("qwen2.5-14b", Family.QWEN, qwen2_5_14b, 14.7e9, "2412.15115 Table 1; config.json"),
    ModelEntry("qwen2.5-32b", Family.QWEN, qwen2_5_32b, 32.5e9, "2412.15115 Table 1; config.json"),
    ModelEntry("qwen2.5-72b", Family.QWEN, qwen2_5_72b, 72.7e9, "2412.15115 Table 1; config.json"),
    ModelEntry("qwen3-0.6b", Family.QWEN, qwen3_0_6b, 0.6e9, "2505.09388 Table 1; config.json"),
    ModelEntry("qwen3-1.7b", Family.QWEN, qwen3_1_7b, 1.7e9, "2505.09388 Table 1; config.json"),
    ModelEntry("qwen3-4b", Family.QWEN, qwen3_4b, 4.0e9, "2505.09388 Table 1; config.json"),
    ModelEntry("qwen3-8b", Family.QWEN, qwen3_8b, 8.2e9, "2505.09388 Table 1; config.json"),
    ModelEntry("qwen3-14b", Family.QWEN, qwen3_14b, 14.8e9, "2505.09388 Table 1; config.json"),
    ModelEntry("qwen3-32b", Family.QWEN, qwen3_32b, 32.8e9, "2505.09388 Table 1; config.json"),
    ModelEntry("gemma2-2b", Family.GEMMA, gemma2_2b, 2.6e9, "2408.00118 Table 1"),
    ModelEntry("gemma2-9b", Family.GEMMA, gemma2_9b, 9.2e9, "2408.00118 Table 1"),
    ModelEntry("gemma2-27b", Family.GEMMA, gemma2_27b, 27.2e9, "2408.00118 Table 1"),
    ModelEntry("gemma3-1b", Family.GEMMA, gemma3_1b, 1e9, "2503.19786 Table 1; config.json"),
    ModelEntry("gemma3-4b", Family.GEMMA, gemma3_4b, 3.88e9, "2503.19786 Table 1; config.json; language model"),
    ModelEntry("gemma3-12b", Family.GEMMA, gemma3_12b, 11.8e9, "2503.19786 Table 1; config.json; language model"),
    ModelEntry("gemma3-27b", Family.GEMMA, gemma3_27b, 27e9, "2503.19786 Table 1; config.json; language model"),
    ModelEntry("qwen1.5-moe-a2.7b", Family.QWEN_MOE, qwen1_5_moe_a2_7b, 14.3e9, "config.json of Qwen1.5-MoE-A2.7B"),
    ModelEntry("qwen2-57b-a14b", Family.QWEN_MOE, qwen2_57b_a14b, 57.4e9, "2407.10671 Table 1; config.json"),
    ModelEntry("deepseek-v2-lite", Family.DEEPSEEK, deepseek_v2_lite, 15.7e9, "2405.04434 appendix B; config.json"),
    ModelEntry("deepseek-v2", Family.DEEPSEEK, deepseek_v2, 236e9, "2405.04434 §3.1.2; config.json"),
    ModelEntry("deepseek-v3-mtp", Family.DEEPSEEK, deepseek_v3_mtp, 683e9, "2412.19437 §2.2, §4.2, one further token"),
    ModelEntry("gpt-oss-20b", Family.GPT_OSS, gpt_oss_20b, 20.9e9, "2508.10925 Table 1; config.json"),
    ModelEntry("gpt-oss-120b", Family.GPT_OSS, gpt_oss_120b, 116.8e9, "2508.10925 Table 1; config.json"),
    ModelEntry(
        "vit-base-patch16",
        Family.VIT,
        vit_base_patch16,
        86.6e6,
        "2010.11929 Table 1; config.json of google/vit-base-patch16-224",
    ),
    ModelEntry(
        "vit-large-patch16",
        Family.VIT,
        vit_large_patch16,
        304.3e6,
        "2010.11929 Table 1; config.json of google/vit-large-patch16-224",
    ),
    ModelEntry(
        "clip-vision-l-14-336",
        Family.CLIP_VISION,
        clip_vision_l_14_336,
        304e6,
        "2103.00020 Table 20; config.json of openai/clip-vit-large-patch14-336",
    ),
    ModelEntry(
        "siglip-so400m",
        Family.SIGLIP,
        siglip_so400m,
        428e6,
        "2303.15343 §4; config.json of google/siglip-so400m-patch14-384, its vision tower",
    ),
    ModelEntry(
        "whisper-large-v3",
        Family.WHISPER,
        whisper_large_v3,
        1.54e9,
        "2212.04356 Table 1; config.json of openai/whisper-large-v3",
    ),
    ModelEntry("llava-1.5-7b", Family.LLAVA, llava_1_5_7b, 7.06e9, "2310.03744 §3; config.json of llava-1.5-7b-hf"),
    ModelEntry("llava-1.5-13b", Family.LLAVA, llava_1_5_13b, 13.4e9, "2310.03744 §3; config.json of llava-1.5-13b-hf"),
    ModelEntry("qwen2-vl-2b", Family.QWEN_VL, qwen2_vl_2b, 2.21e9, "2409.12191 Table 1; config.json"),
    ModelEntry("qwen2-vl-7b", Family.QWEN_VL, qwen2_vl_7b, 8.29e9, "2409.12191 Table 1; config.json"),
    ModelEntry("qwen2-vl-72b", Family.QWEN_VL, qwen2_vl_72b, 73.4e9, "2409.12191 Table 1; config.json"),
    ModelEntry("qwen2.5-vl-3b", Family.QWEN_VL, qwen2_5_vl_3b, 3.75e9, "2502.13923 Table 1; config.json"),
    ModelEntry("qwen2.5-vl-7b", Family.QWEN_VL, qwen2_5_vl_7b, 8.29e9, "2502.13923 Table 1; config.json"),
    ModelEntry("qwen2.5-vl-32b", Family.QWEN_VL, qwen2_5_vl_32b, 33.5e9, "config.json of Qwen2.5-VL-32B-Instruct"),
    ModelEntry("qwen2.5-vl-72b", Family.QWEN_VL, qwen2_5_vl_72b, 73.4e9, "2502.13923 Table 1; config.json"),
    ModelEntry(
        "internvl2.5-8b",
        Family.INTERN_VL,
        internvl2_5_8b,
        8.08e9,
        "2412.05271 Table 2; config.json; InternVL2 8B has its shapes",
    ),
    ModelEntry(
        "internvl3-1b", Family.INTERN_VL, internvl3_1b, 0.8e9, "2504.10479 Table 1; config.json of InternVL3-1B-hf"
    ),
    ModelEntry(
        "internvl3-8b", Family.INTERN_VL, internvl3_8b, 7.94e9, "2504.10479 Table 1; config.json of InternVL3-8B-hf"
    ),
    ModelEntry(
        "internvl3-78b", Family.INTERN_VL, internvl3_78b, 78.4e9, "2504.10479 Table 1; config.json of InternVL3-78B-hf"
    ),
    ModelEntry(
        "gemma3-vl-4b", Family.GEMMA_VL, gemma3_vl_4b, 4.3e9, "2503.19786 Table 1; config.json of gemma-3-4b-pt"
    ),
    ModelEntry(
        "gemma3-vl-12b", Family.GEMMA_VL, gemma3_vl_12b, 12.2e9, "2503.19786 Table 1; config.json of gemma-3-12b-pt"
    ),
    ModelEntry(
        "gemma3-vl-27b", Family.GEMMA_VL, gemma3_vl_27b, 27.4e9, "2503.19786 Table 1; config.json of gemma-3-27b-pt"
    ),
    ModelEntry("sd-1.5", Family.UNET, sd_1_5, 860e6, "2112.10752; v1-inference.yaml of stable-diffusion"),
    ModelEntry("sd-2", Family.UNET, sd_2, 866e6, "2112.10752; v2-inference.yaml of stablediffusion"),
    ModelEntry("sdxl", Family.UNET, sdxl, 2.6e9, "2307.01952 Table 1; sd_xl_base.yaml of generative-models"),
    ModelEntry(
        "qwen2-audio-7b", Family.QWEN_AUDIO, qwen2_audio_7b, 8.4e9, "2407.10759 §2; config.json of Qwen2-Audio-7B"
    ),
    ModelEntry(
        "qwen2.5-omni-7b", Family.QWEN_OMNI, qwen2_5_omni_7b, 8.93e9, "2503.20215 §2; thinker_config of Qwen2.5-Omni-7B"
    ),
)

MODELS: Mapping[str, ModelEntry] = MappingProxyType({entry.name: entry for entry in _ENTRIES})
"""Every shipped model by name."""


def find_model(name: str, *, where: str | None = None) -> ModelEntry:
    """The entry of a name in ``MODELS``; arguments and errors as ``build``."""
    return find_named("model", shipped_name(name, MODELS) or name, MODELS, where=where)


def build(name: str, *, where: str | None = None) -> Model:
    """A new model.

    Args:
        name: one of ``MODELS``, in any spelling, or what stands for one (``semu_models.names``).
        where: place of the name, for the error.
    Raises:
        ConfigError: an unknown name, with a 'did you mean'.
    """
    return find_model(name, where=where).builder()
