"""Describe models as in PyTorch: modules, parameters, ``forward``; shapes only, no data."""

from semu.nn.activation import Activation
from semu.nn.layers import GELU, Dropout, Embedding, LayerNorm, LayerScale, Linear, RMSNorm, SiLU
from semu.nn.lora import LoRA, LoRALinear, add_lora
from semu.nn.mla import LatentAttention, LatentSizes
from semu.nn.model import TEXT_IDS, InputSpec, ModalityModule, ModalityRole, Model
from semu.nn.module import Module, ModuleList, Parameter, Sequential
from semu.nn.moe import MixtureOfExperts
from semu.nn.recompute import Recompute
from semu.nn.sharding import ShardingPlan, ShardingStyle
from semu.nn.tensor import Sequences, Tensor
from semu.nn.transformer import MLP, CrossAttention, LMHead, NormPlacement, SelfAttention, TransformerLayer
from semu.nn.window import Window, WindowKind

__all__ = [
    "GELU",
    "MLP",
    "TEXT_IDS",
    "Activation",
    "CrossAttention",
    "Dropout",
    "Embedding",
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
