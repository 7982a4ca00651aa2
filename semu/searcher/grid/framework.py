"""Which configurations a training framework can run: ``framework_rule``, by the table ``RULES``.

The rules were written without the frameworks' sources at hand and are of no particular release: a source says where to
look. docs/grid.md has the same table, and what is left out of it.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import NamedTuple

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
"""tp, pp, vpp, microbatches -> what the framework cannot run, as a sentence; None: it can."""


class FrameworkRule(NamedTuple):
    """What a framework asks of a configuration.

    Attributes:
        framework: which. asks: what. source: the option or function of the framework where to look. misfit: of a job.
    """

    framework: Framework
    asks: str
    source: str
    misfit: Callable[[TrainingJob], Misfit]


def own_framework(job: TrainingJob) -> Framework:
    """Megatron-LM where ``training.software`` says so, else any."""
    return Framework.MEGATRON if job.training.software is Software.MEGATRON else Framework.ANY


def framework_rule(framework: Framework, job: TrainingJob) -> Misfit:
    """What a framework refuses of a job's sizes."""
    misfits = [rule.misfit(job) for rule in RULES if rule.framework is framework]

    def _misfit(tp: int, pp: int, vpp: int, microbatches: int) -> str | None:
        for misfit in misfits:
            if (said := misfit(tp, pp, vpp, microbatches)) is not None:
                return said
        return None

    return _misfit


def _even_stages(job: TrainingJob) -> Misfit:
    language = _language_model(job)
    layers, is_named = len(layer_parts(language)), job.parallel.layout is not None

    def _misfit(tp: int, pp: int, vpp: int, microbatches: int) -> str | None:
        if is_named or layers % (pp * vpp) == 0:
            return None
        return f"{layers} layers of {language.name} do not divide into pp x vpp = {pp} x {vpp} stages"

    return _misfit


def _whole_turns(job: TrainingJob) -> Misfit:
    def _misfit(tp: int, pp: int, vpp: int, microbatches: int) -> str | None:
        if vpp == 1 or microbatches % pp == 0:
            return None
        return f"{microbatches} microbatches are no multiple of pp = {pp}, which vpp > 1 needs"

    return _misfit


def _whole_heads(job: TrainingJob) -> Misfit:
    found = [item for _, item in _language_model(job).body.named_modules() if isinstance(item, SelfAttention)]
    heads = sorted({count for item in found for count in (item.heads, item.kv_heads)})

    def _misfit(tp: int, pp: int, vpp: int, microbatches: int) -> str | None:
        odd = [count for count in heads if count % tp]
        return f"tp = {tp} does not divide {odd[0]} heads" if odd else None

    return _misfit


def _full_stages(job: TrainingJob) -> Misfit:
    layers = len(layer_parts(_language_model(job)))

    def _misfit(tp: int, pp: int, vpp: int, microbatches: int) -> str | None:
        return f"{pp * vpp} stages, and {layers} layers" if pp * vpp > layers else None

    return _misfit


def _without(key: str, name: str) -> Callable[[TrainingJob], Misfit]:
    """Nothing runs where a setting of ``Training`` is given that the framework has no option for."""

    def _rule(job: TrainingJob) -> Misfit:
        said = None if getattr(job.training, key) is None else f"{name} has no option like training.{key}"
        return lambda tp, pp, vpp, microbatches: said

    return _rule


RULES = (
    FrameworkRule(
        Framework.MEGATRON,
        "pp x vpp divides the layers of the language model, unless the run names its stages (`[parallel.layout]`)",
        "`get_num_layers_to_build`; `--decoder-first-pipeline-num-layers`, `--pipeline-model-parallel-layout`",
        _even_stages,
    ),
    FrameworkRule(
        Framework.MEGATRON,
        "with virtual stages, pp divides the microbatches",
        "`forward_backward_pipelining_with_interleaving`",
        _whole_turns,
    ),
    FrameworkRule(
        Framework.MEGATRON,
        "recomputation is none, selective, full, or of some layers; not of every n-th (`training.recompute_every`)",
        "`--recompute-granularity`, `--recompute-method`, `--recompute-num-layers`",
        _without("recompute_every", "Megatron-LM"),
    ),
    FrameworkRule(
        Framework.TORCHTITAN,
        "tp divides the query heads and the key-value heads",
        "`apply_tp`: `wq`, `wk` and `wv` are split by columns, whole heads each",
        _whole_heads,
    ),
    FrameworkRule(
        Framework.TORCHTITAN,
        "a stage has a whole layer or more",
        "`pipeline_llama`: stages are lists of whole modules",
        _full_stages,
    ),
    FrameworkRule(
        Framework.TORCHTITAN,
        "recomputation is none, selective, full, or of every n-th layer; not of the first few or in groups "
        "(`training.recompute_layers`)",
        "`activation_checkpoint.mode`, `activation_checkpoint.selective_ac_option`",
        _without("recompute_layers", "torchtitan"),
    ),
)
"""What the frameworks ask; semu's own rules (whole tensor-parallel heads, experts, sequences, batches) hold for all."""


def _language_model(job: TrainingJob) -> ModalityModule:
    """The backbone; where there is none, the module with the most parameters."""
    modules = job.model.modules
    backbones = [module for module in modules if module.role is ModalityRole.BACKBONE]
    return max(backbones or modules, key=lambda module: module.body.num_parameters())
