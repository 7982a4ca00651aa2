"""Describe models as in PyTorch: modules, parameters, ``forward``; shapes only, no data."""

from semu.nn.layers.activation import Activation
from semu.nn.layers.elementary import GELU, Dropout, Embedding, GroupNorm, LayerNorm, LayerScale, Linear, RMSNorm, SiLU
from semu.nn.layers.lora import LoRA, LoRALinear, add_lora
from semu.nn.layers.mla import LatentAttention, LatentSizes
from semu.nn.layers.moe import MixtureOfExperts
from semu.nn.layers.recompute import Recompute
from semu.nn.layers.transformer import MLP, CrossAttention, LMHead, NormPlacement, SelfAttention, TransformerLayer
from semu.nn.model import TEXT_IDS, InputSpec, ModalityModule, ModalityRole, Model
from semu.nn.module import Module, ModuleList, Parameter, Sequential
from semu.nn.trace.sharding import ShardingPlan, ShardingStyle
from semu.nn.trace.tensor import Sequences, Tensor
from semu.nn.window import Window, WindowKind

__all__ = [
    "GELU",
    "MLP",
    "TEXT_IDS",
    "Activation",
    "CrossAttention",
    "Dropout",
    "Embedding",
    "GroupNorm",
    "InputSpec",
    "LMHead",
    "LatentAttention",
    "LatentSizes",
    "LayerNorm",
    "LayerScale",
    "Linear",
    "LoRA",
    "LoRALinear",
    "MixtureOfExperts",
    "ModalityModule",
    "ModalityRole",
    "Model",
    "Module",
    "ModuleList",
    "NormPlacement",
    "Parameter",
    "RMSNorm",
    "Recompute",
    "SelfAttention",
    "Sequences",
    "Sequential",
    "ShardingPlan",
    "ShardingStyle",
    "SiLU",
    "Tensor",
    "TransformerLayer",
    "Window",
    "WindowKind",
    "add_lora",
]
