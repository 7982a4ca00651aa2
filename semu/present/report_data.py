"""``ReportData``: the results of a simulation, and the tables, samples and changes among them."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from semu.engine.timeline import IterationTimeline
from semu.present.estimate import MemoryFigures, RankMemoryKinds
from semu.present.uncertainty import Uncertainty, coverage
from semu.records import dataclass

SCHEMA_VERSION = 1
"""Version of ``result.json``; raised when a key changes its meaning."""


@dataclass(frozen=True)
class TopOperator:
    """Operators of one kind and phase, summed over the ranks of the slowest replica.

    Attributes:
        path: module path without layer numbers. kind, phase: as in the graph.
        time_s: total over all ranks and microbatches [s]. share: of all stage time, ranks weighted by their GPUs.
        calls: how often.
        bound: ``compute``, ``memory``, ``network`` or ``fixed``, whichever term is longest.
        provenance, source: of the coefficients.
    """

    path: str
    kind: str
    phase: str
    time_s: float
    share: float
    calls: int
    bound: str
    provenance: str
    source: str


@dataclass(frozen=True)
class LayerRow:
    """Equal layers behind one another, and what one of them takes alone, on the mean microbatch.

    Attributes:
        module: modality module. first, last: paths of the first and the last one. layers: how many they are.
        ranks: pipeline ranks that hold them. state: trained, partly trained, frozen or no parameters.
        forward_s, backward_s: [s]; the backward is 0 where nothing needs a gradient.
        recompute_s: what of the backward runs again [s], its operators one after another.
    """

    module: str
    first: str
    last: str
    layers: int
    ranks: tuple[int, ...]
    state: str
    forward_s: float
    backward_s: float
    recompute_s: float

    def to_json(self) -> dict[str, object]:
        """An entry of ``layer_times`` of ``simulate --json``."""
        return {**vars(self), "ranks": list(self.ranks)}


@dataclass(frozen=True)
class RankMemoryRow:
    """Memory of one pipeline rank [bytes].

    Attributes:
        rank: pipeline rank. chunks: what it holds, for people. parameters: local elements.
        static_bytes: parameters, gradients, optimizer state. peak_bytes: highest allocation over all replicas.
        peak_stage, peak_operator: where the peak is.
        activation_bytes: most that the layers have saved for their backward passes at once; blocks that start from
            data or end in a loss, and what kernels need for a moment, are left out (2205.05198 counts so).
        layer_parameters: local elements of those layers.
    """

    rank: int
    chunks: str
    parameters: int
    static_bytes: int
    peak_bytes: int
    peak_stage: str
    peak_operator: str
    activation_bytes: int = 0
    layer_parameters: int = 0


@dataclass(frozen=True)
class IterationSamples:
    """Iterations drawn with random stage latencies.

    Attributes:
        count: how many. jitter: relative standard deviation of each stage's latency. seed: of the draws.
        p50_s, p95_s: the smallest drawn iteration time that at least half, 95 %, of the samples do not exceed [s].
    """

    count: int
    jitter: float
    seed: int
    p50_s: float
    p95_s: float

    @classmethod
    def of(cls, times: NDArray[np.float64], jitter: float, seed: int) -> IterationSamples:
        """Quantiles of drawn iteration times: float64[count] [s]."""
        p50, p95 = (float(value) for value in np.quantile(times, (0.5, 0.95), method="inverted_cdf"))
        return cls(len(times), jitter, seed, p50, p95)

    def to_json(self) -> dict[str, object]:
        """As ``samples`` of ``simulate --json``."""
        return {
            "count": self.count,
            "jitter": self.jitter,
            "seed": self.seed,
            "iteration_time_s": {"p50": self.p50_s, "p95": self.p95_s},
        }


CONTENTION_SCOPE = (
    "transfers share the ports of their GPUs, out and in (a collective only the out), up to the optimizer step; "
    "switches, cables and the way from a GPU to its NIC are not shared, kernels are not slowed"
)
"""What contention is about here."""


@dataclass(frozen=True)
class ContentionSummary:
    """What transfers that share ports cost one another, on the replica that ends last (DESIGN §3.4).

    Attributes:
        transfers, slowed: transfers that could meet another one, inside stages and outside; those that took longer than
            alone.
        lost_s: how much longer they took, summed over pipeline ranks, by communicator [s].
        stages, touched_stages: of its pipeline; those inside which a transfer took longer than alone.
        iteration_time_alone_s: iteration time without contention [s].
    """

    transfers: int
    slowed: int
    lost_s: Mapping[str, float]
    stages: int
    touched_stages: int
    iteration_time_alone_s: float = 0.0

    def to_json(self) -> dict[str, object]:
        """As ``contention`` of ``simulate --json``."""
        return {**vars(self), "lost_s": dict(self.lost_s), "scope": CONTENTION_SCOPE}


def _as_toml(value: object) -> str:
    """A setting as ``--set`` has it: words without quotes, a list with them."""
    if isinstance(value, tuple):
        return "[" + ",".join(f'"{word}"' for word in value) + "]"
    return str(value).lower() if isinstance(value, bool) else str(value)


@dataclass(frozen=True)
class FittingChange:
    """A change of a job that does not fit in memory, after which it does.

    Attributes:
        settings: key of the run file -> new value. peak_memory_bytes: highest over all ranks, with the change.
        saved_bytes: by how much that is less than without. iteration_time_s: [s], with the change.
        added_time_s: how much longer the iteration lasts [s]; less than 0: it is faster.
    """

    settings: Mapping[str, object]
    peak_memory_bytes: int
    saved_bytes: int
    iteration_time_s: float
    added_time_s: float

    def label(self) -> str:
        """As ``--set`` has it, e.g. ``training.recompute=full``; the global batch stays and is left out."""
        return " ".join(
            f"{key}={_as_toml(value)}" for key, value in self.settings.items() if key != "training.global_batch"
        )

    def options(self) -> list[str]:
        """All settings as options of the command line, as a shell takes them."""
        words = (f"{key}={_as_toml(value)}" for key, value in self.settings.items())
        return [f"--set {shlex.quote(word)}" for word in words]

    def to_json(self) -> dict[str, object]:
        """An entry of ``nearest_fit`` of ``simulate --json``."""
        return {**vars(self), "settings": dict(self.settings)}


_ALWAYS = ("mfu_bf16", "reserved_memory_bytes")
"""Keys of ``result.json`` that are there without a value too."""

CONVENTION = (
    "model FLOP = matrix products and attention of the forward pass and of the gradients that training needs; "
    "causal attention counted half; recomputation counted in HFU only; against the dense peak of the job's precision"
)
"""What MFU and HFU mean here."""


@dataclass(frozen=True)
class ReportData(MemoryFigures):
    """All that a report says.

    Attributes:
        title: model, cluster and parallelism. iteration_time_s: [s]. makespan_s: end of the pipeline [s].
        mfu, hfu: against the dense peak of the job's precision; causal attention counted half (``convention``).
        mfu_full_attention: MFU with causal attention counted in full.
        mfu_bf16: under fp8, MFU against the bf16 peak; else None.
        bubble_ratio: of the slowest replica's pipeline.
        peak_memory_bytes, static_memory_bytes: per pipeline rank, highest over its ranks.
        capacity_bytes, other_memory_bytes, memory_margin_bytes: as in ``Estimate``. breakdown_s: see DESIGN §6.
        timeline: of the slowest replica.
        ranks, top_operators: tables. provenance: share of time by provenance of its coefficients.
        active_parameters: those that a token uses: without the experts that it is not routed to.
        job: resolved inputs. warnings: what a reader should know. samples: iterations with jitter, where asked for.
        reserve: finds ``reserved_memory_bytes``. nearest_fit: of a job that does not fit, changes after which it does,
            the fastest first; None: no changes were tried.
        host_memory_bytes: host memory of a GPU of each pipeline rank, where something is offloaded.
        contention: what sharing links cost, where it was simulated.
        find_uncertainty: finds ``uncertainty``. split_peak: finds what is allocated at a rank's peak, by kind.
        find_layer_times: finds ``layer_times``.
        reasons, advice: why the iteration is slow and what makes it faster, where that was looked for (``advise``).
        settings: of a run, by dotted key, ``value`` and ``source`` (``RunConfig.settings``); empty: a job in Python.
    """

    title: str
    iteration_time_s: float
    makespan_s: float
    mfu: float
    hfu: float
    mfu_full_attention: float
    mfu_bf16: float | None
    model_flop: float
    hardware_flop: float
    model_tflop_per_s_per_gpu: float
    tokens_per_s_per_gpu: float
    tokens: int
    bubble_ratio: float
    peak_memory_bytes: tuple[int, ...]
    static_memory_bytes: tuple[int, ...]
    capacity_bytes: int
    parameters: int
    breakdown_s: Mapping[str, object]
    ranks: tuple[RankMemoryRow, ...]
    top_operators: tuple[TopOperator, ...]
    provenance: Mapping[str, float]
    num_microbatches: int
    num_distinct_replicas: int
    slowest_replica: int
    job: Mapping[str, object]
    warnings: tuple[str, ...]
    timeline: IterationTimeline = field(repr=False)
    samples: IterationSamples | None = None
    active_parameters: int | None = None
    other_memory_bytes: int = 0
    memory_margin_bytes: int = 0
    reserve: Callable[[int], int] | None = field(default=None, repr=False, compare=False)
    nearest_fit: tuple[FittingChange, ...] | None = None
    host_memory_bytes: tuple[int, ...] | None = None
    contention: ContentionSummary | None = None
    find_uncertainty: Callable[[], Uncertainty] | None = field(default=None, repr=False, compare=False)
    reasons: tuple[str, ...] = ()
    advice: tuple[str, ...] = ()
    settings: Mapping[str, Mapping[str, object]] = field(default_factory=dict, repr=False, compare=False)
    split_peak: Callable[[int], tuple[int, ...]] | None = field(default=None, repr=False, compare=False)
    find_layer_times: Callable[[], tuple[LayerRow, ...]] | None = field(default=None, repr=False, compare=False)

    @cached_property
    def memory(self) -> tuple[RankMemoryKinds, ...]:
        """Every pipeline rank's memory at its peak by kind [bytes]; made when it is asked for."""
        found = map(self.memory_of, range(len(self.peak_memory_bytes)))
        return tuple(kinds for kinds in found if kinds is not None)

    def memory_of(self, rank: int) -> RankMemoryKinds | None:
        """A pipeline rank's memory at its peak by kind [bytes]; None: nothing says."""
        if self.split_peak is None:
            return None
        kinds, room = self.split_peak(rank), self.room
        around = room.other_bytes, room.margin_bytes, room.capacity_bytes
        return RankMemoryKinds(*kinds, self.held_by(rank) - sum(kinds), *around)  # type: ignore[call-arg]

    @cached_property
    def uncertainty(self) -> Uncertainty | None:
        """How far the errors of the coefficients move the iteration time; computed on first use."""
        return None if self.find_uncertainty is None else self.find_uncertainty()

    @cached_property
    def layer_times(self) -> tuple[LayerRow, ...]:
        """Forward, backward and recomputation of every layer; computed on first use."""
        return () if self.find_layer_times is None else self.find_layer_times()

    @property
    def num_gpus(self) -> int:
        """GPUs of the cluster; 1 where the job does not say."""
        cluster = self.job.get("cluster")
        sizes = cluster if isinstance(cluster, Mapping) else {}
        return int(sizes.get("nodes", 1)) * int(sizes.get("gpus_per_node", 1))

    @property
    def fullest_rank(self) -> int:
        """The pipeline rank whose device is fullest."""
        held = self.held_memory_bytes
        return held.index(max(held))

    @property
    def iteration_time_interval_s(self) -> tuple[float, float] | None:
        """Between what times the iteration lies with 90 % probability [s], as far as coefficients go."""
        return None if self.uncertainty is None else self.uncertainty.interval_s()

    @property
    def coverage(self) -> dict[str, float]:
        """Share of the computing and communicating time by provenance of its coefficients, none left out."""
        return coverage(self.provenance)

    @property
    def has_idle_parameters(self) -> bool:
        """Whether a token uses some of the parameters only."""
        return self.active_parameters not in (None, self.parameters)

    def to_json(self) -> dict[str, object]:
        """The document of ``simulate --json`` (DESIGN §6), also written to ``result.json``."""
        interval, uncertainty = self.iteration_time_interval_s, self.uncertainty
        reserved, host, contention = self.reserved_memory_bytes, self.host_memory_bytes, self.contention
        fits = None if self.nearest_fit is None else [change.to_json() for change in self.nearest_fit]
        document: dict[str, object] = {
            "schema_version": SCHEMA_VERSION,
            "title": self.title,
            "iteration_time_s": self.iteration_time_s,
            "iteration_time_interval_s": None if interval is None else list(interval),
            "makespan_s": self.makespan_s,
            "mfu": self.mfu,
            "hfu": self.hfu,
            "mfu_full_attention": self.mfu_full_attention,
            "mfu_bf16": self.mfu_bf16,
            "mfu_convention": CONVENTION,
            "model_flop": self.model_flop,
            "hardware_flop": self.hardware_flop,
            "model_tflop_per_s_per_gpu": self.model_tflop_per_s_per_gpu,
            "tokens_per_s_per_gpu": self.tokens_per_s_per_gpu,
            "tokens_per_iteration": self.tokens,
            "bubble_ratio": self.bubble_ratio,
            "peak_memory_bytes": list(self.peak_memory_bytes),
            "static_memory_bytes": list(self.static_memory_bytes),
            "reserved_memory_bytes": None if reserved is None else list(reserved),
            "host_memory_bytes": None if host is None else list(host),
            "capacity_bytes": self.capacity_bytes,
            "memory": [{"rank": rank, **kinds._asdict()} for rank, kinds in enumerate(self.memory)],
            "fits": self.fits,
            "parameters": self.parameters,
            "active_parameters": self.active_parameters if self.has_idle_parameters else None,
            "breakdown_s": dict(self.breakdown_s),
            "ranks": [vars(row).copy() for row in self.ranks],
            "layer_times": [row.to_json() for row in self.layer_times] or None,
            "top_operators": [vars(row).copy() for row in self.top_operators],
            "provenance": dict(self.provenance),
            "coverage": self.coverage,
            "uncertainty": None if uncertainty is None else uncertainty.to_json(),
            "num_microbatches": self.num_microbatches,
            "num_distinct_replicas": self.num_distinct_replicas,
            "slowest_replica": self.slowest_replica,
            "job": dict(self.job),
            "warnings": list(self.warnings),
            "contention": None if contention is None else contention.to_json(),
            "samples": None if self.samples is None else self.samples.to_json(),
            "nearest_fit": fits,
            "reasons": list(self.reasons) or None,
            "advice": list(self.advice) or None,
            "settings": {key: dict(entry) for key, entry in self.settings.items()} or None,
        }
        return {key: value for key, value in document.items() if value is not None or key in _ALWAYS}
