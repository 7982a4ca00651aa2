"""``structural_kinds``: errors of an iteration time that no coefficient stands for.

Coefficients are as good as their fit, which says nothing about a kind of run that semu has never been compared on, or
on which it is known to be far off for reasons unknown. ``CAUSES`` lists such kinds by what a job is (its software,
layers and network), each with the relative standard deviation that it adds to the whole time, independent of the
coefficients' and of the other causes'. A spread is the root mean square, over the groups of runs of that kind, of what
coefficients do not explain; ``calibration.structural_spreads`` prints it, and what the interval holds of a group when
its spread comes from the other groups.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from semu.hardware.capabilities import OVERRIDE_SOURCE
from semu.hardware.software import Software
from semu.job import TrainingJob
from semu.job.left_out import spreads_of
from semu.nn.layers.lora import has_lora
from semu.nn.layers.moe import Experts
from semu.nn.model import ModalityRole
from semu.present.uncertainty import LEFT_OUT, STRUCTURE, UncertainKind
from semu.records import dataclass


@dataclass(frozen=True)
class Cause:
    """A kind of run that semu predicts worse than its coefficients say.

    Attributes:
        name: ``structure.NAME`` in the interval.
        spread: relative standard deviation of the iteration time.
        holds: whether a job is of this kind.
        source: where the spread comes from, in words.
    """

    name: str
    spread: float
    holds: Callable[[TrainingJob], bool]
    source: str


def _is_eager_pipeline(job: TrainingJob) -> bool:
    return job.training.is_eager and job.parallel.pp > 1 and job.cluster.nodes > 1


def _reads_more_than_text(job: TrainingJob) -> bool:
    """Whether a module reads anything but text, or is no backbone."""
    return any(
        module.role is not ModalityRole.BACKBONE or any(item.stream != "text" for item in module.inputs)
        for module in job.model.modules
    )


def _has_modality(job: TrainingJob) -> bool:
    return job.training.software.kernels is not Software.TORCH and _reads_more_than_text(job)


def _has_modality_under_torch(job: TrainingJob) -> bool:
    return job.training.software.kernels is Software.TORCH and _reads_more_than_text(job)


def _feeds_modules(job: TrainingJob) -> bool:
    """Whether a module reads data and, beside it, what other modules made: VLMs, video models, LLMs that hear."""
    is_fed = any(module.sources and module.inputs for module in job.model.modules)
    return is_fed and job.training.software.kernels is not Software.TORCH


def _has_context_under_torch(job: TrainingJob) -> bool:
    """Whether context ranks are PyTorch's. Megatron-LM's were, in runs of LoRA and of 405 billion parameters."""
    return job.training.software.kernels is Software.TORCH and job.parallel.cp > 1


def _has_adapters(job: TrainingJob) -> bool:
    return has_lora(job.model)


def _has_experts(job: TrainingJob) -> bool:
    return any(isinstance(item, Experts) for module in job.model.modules for item in module.body.modules())


def _has_own_network(job: TrainingJob) -> bool:
    """Whether the job crosses nodes at a bandwidth that is not that of the profile's measurements."""
    has_own_cards = job.profile.nic_bytes_per_s.source == OVERRIDE_SOURCE or job.cluster.oversubscription > 1
    return job.cluster.nodes > 1 and has_own_cards


def _has_fabric(job: TrainingJob) -> bool:
    """Whether the job crosses nodes over a network other than the profile's measurements (``cluster.fabric``)."""
    return job.cluster.nodes > 1 and job.cluster.fabric is not None


CAUSES = (
    Cause("eager_pipeline", 0.46, _is_eager_pipeline, "21 runs of an eager framework over nodes"),
    Cause("modality_torch", 0.44, _has_modality_under_torch, "10 runs: a U-Net and a video transformer"),
    Cause("experts", 0.19, _has_experts, "21 runs on H100, H800, B200, GB200"),
    Cause("modality", 0.04, _has_modality, "12 runs: a U-Net, CLIP, ViT"),
    Cause("family", 0.23, _feeds_modules, "9 families of models, each left out: nothing like this one was compared"),
    Cause("context", 0.23, _has_context_under_torch, "context ranks under PyTorch: none was compared; as of a family"),
    Cause("adapters", 0.0, _has_adapters, "7 runs of LoRA on a model of 70 billion parameters: nothing is left"),
    Cause("fabric", 0.06, _has_fabric, "21 runs of an eager framework over AWS's Elastic Fabric Adapter"),
    Cause("network", 0.0, _has_own_network, "41 runs on A100: nothing is left"),
)
"""Spreads by ``calibration.structural_spreads`` over the published runs; they hold whatever the device is. A
run of several kinds counts there for the first."""


def structural_kinds(job: TrainingJob, time_s: float) -> Iterator[UncertainKind]:
    """What the structure of a job, and what is left out of it, add to the spread of its iteration time.

    Args:
        time_s: of the iteration, without what lies outside the model [s].
    """
    for cause in CAUSES:
        if cause.spread and cause.holds(job):
            yield UncertainKind(f"{STRUCTURE}.{cause.name}", time_s, cause.spread)
    for name, spread in spreads_of(job.training.left_out).items():
        yield UncertainKind(f"{LEFT_OUT}.{name}", time_s, spread)
