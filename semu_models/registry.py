"""``MODELS``: every shipped model by name; ``build``; ``parameter_table`` for people."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType

from semu.nn import Model
from semu.units import format_count
from semu_models.bert import bert_base, bert_large
from semu_models.checks import find_named
from semu_models.clip import clip_vit_b_32, clip_vit_l_14, siglip_so400m_dual
from semu_models.deepseek import deepseek_v3
from semu_models.dit import dit_5b, dit_30b
from semu_models.gpt import gpt3_175b
from semu_models.llama import llama3_8b, lm_5b, lm_7b
from semu_models.mixtral import mixtral_8x7b, mixtral_8x22b
from semu_models.mmdit import flux_12b, hunyuan_video_13b, sd3_8b
from semu_models.qwen import qwen2_32b, qwen2_72b
from semu_models.qwen_moe import qwen3_30b_a3b, qwen3_235b_a22b
from semu_models.t2v import t2v_l, t2v_s, t2v_xl
from semu_models.video_dit import movie_gen_30b, step_video_30b
from semu_models.vit import vit_2b, vit_5b, vit_22b
from semu_models.vlm import vlm_7b, vlm_l, vlm_m, vlm_s, vlm_xl


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
    BERT = "bert"
    CLIP = "clip"


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
)

MODELS: Mapping[str, ModelEntry] = MappingProxyType({entry.name: entry for entry in _ENTRIES})
"""Every shipped model by name."""


def find_model(name: str, *, where: str | None = None) -> ModelEntry:
    """The entry of a name in ``MODELS``; arguments and errors as ``build``."""
    return find_named("model", name, MODELS, where=where)


def build(name: str, *, where: str | None = None) -> Model:
    """A new model.

    Args:
        name: one of ``MODELS``. where: place of the name, for the error.
    Raises:
        ConfigError: an unknown name, with a 'did you mean'.
    """
    return find_model(name, where=where).builder()


def parameter_table() -> str:
    """All models, a line each: name, family, parameters counted and active, FLOP per token, nominal size, modules,
    source; FLOP as ``flop_per_token`` counts them under semu's convention, at ``listing.LENGTH`` tokens."""
    from semu_models.listing import list_models

    rows = [("model", "family", "parameters", "", "active", "FLOP/token", "nominal", "modules", "source")]
    for item in list_models():
        parts = ", ".join(f"{name} {format_count(count)}" for name, count in item.modules.items())
        active = "" if item.active_parameters == item.parameters else format_count(item.active_parameters)
        flop = "-" if item.flop_per_token is None else f"{item.flop_per_token['semu'] / 1e9:,.2f} G"
        nominal = f"{item.entry.nominal_parameters / 1e9:.0f} B"
        counted = (f"{item.parameters:,}", format_count(item.parameters), active, flop, nominal)
        rows.append((item.entry.name, item.entry.family.value, *counted, parts, item.entry.source))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    right = (False, False, True, True, True, True, True, False, False)
    return "\n".join(
        "  ".join(cell.rjust(w) if r else cell.ljust(w) for cell, w, r in zip(row, widths, right, strict=True)).rstrip()
        for row in rows
    )
