"""Jobs, baselines and searches under the choices: what every script starts from, so that all of them mean the same."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import semu
from benchmarks.paper.choices import Choices
from semu.baselines import Baseline, find_baseline, megatron
from semu.baselines.nn_scaler import nnscaler
from semu.errors import SemuError
from semu.hardware.data_sheets import SPEC, data_sheet
from semu.hardware.kinds import DType
from semu.parallel.stage_layers import layer_parts
from semu.runfile import load_run
from semu.searcher.job_search import search
from semu.searcher.report import SearchReport
from semu.workload.batch import AbstractBatch
from semu.workload.vlm import TOKENS_PER_IMAGE
from semu_models.multimodal.vlm import VLM_7B, VLM_L, VLM_M, VLM_S, VLM_XL, make_vlm

FIXED_BATCH = ("lm-7b", "vlm-7b")
"""Setups whose number of sequences a paper's FLOP decide (DIP Table 1)."""
PLANNING_SEED = 1_000_000
"""Of the workload that static plans are made on; no iteration has it."""
FEWEST = "fewest"
"""The choice of recomputation that takes as few layers as fit."""


def seeds_of(choices: Choices, count: int) -> range:
    """Seeds of the iterations, the same for every system."""
    return range(choices.first_seed.value, choices.first_seed.value + count)


def batch_of(job: semu.TrainingJob, choices: Choices, seed: int) -> AbstractBatch:
    """The data of an iteration: of the kind that the job reads, shaped by the choices."""
    kind = job.batch.describe()["kind"]
    if kind == "vlm":
        return semu.workload.vlm_batch(
            seed,
            choices.text_per_image.value,
            choices.images_mean.value,
            choices.images_max.value,
            choices.attend_across_samples.value,
            TOKENS_PER_IMAGE * choices.merge.value**2,
        )
    if kind == "t2v":
        return semu.workload.t2v_batch(seed, choices.resolution.value)
    return job.batch


def job_of(setup: str, choices: Choices, *, seed: int | None = None, cluster: str | None = None) -> semu.TrainingJob:
    """A setup under the choices.

    Args:
        setup: of ``semu list setups``. seed: of its batch; None: the first. cluster: in place of its own, ``h20:2x8``.
    """
    return on_batch(_base(setup, choices, cluster), choices, choices.first_seed.value if seed is None else seed)


def on_batch(job: semu.TrainingJob, choices: Choices, seed: int) -> semu.TrainingJob:
    """The same job, cut as it is, on another iteration's data."""
    return replace(job, batch=batch_of(job, choices, seed))


@lru_cache(maxsize=64)
def _base(setup: str, choices: Choices, cluster: str | None) -> semu.TrainingJob:
    job = load_run(setup, cluster=cluster) if cluster is not None else load_run(setup)
    if choices.coefficients.value == SPEC:
        job = replace(job, cluster=replace(job.cluster, device=data_sheet(job.profile), override={}))
    if setup in VLMS and choices.merge.value != VLMS[setup].vision.merge:
        job = replace(job, model=coarser(setup, choices.merge.value))
    if setup not in FIXED_BATCH:
        size = job.parallel.dp * job.training.micro_batch * choices.microbatches.value
        job = replace(job, training=replace(job.training, global_batch=size))
    return job


VLMS = {
    "vlm-7b": VLM_7B,
    "vlm-s": VLM_S,
    "vlm-m": VLM_M,
    "vlm-l": VLM_L,
    "vlm-xl-8k": VLM_XL,
    "vlm-xl-16k": VLM_XL,
}


def coarser(setup: str, merge: int) -> semu.nn.Model:
    """A setup's vision-language model with larger patches, of which fewer become one of the 169 tokens.

    Args:
        merge: patches of a token on each side.
    """
    config = VLMS[setup]
    before = config.vision
    vision = replace(before, patch_size=before.patch_size * before.merge // merge, merge=merge)
    return make_vlm(setup, replace(config, vision=vision))


def baseline(
    name: str,
    job: semu.TrainingJob,
    choices: Choices,
    *,
    recompute: str | None = None,
    workload: Sequence[AbstractBatch] | None = None,
) -> Baseline:
    """What a baseline would run, under the choices; static plans are made on a workload that no iteration has.

    Args:
        name: of ``semu.baselines.BASELINES``. job: of ``job_of``. recompute: in place of the choice.
        workload: batches of the run, of which nnScaler* plans on the first, and in which recomputation must fit; None:
            ``planning_batches``.
    """
    if workload is None:
        workload = planning_batches(job, choices)
    if name == "nnscaler":
        return nnscaler(job, workload[0])
    how = choices.recompute.value if recompute is None else recompute
    vpp = choices.vpp.value if job.parallel.pp > 1 else 1

    def made(**training: Any) -> Baseline:
        own = replace(job, training=replace(job.training, **training))
        return megatron(own, vpp=vpp) if name == "megatron" else find_baseline(name)(own)

    if how == FEWEST:
        return _fewest(job, workload, made)
    return made() if how == job.training.recompute.value else made(recompute=how)


FITTING_SEEDS = 8
"""Batches on which a choice of recomputed layers must fit."""


def planning_batches(job: semu.TrainingJob, choices: Choices) -> list[AbstractBatch]:
    """Batches like those of the run, none of which it has."""
    return [batch_of(job, choices, PLANNING_SEED + number) for number in range(FITTING_SEEDS)]


def _fewest(job: semu.TrainingJob, workload: Sequence[AbstractBatch], made: Any) -> Baseline:
    """With as few recomputed layers per chunk as fit on all batches of a workload."""

    def fits(found: Baseline) -> bool:
        return all(semu.evaluate(replace(found.job, batch=batch)).fits for batch in workload)

    best: Baseline = made(recompute="full")
    none: Baseline = made(recompute="none")
    if fits(none):
        return none
    low, high = 1, max(len(layer_parts(module)) for module in job.model.modules)
    while low < high:
        middle = (low + high) // 2
        try:
            found: Baseline = made(recompute="full", recompute_layers=middle)
            is_enough = fits(found)
        except SemuError:  # no chunk has so many layers
            high = middle
            continue
        if is_enough:
            best, high = found, middle
        else:
            low = middle + 1
    return best


@dataclass(frozen=True)
class Run:
    """An iteration of a system.

    Attributes:
        seed: of its batch. time_s: [s]. fits: in the device's memory. mfu: model FLOP utilisation.
    """

    seed: int
    time_s: float
    fits: bool
    mfu: float


def baseline_runs(found: Baseline, choices: Choices, seeds: Sequence[int]) -> Iterator[Run]:
    """A baseline, planned once, on many iterations."""
    for seed in seeds:
        estimate = semu.evaluate(on_batch(found.job, choices, seed))
        yield Run(seed, estimate.iteration_time_s, estimate.fits, estimate.mfu)


def model_flop(job: semu.TrainingJob) -> float:
    """Model FLOP of an iteration, as its MFU counts them."""
    estimate = semu.evaluate(job)
    rate = job.profile.peak_flop_per_s(DType.BF16) * job.parallel.num_gpus
    return estimate.mfu * estimate.iteration_time_s * rate


def search_options(job: semu.TrainingJob, choices: Choices) -> dict[str, Any]:
    """What the choices say of ``semu.search`` and of ``job_problem``'s partition."""
    sub_batch = choices.sub_batch.value
    names = [module.name for module in job.model.modules]
    return {
        "sub_batch": {"vit": sub_batch} if sub_batch is not None and "vit" in names else None,
        "segments": dict.fromkeys(names, choices.segments.value) if choices.segments.value is not None else None,
    }


def searched(job: semu.TrainingJob, choices: Choices, **options: Any) -> SearchReport:
    """DIP's schedule for a job's batch: ``semu.search`` under the choices.

    Args:
        job: of ``job_of``. options: of ``semu.search``, in place of the choices'.
    """
    said: dict[str, Any] = {
        "rollouts": choices.rollouts.value,
        "seed": choices.search_seed.value,
        "workers": choices.workers.value,
        **search_options(job, choices),
    }
    return search(job, **{**said, **options})
