"""FlexPipe's GPT models, and the fastest configuration of every system on them (§7.1)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import semu
from benchmarks.paper.choices import Choices
from semu.errors import ConfigError, MemoryLimitError, ScheduleError, SemuError
from semu.job import Recompute, TrainingJob
from semu.nn import Model
from semu.schedule import Schedule
from semu.searcher.tessel.baselines import tessel
from semu.simulation import prepare
from semu_models.text.decoder import decoder_model
from semu_models.text.gpt import GPT, GPTConfig

K = 1000
"""The totals of Table 3 come out with 1000, not with 1024."""
VOCABULARIES = {
    "5B": (64 * K, 128 * K, 256 * K, 512 * K, 1000 * K),
    "16.1B": (256 * K, 512 * K, 1000 * K, 1100 * K, 1200 * K),
}
"""Table 3."""
SIZES = {"5B": (64, 2560, 64, 512), "16.1B": (80, 4096, 32, 1024)}
"""Layers, width, heads, sequence length: Table 3, whose rows "Attention Heads" and "Hidden Size" are swapped."""
SYSTEMS = ("megatron", "t-1f1b", "tessel", "flexpipe")
FOUND = (
    ("1f1b", 1, "circular"),
    ("eager-1f1b", 1, "circular"),
    ("zb-h1", 1, "circular"),
    ("zb-h2", 1, "circular"),
    ("interleaved", 2, "circular"),
    ("interleaved-zb", 2, "circular"),
    ("zb-v", 2, "v-shape"),
    ("v-half", 2, "v-shape"),
)
"""What FlexPipe's rules make on the placements of Table 2: schedules by the names that they have in semu, with their
virtual stages and placement; gradients apart where its separation would have them."""


def gpt(size: str, vocab: int) -> Model:
    """A model of Table 3, untied."""
    layers, width, heads, length = SIZES[size]
    return decoder_model(f"gpt-{size}", GPT(GPTConfig(layers, width, heads, vocab, positions=length, tied=False)))


@dataclass(frozen=True)
class Best:
    """The fastest configuration of a system.

    Attributes:
        time_s: of an iteration [s]. job: what it runs. schedule: its name. order: a searched one.
    """

    time_s: float
    job: TrainingJob
    schedule: str
    order: Schedule | None = None

    def __str__(self) -> str:
        training = self.job.training
        again = "" if training.recompute is Recompute.NONE else f", recompute {training.recompute.value}"
        return f"{self.job.parallel.label()}, microbatches of {training.micro_batch}, {self.schedule}{again}"

    def time_on(self, gpus: int) -> float | None:
        """Seconds of an iteration with as many replicas more, each with its microbatches, as there are GPUs more;
        None: it no longer fits."""
        job = self.job
        replicas = job.parallel.dp * gpus // job.parallel.num_gpus
        batch = job.training.global_batch * gpus // job.parallel.num_gpus
        scaled = replace(
            job,
            cluster=_cluster(gpus),
            parallel=replace(job.parallel, dp=replicas),
            training=replace(job.training, global_batch=batch),
        )
        estimate = prepare(scaled).estimate(self.order)
        return estimate.iteration_time_s if estimate.fits else None


@dataclass(frozen=True)
class Search:
    """What the candidates of a system were.

    Attributes:
        best: the fastest; None: nothing fits, even recomputed. num_timed: candidates that fit.
        skipped: why others were not timed, as the error says it, and how many.
    """

    best: Best | None
    num_timed: int
    skipped: Counter[str]


def search(system: str, size: str, vocab: int, gpus: int, choices: Choices, *, quick: bool = False) -> Search:
    """The fastest of a system over (pp, dp, micro batch), powers of two, recomputed only where nothing fits otherwise.

    Args:
        system: of ``SYSTEMS``. size, vocab: of the model. gpus: 8 to a node.
    """
    model, skipped = gpt(size, vocab), Counter[str]()
    for recompute in ("none", "full"):
        found: list[Best] = []
        for job in _jobs(model, size, gpus, system, choices, recompute, skipped, quick=quick):
            found += _timed(job, system, choices, skipped)
        if found:
            return Search(min(found, key=lambda one: one.time_s), len(found), skipped)
    return Search(None, 0, skipped)


def _cluster(gpus: int) -> semu.Cluster:
    return semu.Cluster("a800", max(gpus // 8, 1), min(gpus, 8))


def _jobs(
    model: Model,
    size: str,
    gpus: int,
    system: str,
    choices: Choices,
    recompute: str,
    skipped: Counter[str],
    *,
    quick: bool,
) -> Iterator[TrainingJob]:
    cluster = _cluster(gpus)
    most = min(choices.flexpipe_most_ranks.value, gpus)
    for pp in (4,) if quick else [2**n for n in range(1, 6) if 2**n <= most]:
        if system == "tessel" and pp > choices.tessel_most_ranks.value:
            continue
        for micro in (1,) if quick else choices.flexpipe_micro_batches.value:
            dp = gpus // pp
            if 128 % (dp * micro) or 128 // (dp * micro) < pp:
                skipped["fewer microbatches than pipeline ranks"] += 1
                continue
            zero, order = choices.flexpipe_zero.value, choices.flexpipe_rank_order.value
            parallel = semu.Parallel(dp=dp, pp=pp, partition="layers", zero=zero, rank_order=order)
            options = {"global_batch": 128, "micro_batch": micro, "seq_len": SIZES[size][3], "recompute": recompute}
            yield TrainingJob(model, cluster, parallel, semu.Training(**options))  # type: ignore[arg-type]


def _timed(job: TrainingJob, system: str, choices: Choices, skipped: Counter[str]) -> Iterator[Best]:
    """What a system makes of a job, where it fits."""
    for name, variant in variants(job, system, skipped):
        try:
            if system == "tessel":
                found = tessel(variant, time_s=choices.tessel_seconds.value)
                estimate, one = found.evaluate(), Best(0.0, found.job, found.name, found.order)
            else:
                estimate, one = prepare(variant).estimate(), Best(0.0, variant, name)
        except (ConfigError, ScheduleError, MemoryLimitError) as error:
            skipped[reason(error)] += 1
            continue
        if estimate.fits:
            yield replace(one, time_s=estimate.iteration_time_s)
        else:
            skipped["does not fit in memory"] += 1


def variants(job: TrainingJob, system: str, skipped: Counter[str]) -> Sequence[tuple[str, TrainingJob]]:
    """(schedule, job) of what a system tries on a cut. ``skipped``: counts what cannot be."""
    if system in ("megatron", "tessel"):
        return [("1f1b", job)]
    found = []
    for name, vpp, placement in FOUND[:1] if system == "t-1f1b" else FOUND:
        try:
            parallel = replace(job.parallel, vpp=vpp, placement=placement, vocabulary="pipeline")
            training = replace(job.training, schedule=name)
            found.append((name, replace(job, parallel=parallel, training=training)))
        except (ConfigError, ScheduleError) as error:
            skipped[reason(error)] += 1
    return found


def reason(error: SemuError) -> str:
    """The words of an error, without the numbers in which candidates differ."""
    words = re.sub(r"\d[\d,.]*( [KMG]iB)?", "N", " ".join(error.message.split()))
    return f"{words} (expected {error.expected})" if error.expected and not re.search(r"\d", error.expected) else words


def skipped_text(skipped: Counter[str]) -> str:
    """How many were skipped, by reason, the most frequent first."""
    return "; ".join(f"{count} x {words}" for words, count in skipped.most_common()) or "none"
