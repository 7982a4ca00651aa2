"""``compare_schedules``: every schedule on plain numbers, each cut as it needs it; ``semu.compare_schedules`` does the
same for a job, with its real stages."""

from __future__ import annotations

from collections.abc import Iterable

from semu.checks import check_integer
from semu.errors import SemuError
from semu.records import dataclass
from semu.schedule.family import ScheduleFamily
from semu.schedule.registry import ALL_SCHEDULES, schedule_family
from semu.schedule.schedule import Schedule
from semu.schedule.study import PipelineStudy, StudyResult
from semu.units import fit_columns


@dataclass(frozen=True, eq=False)
class Compared:
    """A schedule on a pipeline of its own placement.

    Attributes:
        family: the generator. num_slots: chunks per rank. weight_copies: how often the model's weights are there.
        study, schedule, evaluation: the pipeline, the order, what comes of it.
    """

    family: ScheduleFamily
    num_slots: int
    weight_copies: int
    study: PipelineStudy
    schedule: Schedule
    evaluation: StudyResult


def compare_schedules(
    num_ranks: int,
    num_microbatches: int,
    *,
    names: Iterable[str] | None = None,
    num_slots: int = 2,
    forward_s: float = 1.0,
    input_s: float = 1.0,
    weight_s: float = 1.0,
    held_bytes: int = 1 << 20,
    transfer_s: float = 0.0,
) -> tuple[list[Compared], dict[str, str]]:
    """Evaluate schedules on a model whose layers are dealt evenly.

    Args:
        num_ranks, num_microbatches: of the pipeline.
        names: of schedules; by default all.
        num_slots: chunks per rank, where a schedule leaves it open; others take the fewest that they can.
        forward_s, input_s, weight_s: of one microbatch on one p-th of the model [s].
        held_bytes: activations of one microbatch on one p-th of the model [bytes].
        transfer_s: a result's way to the next rank [s].
    Returns:
        the schedules in the order of their names, and the rule that the others break, by name.
    Raises:
        ConfigError: an unknown name, a size or a cost that is none.
    """
    sizes = {"num_ranks": num_ranks, "num_microbatches": num_microbatches, "num_slots": num_slots}
    for where, size in sizes.items():
        check_integer(size, where, "a size")
    found: list[Compared] = []
    refused: dict[str, str] = {}
    for name in ALL_SCHEDULES if names is None else names:
        family = schedule_family(name)
        sizes_tried = (num_slots, 1, 2) if family.is_placed else (1,)
        fitting = (v for v in sizes_tried if family.misfit(num_ranks, num_microbatches, v) is None)
        v = next(fitting, None)
        if v is None:
            misfit = family.misfit(num_ranks, num_microbatches, num_slots)
            assert misfit is not None
            refused[name] = f"{misfit.rule}: expected {misfit.expected}, got {misfit.got}"
            continue
        shape = family.shape(num_ranks, num_microbatches, v)
        copies = max(shape.chunk_flow) + 1
        part = num_ranks * copies / shape.num_chunks
        study = PipelineStudy.of(
            shape,
            forward_s=forward_s * part,
            input_s=input_s * part,
            weight_s=weight_s * part,
            held_bytes=held_bytes * part,
            transfer_s=transfer_s,
        )
        try:
            schedule = family.on(study)
        except SemuError as error:
            refused[name] = str(error)
            continue
        found.append(Compared(family, v, copies, study, schedule, study.evaluate(schedule)))
    return found, refused


def comparison_table(compared: Iterable[Compared], held_bytes: int) -> str:
    """A row per schedule: slots, makespan, bubble, that without a common end (span), activations of a rank (mb held).

    Args:
        compared: of ``compare_schedules``. held_bytes: as there; activations are counted in such microbatches.
    """
    rows: list[tuple[str, ...]] = [("schedule", "v", "makespan", "bubble", "span", "mb held", "source")]
    for row in compared:
        found = row.evaluation
        peak = int(found.peak_bytes.max(initial=0)) / held_bytes
        shares = (f"{100 * share:.2f} %" for share in (found.bubble_ratio, found.span_bubble_ratio))
        times = f"{row.num_slots}", f"{found.makespan_s:.6g} s", *shares, f"{peak:.4g}"
        rows.append((found.name, *times, row.family.source))
    return "\n".join(fit_columns(rows, (False, *[True] * 5, False)))
