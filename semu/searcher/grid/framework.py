"""Which sizes a training framework can cut a model into: ``framework_rule``.

Megatron-LM (``get_num_layers_to_build``): pp x vpp divides the layers of the language model, unless the run names its
stages (``[parallel.layout]``, as ``--decoder-first-pipeline-num-layers`` or ``--pipeline-model-parallel-layout`` do);
virtual stages take turns over groups of pp microbatches. torchtitan: tp divides query and key-value heads, and a stage
has a whole layer or more.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

from semu.hardware.software import Software
from semu.job import TrainingJob
from semu.nn import SelfAttention
from semu.nn.model import ModalityModule, ModalityRole
from semu.parallel.stage_layers import layer_parts


class Framework(StrEnum):
    """Whose rules configurations obey; ``any``: semu's alone."""

    MEGATRON = "megatron"
    TORCHTITAN = "torchtitan"
    ANY = "any"


Misfit = Callable[[int, int, int, int], str | None]
"""tp, pp, vpp, microbatches -> what the framework cannot cut, as a sentence; None: it can."""


def own_framework(job: TrainingJob) -> Framework:
    """Megatron-LM where ``training.software`` says so, else any."""
    return Framework.MEGATRON if job.training.software is Software.MEGATRON else Framework.ANY


def framework_rule(framework: Framework, job: TrainingJob) -> Misfit:
    """What a framework refuses of a job's sizes."""
    if framework is Framework.ANY:
        return lambda tp, pp, vpp, microbatches: None
    language = _language_model(job)
    layers = len(layer_parts(language))
    if framework is Framework.TORCHTITAN:
        found = [item for _, item in language.body.named_modules() if isinstance(item, SelfAttention)]
        heads = {count for item in found for count in (item.heads, item.kv_heads)}
        return lambda tp, pp, vpp, microbatches: _torchtitan(layers, heads, tp, pp * vpp)
    is_named = job.parallel.layout is not None

    def _misfit(tp: int, pp: int, vpp: int, microbatches: int) -> str | None:
        if not is_named and layers % (pp * vpp):
            return f"{layers} layers of {language.name} do not divide into pp x vpp = {pp} x {vpp} stages"
        if vpp > 1 and microbatches % pp:
            return f"{microbatches} microbatches are no multiple of pp = {pp}, which vpp > 1 needs"
        return None

    return _misfit


def _torchtitan(layers: int, heads: set[int], tp: int, stages: int) -> str | None:
    odd = [count for count in sorted(heads) if count % tp]
    if odd:
        return f"tp = {tp} does not divide {odd[0]} heads"
    return f"{stages} stages, and {layers} layers" if stages > layers else None


def _language_model(job: TrainingJob) -> ModalityModule:
    """The backbone; where there is none, the module with the most parameters."""
    modules = job.model.modules
    backbones = [module for module in modules if module.role is ModalityRole.BACKBONE]
    return max(backbones or modules, key=lambda module: module.body.num_parameters())
