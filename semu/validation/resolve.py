"""Settings that a source does not publish: ``candidates`` and ``choose``.

The rule is the fastest that fits: whoever published a run had tuned it. It looks at few values, which anybody would
try: a micro batch of 1, 2, 4 or 8 sequences; 1 to 6 model chunks per pipeline rank, or one per layer; sharding none or
ZeRO-1, and FSDP where neither fits; recomputation none with fp32 gradients, none with 16-bit ones (as NeMo's recipes),
selective, full, or, where the row says of some layers and not of how many, 1, 2, 4, ... of each chunk; the first that
fits is the fastest. Under fp8, Megatron-LM can keep the inputs of gated activations in fp8, of which rows do not tell:
this is looked at where nothing fits without. Exchanges of experts' tokens hide behind another microbatch or do not,
where virtual stages let Megatron-LM of that date hide them and the row does not tell. A value that semu refuses is
passed over, and said so; where nothing fits, the one that needs the least memory is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import groupby

from semu.errors import ConfigError, ScheduleError
from semu.present.estimate import Estimate
from semu.records import dataclass
from semu.simulation import JobCheckpoint
from semu.simulation.results.lived import LivedIteration
from semu.validation.jobs import PARTIAL, Settings, divides, is_v_shaped, may_hide_exchanges
from semu.validation.row import Row

MICRO_BATCHES = (1, 2, 4, 8)
SAMPLE_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)
"""Of rows with ``run``, whose samples may be short."""
MOST_CHUNKS = 6
RECOMPUTES: tuple[tuple[str, str | None], ...] = (("none", None), ("none", "bf16"), ("selective", None), ("full", None))
"""Recomputation and type of the gradients, from what needs the most memory to what needs the least."""
UNKNOWN = "unknown"
"""What a row says for a recomputation or a sharding that is not published."""
SHARDINGS: tuple[str, ...] = ("none", "zero1", "fsdp")
LAST_RESORT = "fsdp"
"""The sharding that is looked at only where nothing else fits."""


@dataclass(frozen=True)
class Run:
    """A simulated row: the job before its schedule, and what came of it."""

    checkpoint: JobCheckpoint
    lived: LivedIteration

    @property
    def report(self) -> Estimate:
        """Time, memory and use of the devices."""
        return self.lived.head.estimate


@dataclass(frozen=True)
class Choice:
    """How a row was run.

    Attributes:
        settings: what was used. run: what came of it.
        resolved: those of the settings that the source does not tell, field of the row -> value.
        passed_over: candidates that semu refuses. tried: candidates that were simulated.
    """

    settings: Settings
    run: Run
    resolved: dict[str, object]
    passed_over: int
    tried: int


def open_settings(row: Row) -> tuple[str, ...]:
    """The fields of a row that its source does not tell."""
    told = {
        "micro_batch": row.micro_batch is not None,
        "vp": row.vp is not None or row.pp == 1,
        "recompute": row.recompute not in (UNKNOWN, PARTIAL),
        "sharding": row.sharding != UNKNOWN,
    }
    return tuple(name for name, is_told in told.items() if not is_told)


def candidates(row: Row) -> Iterator[Settings]:
    """What is looked at for a row, in order; one, where everything is published. Recomputation changes fastest."""
    for sharding in SHARDINGS if row.sharding == UNKNOWN else (None,):
        for settings in _of_sharding(row):
            yield replace(settings, sharding=sharding)


def _of_sharding(row: Row) -> Iterator[Settings]:
    for micro_batch in _micro_batches(row):
        for vp in _chunk_counts(row):
            if row.recompute == PARTIAL:
                chunk = -(-row.shape.layers // (row.pp * vp))
                yield from (Settings(micro_batch, vp, "full", layers=count) for count in _doubling(chunk))
                continue
            recomputes = RECOMPUTES if row.recompute == UNKNOWN else ((row.recompute, None),)
            for hides in (False, True) if may_hide_exchanges(row, vp) else (False,):
                for recompute, grad_dtype in recomputes:
                    yield Settings(micro_batch, vp, recompute, grad_dtype, hides_exchanges=hides)
                if row.precision == "fp8" and row.shape.gated_mlp and row.software == "megatron":
                    recompute, grad_dtype = recomputes[-1]
                    yield Settings(micro_batch, vp, recompute, grad_dtype, fp8_gates=True, hides_exchanges=hides)


def _doubling(most: int) -> list[int]:
    """1, 2, 4, ... and ``most``."""
    return [*(1 << power for power in range((most - 1).bit_length())), most]


def choose(row: Row, simulate: Callable[[Settings], Run]) -> Choice:
    """Run a row under each candidate and keep the fastest that fits; of equally fast ones, the first.

    Args:
        row: the run. simulate: simulates it under some settings.
    Raises:
        ConfigError, ScheduleError: semu refuses every candidate; the first one's error.
    """
    best: tuple[tuple[bool, int, float], Settings, Run] | None = None
    refusals: list[ConfigError | ScheduleError] = []
    tried = 0
    for (sharding, *_), family in groupby(candidates(row), key=_apart_from_memory):
        if sharding == LAST_RESORT and best is not None and best[2].report.fits and best[1].sharding != sharding:
            break
        for settings in family:
            try:
                run = simulate(settings)
            except (ConfigError, ScheduleError) as error:
                refusals.append(error)
                continue
            tried += 1
            rank = _rank(run.report)
            if best is None or rank < best[0]:
                best = rank, settings, run
            if run.report.fits:
                break
    if best is None:
        raise refusals[0]
    _, settings, run = best
    resolved: dict[str, object] = {name: getattr(settings, name) for name in open_settings(row)}
    if settings.grad_dtype is not None:
        resolved["grad_dtype"] = settings.grad_dtype
    if settings.fp8_gates:
        resolved["fp8_gates"] = True
    if settings.hides_exchanges:
        resolved["overlap.moe_a2a"] = True
    if settings.layers is not None:
        resolved["recompute_layers"] = settings.layers
    return Choice(settings, run, resolved, len(refusals), tried)


def _apart_from_memory(settings: Settings) -> tuple[str | None, int, int, bool]:
    """What candidates share of which the first that fits is the fastest."""
    return settings.sharding, settings.micro_batch, settings.vp, settings.hides_exchanges


def _rank(report: Estimate) -> tuple[bool, int, float]:
    """Less is better: what fits by its time, then what does not by its memory and, of equal memory, by its time."""
    excess = 0 if report.fits else max(report.peak_memory_bytes)
    return not report.fits, excess, report.iteration_time_s


def _micro_batches(row: Row) -> tuple[int, ...]:
    if row.micro_batch is not None:
        return (row.micro_batch,)
    sizes = MICRO_BATCHES if row.run is None else SAMPLE_BATCHES
    return tuple(size for size in sizes if row.global_batch % (row.dp * size) == 0)


def _chunk_counts(row: Row) -> tuple[int, ...]:
    """Chunks per rank: those among which the layers can be shared out, where there are any; several where the row says
    interleaved."""
    if is_v_shaped(row):
        return (2,)
    if row.vp is not None or row.pp == 1:
        return (row.vp or 1,)
    most = -(-row.shape.layers // row.pp)
    counts = [*range(2 if row.schedule == "interleaved" else 1, min(MOST_CHUNKS, most) + 1)]
    if most > MOST_CHUNKS:
        counts.append(most)
    if row.layout is not None:
        return tuple(counts)
    legal = tuple(count for count in counts if divides(row.shape.layers, row.pp * count))
    return legal or tuple(counts)
