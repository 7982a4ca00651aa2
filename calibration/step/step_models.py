"""A measured step in semu's words: the model, the batch and the job, for ``calibration.compare`` and tests."""

from __future__ import annotations

import semu
from calibration.steps import DIT_FEATURES, DIT_TIMESTEP, IMAGE_PX, StepCase, text_sizes
from semu.nn import ModalityModule, ModalityRole, Model, Sequential, TransformerLayer
from semu.workload import AbstractBatch
from semu_models.generation.latent_dit import LatentDiTConfig, make_latent_dit
from semu_models.text.llama import Llama, LlamaConfig
from semu_models.vision.clip import DualEncoderConfig, TextTowerConfig, make_dual_encoder
from semu_models.vision.clip_vision import ClipVisionConfig

TOWERS = ("vit", "dit", "two_tower")
"""Scopes whose modules PyTorch runs operator by operator as semu counts it (``semu.nn.trace.eager``); a decoder's are
written as fused kernels."""


def step_model(case: StepCase) -> Model:
    """The same step in semu's words."""
    if case.scope == "dit":
        config = LatentDiTConfig(
            case.layers,
            case.hidden,
            case.ffn,
            case.heads,
            latent_features=DIT_FEATURES,
            timestep_features=DIT_TIMESTEP,
        )
        return make_latent_dit(case.scope, config)
    if case.scope == "two_tower":
        width, ffn, heads = text_sizes(case)
        patch = IMAGE_PX // round(case.seq_len**0.5)
        vision = ClipVisionConfig(case.layers, case.hidden, case.ffn, case.heads, patch_size=patch)
        return make_dual_encoder(
            case.scope, DualEncoderConfig(vision, TextTowerConfig(case.layers, width, ffn, heads), width)
        )
    if case.vocab:
        body: Sequential = Llama(LlamaConfig(case.layers, case.hidden, case.ffn, case.heads, case.kv_heads, case.vocab))
        return Model(case.scope, [ModalityModule("llm", ModalityRole.BACKBONE, body)])
    layers = {f"layers.{number}": _layer(case) for number in range(case.layers)}
    given = semu.InputSpec("text", case.hidden)
    return Model(case.scope, [ModalityModule("llm", ModalityRole.BACKBONE, Sequential(layers), (given,))])


def _layer(case: StepCase) -> TransformerLayer:
    if case.scope == "vit":
        return TransformerLayer(case.hidden, case.ffn, case.heads, causal=False)
    return TransformerLayer(
        case.hidden, case.ffn, case.heads, case.kv_heads, rotary=True, gated=True, rms_norm=True, bias=False
    )


def _batch(case: StepCase) -> AbstractBatch:
    if case.scope == "dit":
        return semu.workload.fixed_batch(video=case.seq_len)
    if case.scope == "two_tower":
        return semu.workload.pair_batch(patches_per_image=case.seq_len)
    return semu.workload.text_batch(case.seq_len)


def step_job(case: StepCase, device: str, software: str = "kernels") -> semu.TrainingJob:
    """The step on one GPU: parameters, gradients and moments in the step's type, gradients added to.

    torch's flash attention is FlashAttention-2 (``calibration.attention`` measures it beside cuDNN's).

    Args:
        case: what was measured. device: profile, by name or path. software: whose factors apply.
    """
    is_text = case.scope not in ("dit", "two_tower")
    return semu.TrainingJob(
        model=step_model(case),
        cluster=semu.Cluster(device, nodes=1, gpus_per_node=1),
        parallel=semu.Parallel(dp=1, tp=1, pp=1),
        training=semu.Training(
            micro_batch=case.micro_batch,
            global_batch=case.micro_batch,
            seq_len=case.seq_len if is_text else None,
            precision=case.dtype,
            grad_dtype=case.dtype,
            master_dtype=case.dtype,
            optimizer_state_dtype=case.dtype,
            optimizer_kernels=case.optimizer,
            recompute=case.recompute,
            cross_entropy="unfused",
            gradient_accumulation_fusion=False,
            software=software,
            workspaces="torch",
            attention_kernel=ATTENTION.get(device),
            eager_modules=case.scope in TOWERS and not case.compiled,
            launch=not case.compiled,
        ),
        batch=_batch(case),
    )


ATTENTION = dict.fromkeys(("a100-80g", "h100", "h200"), "fa2")
"""Profiles with a factor for FlashAttention-2; others have their own kernel."""
