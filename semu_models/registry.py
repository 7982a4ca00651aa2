"""``MODELS``: every shipped model by name; ``build``."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from enum import Enum
from importlib import import_module
from types import MappingProxyType

from semu.checks import find_named
from semu.nn import Model
from semu.records import dataclass
from semu_models.names import shipped_name


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
    PHI = "phi"
    OLMO = "olmo"
    GLM = "glm"
    FALCON = "falcon"
    BLOOM = "bloom"


@dataclass(frozen=True)
class ModelEntry:
    """A shipped model.

    Attributes:
        name: lower case, as run.toml spells it.
        family: what kind of model.
        module: that has the function of the model's name, in ``semu_models``.
        nominal_parameters: the size that its name promises.
        source: where its shape comes from.
    """

    name: str
    family: Family
    module: str
    nominal_parameters: float
    source: str

    @property
    def builder(self) -> Callable[[], Model]:
        """Makes the model; its module is imported now."""
        home = import_module(f"semu_models.{self.module}")
        made: Callable[[], Model] = getattr(home, re.sub(r"\W", "_", self.name))
        return made


_ENTRIES = (
    ModelEntry("gpt3-175b", Family.GPT, "text.gpt", 175e9, "2005.14165 Table 2.1; 2104.04473 §5.1; DIP Table 6"),
    ModelEntry("lm-5b", Family.LLAMA, "text.llama", 5e9, "DIP Table 1; shape: Llama 7B with 24 layers"),
    ModelEntry("lm-7b", Family.LLAMA, "text.llama", 7e9, "DIP Table 1; shape: 2302.13971 Table 2"),
    ModelEntry("llama3-8b", Family.LLAMA, "text.llama", 8e9, "2407.21783 Table 3; DIP Table 2"),
    ModelEntry("qwen2-32b", Family.QWEN, "text.qwen", 32e9, "2412.15115 Table 1; DIP Table 2"),
    ModelEntry("qwen2-72b", Family.QWEN, "text.qwen", 72e9, "2407.10671 Table 1; DIP Table 2"),
    ModelEntry("mixtral-8x7b", Family.MIXTRAL, "text.mixtral", 47e9, "2401.04088 Table 1"),
    ModelEntry("mixtral-8x22b", Family.MIXTRAL, "text.mixtral", 141e9, "config.json of Mixtral-8x22B-v0.1"),
    ModelEntry("qwen3-30b-a3b", Family.QWEN_MOE, "text.qwen_moe", 30e9, "2505.09388 Table 2; config.json"),
    ModelEntry("qwen3-235b-a22b", Family.QWEN_MOE, "text.qwen_moe", 235e9, "2505.09388 Table 2; config.json"),
    ModelEntry(
        "deepseek-v3", Family.DEEPSEEK, "text.deepseek", 671e9, "2412.19437 §4.2, without multi-token prediction"
    ),
    ModelEntry("vit-2b", Family.VIT, "vision.vit", 2e9, "DIP Table 1; shape: 2106.04560 Table 2 (G/14)"),
    ModelEntry("vit-5b", Family.VIT, "vision.vit", 5e9, "DIP Table 2"),
    ModelEntry("vit-22b", Family.VIT, "vision.vit", 22e9, "2302.05442 Table 1; DIP Table 2"),
    ModelEntry("dit-5b", Family.DIT, "generation.dit", 5e9, "DIP Table 2"),
    ModelEntry("dit-30b", Family.DIT, "generation.dit", 30e9, "DIP Table 2; 2410.13720 §3.1"),
    ModelEntry("vlm-7b", Family.VLM, "multimodal.vlm", 7e9, "DIP Table 1"),
    ModelEntry("vlm-s", Family.VLM, "multimodal.vlm", 12e9, "DIP Table 3"),
    ModelEntry("vlm-m", Family.VLM, "multimodal.vlm", 37e9, "DIP Table 3"),
    ModelEntry("vlm-l", Family.VLM, "multimodal.vlm", 94e9, "DIP Table 3"),
    ModelEntry("vlm-xl", Family.VLM, "multimodal.vlm", 197e9, "DIP Table 6"),
    ModelEntry("t2v-s", Family.T2V, "generation.t2v", 13e9, "DIP Table 3"),
    ModelEntry("t2v-l", Family.T2V, "generation.t2v", 62e9, "DIP Table 3"),
    ModelEntry("t2v-xl", Family.T2V, "generation.t2v", 102e9, "DIP Table 6"),
    ModelEntry("movie-gen-30b", Family.DIT, "generation.video_dit", 30e9, "2410.13720 Table 1"),
    ModelEntry("step-video-30b", Family.DIT, "generation.video_dit", 30e9, "2502.10248 §4.2"),
    ModelEntry("sd3-8b", Family.MMDIT, "generation.mmdit", 8e9, "2403.03206 §5.3; SD 3.5 large in diffusers"),
    ModelEntry("flux-12b", Family.MMDIT, "generation.mmdit", 12e9, "FLUX.1-dev; diffusers' FluxTransformer2DModel"),
    ModelEntry("hunyuan-video-13b", Family.MMDIT, "generation.mmdit", 13e9, "2412.03603 Table 2; diffusers"),
    ModelEntry("bert-base", Family.BERT, "text.bert", 110e6, "1810.04805 §3; BertForPreTraining"),
    ModelEntry("bert-large", Family.BERT, "text.bert", 340e6, "1810.04805 §3; BertForPreTraining"),
    ModelEntry("clip-vit-b-32", Family.CLIP, "vision.clip", 151e6, "2103.00020 Table 20; CLIPModel"),
    ModelEntry("clip-vit-l-14", Family.CLIP, "vision.clip", 428e6, "2103.00020 Table 20; CLIPModel"),
    ModelEntry("siglip-so400m-dual", Family.CLIP, "vision.clip", 878e6, "2303.15343 §4; SiglipModel"),
    ModelEntry("gpt2", Family.GPT, "text.gpt", 0.124e9, "GPT-2 paper, Table 2"),
    ModelEntry("gpt2-medium", Family.GPT, "text.gpt", 0.355e9, "GPT-2 paper, Table 2"),
    ModelEntry("gpt2-large", Family.GPT, "text.gpt", 0.774e9, "GPT-2 paper, Table 2"),
    ModelEntry("gpt2-xl", Family.GPT, "text.gpt", 1.558e9, "GPT-2 paper, Table 2"),
    ModelEntry("llama2-7b", Family.LLAMA, "text.llama", 6.7e9, "2307.09288 Table 1; config.json"),
    ModelEntry("llama2-13b", Family.LLAMA, "text.llama", 13e9, "2307.09288 Table 1; config.json"),
    ModelEntry("llama2-70b", Family.LLAMA, "text.llama", 69e9, "2307.09288 Table 1; config.json"),
    ModelEntry("llama3-70b", Family.LLAMA, "text.llama", 70.6e9, "2407.21783 Table 3; 3.1 has its shape"),
    ModelEntry("llama3-405b", Family.LLAMA, "text.llama", 405e9, "2407.21783 Table 3; 3.1 has its shape"),
    ModelEntry("llama3.2-1b", Family.LLAMA, "text.llama", 1.23e9, "config.json of Llama-3.2-1B"),
    ModelEntry("llama3.2-3b", Family.LLAMA, "text.llama", 3.21e9, "config.json of Llama-3.2-3B"),
    ModelEntry("llama-30b", Family.LLAMA, "text.llama", 32.5e9, "2302.13971 Table 2"),
    ModelEntry("llama-65b", Family.LLAMA, "text.llama", 65.2e9, "2302.13971 Table 2"),
    ModelEntry("phi-3-mini", Family.PHI, "text.phi", 3.8e9, "2404.14219 §2; config.json of Phi-3-mini-4k-instruct"),
    ModelEntry("phi-4", Family.PHI, "text.phi", 14.7e9, "2412.08905 §3; config.json of phi-4"),
    ModelEntry("olmo2-7b", Family.OLMO, "text.olmo", 7.3e9, "2501.00656 Table 1; config.json of OLMo-2-1124-7B"),
    ModelEntry("olmo2-13b", Family.OLMO, "text.olmo", 13.7e9, "2501.00656 Table 1; config.json of OLMo-2-1124-13B"),
    ModelEntry("olmo2-32b", Family.OLMO, "text.olmo", 32.2e9, "config.json of OLMo-2-0325-32B"),
    ModelEntry("glm4-9b", Family.GLM, "text.glm", 9.4e9, "2406.12793 §2; config.json of glm-4-9b-hf"),
    ModelEntry("falcon-7b", Family.FALCON, "text.falcon", 6.9e9, "2311.16867 Table 14; config.json of falcon-7b"),
    ModelEntry("falcon-40b", Family.FALCON, "text.falcon", 41.3e9, "2311.16867 Table 14; config.json of falcon-40b"),
    ModelEntry("bloom-7b1", Family.BLOOM, "text.bloom", 7.07e9, "2211.05100 Table 3"),
    ModelEntry("bloom-176b", Family.BLOOM, "text.bloom", 176.2e9, "2211.05100 Table 3"),
    ModelEntry("mistral-7b", Family.MISTRAL, "text.mistral", 7.24e9, "2310.06825 Table 1 (v0.1, windows of 4096)"),
    ModelEntry("mistral-7b-v0.3", Family.MISTRAL, "text.mistral", 7.25e9, "config.json of Mistral-7B-v0.3"),
    ModelEntry("mistral-nemo-12b", Family.MISTRAL, "text.mistral", 12.2e9, "config.json of Mistral-Nemo-Base-2407"),
    ModelEntry("mistral-small-24b", Family.MISTRAL, "text.mistral", 23.6e9, "config.json of Mistral-Small-24B-2501"),
    ModelEntry("qwen2-0.5b", Family.QWEN, "text.qwen", 0.49e9, "2407.10671 Table 1; config.json"),
    ModelEntry("qwen2-1.5b", Family.QWEN, "text.qwen", 1.54e9, "2407.10671 Table 1; config.json"),
    ModelEntry("qwen2-7b", Family.QWEN, "text.qwen", 7.6e9, "2407.10671 Table 1; config.json"),
    ModelEntry("qwen2.5-3b", Family.QWEN, "text.qwen", 3.09e9, "2412.15115 Table 1; config.json"),
    ModelEntry("qwen2.5-7b", Family.QWEN, "text.qwen", 7.61e9, "2412.15115 Table 1; config.json"),
    ModelEntry("qwen2.5-14b", Family.QWEN, "text.qwen", 14.7e9, "2412.15115 Table 1; config.json"),
    ModelEntry("qwen2.5-32b", Family.QWEN, "text.qwen", 32.5e9, "2412.15115 Table 1; config.json"),
    ModelEntry("qwen2.5-72b", Family.QWEN, "text.qwen", 72.7e9, "2412.15115 Table 1; config.json"),
    ModelEntry("qwen3-0.6b", Family.QWEN, "text.qwen3", 0.6e9, "2505.09388 Table 1; config.json"),
    ModelEntry("qwen3-1.7b", Family.QWEN, "text.qwen3", 1.7e9, "2505.09388 Table 1; config.json"),
    ModelEntry("qwen3-4b", Family.QWEN, "text.qwen3", 4.0e9, "2505.09388 Table 1; config.json"),
    ModelEntry("qwen3-8b", Family.QWEN, "text.qwen3", 8.2e9, "2505.09388 Table 1; config.json"),
    ModelEntry("qwen3-14b", Family.QWEN, "text.qwen3", 14.8e9, "2505.09388 Table 1; config.json"),
    ModelEntry("qwen3-32b", Family.QWEN, "text.qwen3", 32.8e9, "2505.09388 Table 1; config.json"),
    ModelEntry("gemma2-2b", Family.GEMMA, "text.gemma", 2.6e9, "2408.00118 Table 1"),
    ModelEntry("gemma2-9b", Family.GEMMA, "text.gemma", 9.2e9, "2408.00118 Table 1"),
    ModelEntry("gemma2-27b", Family.GEMMA, "text.gemma", 27.2e9, "2408.00118 Table 1"),
    ModelEntry("gemma3-1b", Family.GEMMA, "text.gemma", 1e9, "2503.19786 Table 1; config.json"),
    ModelEntry("gemma3-4b", Family.GEMMA, "text.gemma", 3.88e9, "2503.19786 Table 1; config.json; language model"),
    ModelEntry("gemma3-12b", Family.GEMMA, "text.gemma", 11.8e9, "2503.19786 Table 1; config.json; language model"),
    ModelEntry("gemma3-27b", Family.GEMMA, "text.gemma", 27e9, "2503.19786 Table 1; config.json; language model"),
    ModelEntry("qwen1.5-moe-a2.7b", Family.QWEN_MOE, "text.qwen2_moe", 14.3e9, "config.json of Qwen1.5-MoE-A2.7B"),
    ModelEntry("qwen2-57b-a14b", Family.QWEN_MOE, "text.qwen2_moe", 57.4e9, "2407.10671 Table 1; config.json"),
    ModelEntry("deepseek-v2-lite", Family.DEEPSEEK, "text.deepseek", 15.7e9, "2405.04434 appendix B; config.json"),
    ModelEntry("deepseek-v2", Family.DEEPSEEK, "text.deepseek", 236e9, "2405.04434 §3.1.2; config.json"),
    ModelEntry("deepseek-v3-mtp", Family.DEEPSEEK, "text.deepseek", 683e9, "2412.19437 §2.2, §4.2, one further token"),
    ModelEntry("kimi-k2", Family.DEEPSEEK, "text.deepseek", 1026e9, "2507.20534 Table 2; config.json"),
    ModelEntry("gpt-oss-20b", Family.GPT_OSS, "text.gpt_oss", 20.9e9, "2508.10925 Table 1; config.json"),
    ModelEntry("gpt-oss-120b", Family.GPT_OSS, "text.gpt_oss", 116.8e9, "2508.10925 Table 1; config.json"),
    ModelEntry(
        "vit-base-patch16",
        Family.VIT,
        "vision.vit_classic",
        86.6e6,
        "2010.11929 Table 1; config.json of google/vit-base-patch16-224",
    ),
    ModelEntry(
        "vit-large-patch16",
        Family.VIT,
        "vision.vit_classic",
        304.3e6,
        "2010.11929 Table 1; config.json of google/vit-large-patch16-224",
    ),
    ModelEntry(
        "clip-vision-l-14-336",
        Family.CLIP_VISION,
        "vision.clip_vision",
        304e6,
        "2103.00020 Table 20; config.json of openai/clip-vit-large-patch14-336",
    ),
    ModelEntry(
        "siglip-so400m",
        Family.SIGLIP,
        "vision.siglip",
        428e6,
        "2303.15343 §4; config.json of google/siglip-so400m-patch14-384, its vision tower",
    ),
    ModelEntry(
        "whisper-large-v3",
        Family.WHISPER,
        "multimodal.whisper",
        1.54e9,
        "2212.04356 Table 1; config.json of openai/whisper-large-v3",
    ),
    ModelEntry(
        "llava-1.5-7b", Family.LLAVA, "multimodal.llava", 7.06e9, "2310.03744 §3; config.json of llava-1.5-7b-hf"
    ),
    ModelEntry(
        "llava-1.5-13b", Family.LLAVA, "multimodal.llava", 13.4e9, "2310.03744 §3; config.json of llava-1.5-13b-hf"
    ),
    ModelEntry("qwen2-vl-2b", Family.QWEN_VL, "multimodal.qwen_vl", 2.21e9, "2409.12191 Table 1; config.json"),
    ModelEntry("qwen2-vl-7b", Family.QWEN_VL, "multimodal.qwen_vl", 8.29e9, "2409.12191 Table 1; config.json"),
    ModelEntry("qwen2-vl-72b", Family.QWEN_VL, "multimodal.qwen_vl", 73.4e9, "2409.12191 Table 1; config.json"),
    ModelEntry("qwen2.5-vl-3b", Family.QWEN_VL, "multimodal.qwen_vl", 3.75e9, "2502.13923 Table 1; config.json"),
    ModelEntry("qwen2.5-vl-7b", Family.QWEN_VL, "multimodal.qwen_vl", 8.29e9, "2502.13923 Table 1; config.json"),
    ModelEntry(
        "qwen2.5-vl-32b", Family.QWEN_VL, "multimodal.qwen_vl", 33.5e9, "config.json of Qwen2.5-VL-32B-Instruct"
    ),
    ModelEntry("qwen2.5-vl-72b", Family.QWEN_VL, "multimodal.qwen_vl", 73.4e9, "2502.13923 Table 1; config.json"),
    ModelEntry(
        "internvl2.5-8b",
        Family.INTERN_VL,
        "multimodal.intern_vl",
        8.08e9,
        "2412.05271 Table 2; config.json; InternVL2 8B has its shapes",
    ),
    ModelEntry(
        "internvl3-1b",
        Family.INTERN_VL,
        "multimodal.intern_vl",
        0.8e9,
        "2504.10479 Table 1; config.json of InternVL3-1B-hf",
    ),
    ModelEntry(
        "internvl3-8b",
        Family.INTERN_VL,
        "multimodal.intern_vl",
        7.94e9,
        "2504.10479 Table 1; config.json of InternVL3-8B-hf",
    ),
    ModelEntry(
        "internvl3-78b",
        Family.INTERN_VL,
        "multimodal.intern_vl",
        78.4e9,
        "2504.10479 Table 1; config.json of InternVL3-78B-hf",
    ),
    ModelEntry(
        "gemma3-vl-4b",
        Family.GEMMA_VL,
        "multimodal.gemma_vl",
        4.3e9,
        "2503.19786 Table 1; config.json of gemma-3-4b-pt",
    ),
    ModelEntry(
        "gemma3-vl-12b",
        Family.GEMMA_VL,
        "multimodal.gemma_vl",
        12.2e9,
        "2503.19786 Table 1; config.json of gemma-3-12b-pt",
    ),
    ModelEntry(
        "gemma3-vl-27b",
        Family.GEMMA_VL,
        "multimodal.gemma_vl",
        27.4e9,
        "2503.19786 Table 1; config.json of gemma-3-27b-pt",
    ),
    ModelEntry("sd-1.5", Family.UNET, "generation.unet", 860e6, "2112.10752; v1-inference.yaml of stable-diffusion"),
    ModelEntry("sd-2", Family.UNET, "generation.unet", 866e6, "2112.10752; v2-inference.yaml of stablediffusion"),
    ModelEntry(
        "sdxl", Family.UNET, "generation.unet", 2.6e9, "2307.01952 Table 1; sd_xl_base.yaml of generative-models"
    ),
    ModelEntry(
        "qwen2-audio-7b",
        Family.QWEN_AUDIO,
        "multimodal.qwen_audio",
        8.4e9,
        "2407.10759 §2; config.json of Qwen2-Audio-7B",
    ),
    ModelEntry(
        "qwen2.5-omni-7b",
        Family.QWEN_OMNI,
        "multimodal.qwen_omni",
        8.93e9,
        "2503.20215 §2; thinker_config of Qwen2.5-Omni-7B",
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
