"""``what_if``: which hardware number, which overlap, which strategy would help most; many cheap simulations.

Every answer is a full evaluation of the changed job: its time is the one that ``semu.simulate`` finds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from semu.checks import check_number
from semu.errors import SemuError
from semu.frames import Tabular, scalars
from semu.hardware.kinds import DType
from semu.job import Recompute, TrainingJob
from semu.job.kinds import Precision
from semu.parallel.pipeline import PARTITIONS
from semu.present.estimate import Estimate
from semu.records import dataclass
from semu.schedule.registry import ALL_SCHEDULES
from semu.searcher.what_if.changes import Change, Factor
from semu.searcher.what_if.words import plain_key, plain_value
from semu.simulation.estimate import evaluate
from semu.units import GIB, fit_columns, fit_lines, format_time

if TYPE_CHECKING:
    from semu.present.page import Page

_LEAST_GAIN = 5e-5
"""Share of the time below which a change is not drawn."""
FACTOR = 2.0
"""By default hardware numbers are divided and multiplied by it."""


@dataclass(frozen=True)
class Answer:
    """What a change does.

    Attributes:
        change: to the job. before: what the job has there. estimate: of the changed job; None: it cannot run.
        reason: why it cannot run.
    """

    change: Change
    before: str
    estimate: Estimate | None
    reason: str = ""


@dataclass(frozen=True)
class WhatIf(Tabular):
    """Result of ``semu.what_if``.

    Attributes:
        title: of the job. base: the job as it is. answers: one per change, in the order asked.
        is_interrupted: Ctrl-C came before all were simulated; these are the answers so far.
    """

    title: str
    base: Estimate
    answers: tuple[Answer, ...]
    is_interrupted: bool = False

    def gain_of(self, answer: Answer) -> float | None:
        """How much shorter an iteration is, as a share of the job's time; negative: longer; None: cannot run."""
        if answer.estimate is None:
            return None
        return 1 - answer.estimate.iteration_time_s / self.base.iteration_time_s

    def ranked(self) -> list[tuple[str, list[Answer]]]:
        """Answers by what they change, what moves the time most first; those that cannot run are left out."""
        groups: dict[str, list[Answer]] = {}
        for answer in self.answers:
            if answer.estimate is not None:
                groups.setdefault(answer.change.key, []).append(answer)
        widest = {key: max(abs(self.gain_of(one) or 0.0) for one in own) for key, own in groups.items()}
        return sorted(groups.items(), key=lambda item: (-widest[item[0]], item[0]))

    def page(self) -> Page:
        """Gains as bars, and every answer, as one HTML file."""
        from semu.present.page import Column, Page
        from semu.searcher.pages import FIGURES, yes

        page = Page(f"What if: {self.title}", [f"an iteration takes {self.base.iteration_time_s:.4g} s as it is"])
        bars = [
            (f"{key}: {one.change.label}", -100 * gain, f"{-100 * gain:+.2f} % time")
            for key, own in self.ranked()
            for one in own
            if (gain := self.gain_of(one)) is not None and abs(gain) >= _LEAST_GAIN
        ]
        page.add_bars("What would help", bars, "green: less time than now")
        rows = [
            {**row, "fits": None if row.get("fits") is None else yes(fits=bool(row["fits"]))} for row in self.to_dicts()
        ]
        columns = (Column("change", "change"), Column("before", "now"), Column("gain", "gain [%]", 2, 0.01), *FIGURES)
        page.add_table("Answers", rows, (*columns, Column("refused", "cannot run because")))
        return page

    def to_dicts(self) -> list[dict[str, Any]]:
        """A record for each change, in the order asked; ``refused`` says why one cannot run."""
        return [
            {
                "change": str(one.change),
                "before": one.before,
                "gain": self.gain_of(one),
                **({} if one.estimate is None else scalars(_figures(one.estimate))),
                "peak_memory_bytes": None if one.estimate is None else max(one.estimate.peak_memory_bytes),
                "refused": one.reason or None,
            }
            for one in self.answers
        ]

    def to_json(self) -> dict[str, object]:
        """Everything: the figures of the job, and those of every answer."""
        return {
            "job": self.title,
            "base": _figures(self.base),
            "is_interrupted": self.is_interrupted,
            "answers": [
                {
                    "change": [{"key": key, "value": _plain(value)} for key, value in one.change.assignments],
                    "before": one.before,
                    "gain": self.gain_of(one),
                    **(_figures(one.estimate) if one.estimate is not None else {"refused": one.reason}),
                }
                for one in self.answers
            ],
        }

    def __repr__(self) -> str:
        rows = [("what", "now", "instead", "time", "less time", "peak GiB", "--set")]
        rows.append(("(as it is)", "", "", format_time(self.base.iteration_time_s), "", _peak(self.base), ""))
        for key, own in self.ranked():
            for answer in own:
                assert answer.estimate is not None
                time = format_time(answer.estimate.iteration_time_s)
                gain = f"{100 * (self.gain_of(answer) or 0.0):+.2f} %"
                figures = time, gain, _peak(answer.estimate)
                rows.append(
                    (plain_key(key), plain_value(key, answer.before), answer.change.label, *figures, str(answer.change))
                )
        lines = [self.title, *fit_columns(rows, (False, False, False, True, True, True, False))]
        if any(
            not one.fits for one in (self.base, *(one.estimate for one in self.answers if one.estimate is not None))
        ):
            lines.append("!: does not fit in memory")
        for one in self.answers:
            if one.estimate is None:
                lines.append(f"cannot run: {one.change}: {one.reason}")
        return fit_lines("\n".join(lines))


def what_if(
    job: TrainingJob,
    changes: Sequence[Change] | None = None,
    *,
    factor: float = FACTOR,
    title: str | None = None,
    progress: Callable[[str], None] | None = None,
) -> WhatIf:
    """Simulate a job under changes, one at a time.

    Args:
        job: as it is. changes: what to look at; None: ``default_changes(job, factor)``.
        factor: by which those divide and multiply hardware numbers, > 1. title: for people; None: model and cluster.
        progress: called with a line for every simulation.
    Returns:
        An answer per change. A change with which the job cannot run is answered with the reason. After Ctrl-C the
        answers that there are.
    Raises:
        ConfigError: a job that cannot run as it is; a change of something that there is not.
    """
    asked = default_changes(job, factor) if changes is None else tuple(changes)
    say = progress or (lambda _: None)
    say("simulating the job as it is")
    base = evaluate(job)
    answers: list[Answer] = []
    is_interrupted = False
    try:
        for number, change in enumerate(asked):
            before = change.before(job)
            say(f"simulating change {number + 1} of {len(asked)}: {change}")
            try:
                answers.append(Answer(change, before, evaluate(change.apply(job))))
            except SemuError as error:
                answers.append(Answer(change, before, None, str(error)))
    except KeyboardInterrupt:
        is_interrupted = True
    label = title if title is not None else f"{job.model.name} on {job.cluster.label()}, {job.parallel.label()}"
    return WhatIf(label, base, tuple(answers), is_interrupted)


def default_changes(job: TrainingJob, factor: float = FACTOR) -> tuple[Change, ...]:
    """The default questions: hardware, what may overlap, and other strategies.

    Args:
        factor: by which hardware numbers are divided and multiplied, > 1.
    Raises:
        ConfigError: another factor.
    """
    check_number(factor, "factor", "a factor", least=1, is_above=True, nearest=FACTOR)
    found = list(_hardware(job, float(factor)))
    tried = {name: family.fewest_slots for name, family in ALL_SCHEDULES.items() if family.is_tried}
    options: list[tuple[str, Sequence[object]]] = [
        ("overlap.grad_reduce", (True, False)),
        ("overlap.param_gather", (True, False)),
        ("overlap.tensor_parallel", (True, False)),
        ("overlap.pipeline", (True, False)),
        ("training.recompute", [one.value for one in Recompute]),
        ("training.attention", ("fused", "unfused")),
        ("training.grad_dtype", ("fp32", "bf16")),
        ("training.gradient_accumulation_fusion", (True, False)),
        ("parallel.sequence_parallel", (True, False)),
        ("parallel.zero", (0, 1, 2, 3)),
        ("parallel.partition", PARTITIONS),
        ("training.micro_batch", (Factor(0.5), Factor(2.0))),
        ("training.schedule", [name for name, slots in tried.items() if slots == 1]),
    ]
    for key, values in options:
        found += [Change(((key, value),)) for value in values if _is_other(job, key, value)]
    precisions = (Precision.BF16, Precision.FP8)
    have = job.cluster.profile.flop_per_s
    for one in precisions:
        if DType(one.value) in have and job.training.precision is not one:
            found.append(Change((("training.precision", one.value),)))
    if job.parallel.pp > 1 and job.parallel.vpp == 1 and job.training.schedule_file is None:
        found += [Change((("parallel.vpp", v), ("training.schedule", name))) for name, v in tried.items() if v > 1]
    return tuple(found)


def _hardware(job: TrainingJob, factor: float) -> Iterator[Change]:
    """The numbers of the profile that the job can feel."""
    dtype = job.training.precision.value
    peak = dtype if DType(dtype) in job.cluster.profile.flop_per_s else DType.BF16.value
    keys = [f"flop_per_s.{peak}", "mem_bytes_per_s", "nvlink_bytes_per_s", "nic_bytes_per_s"]
    keys += ["pcie_bytes_per_s"] if job.training.offload else []
    keys += [job.launch[0]] if job.launches else []
    for key in keys:
        for value in (1 / factor, factor):
            yield Change(((f"cluster.{key}", Factor(value)),))


def _is_other(job: TrainingJob, key: str, value: object) -> bool:
    """Whether a job does not have it already, and it could matter."""
    table, _, name = key.partition(".")
    parallel, training = job.parallel, job.training
    if key in ("training.schedule", "overlap.pipeline", "parallel.partition") and parallel.pp == 1:
        return False
    if key in ("overlap.tensor_parallel", "parallel.sequence_parallel") and parallel.tp == 1:
        return False
    if key.startswith(("overlap.grad", "overlap.param", "parallel.zero")) and parallel.data_ranks == 1:
        return False
    if key == "training.schedule" and (parallel.vpp > 1 or training.schedule_file is not None):
        return False
    if isinstance(value, Factor):
        return value.value > 1 or training.micro_batch > 1
    if key == "overlap.pipeline":
        return job.overlaps_sends is not value
    if key == "overlap.tensor_parallel":
        return job.overlaps_tensor_parallel is not value
    owner: object = {"parallel": parallel, "training": training, "overlap": training.overlap}[table]
    own = getattr(owner, name)
    return str(getattr(own, "value", own)) != str(value)


def _figures(estimate: Estimate) -> dict[str, object]:
    return {
        "iteration_time_s": estimate.iteration_time_s,
        "mfu": estimate.mfu,
        "bubble_ratio": estimate.bubble_ratio,
        "peak_memory_bytes": list(estimate.peak_memory_bytes),
        "fits": estimate.fits,
    }


def _plain(value: object) -> object:
    return str(value) if isinstance(value, Factor) else value


def _peak(estimate: Estimate) -> str:
    return f"{'' if estimate.fits else '! '}{max(estimate.peak_memory_bytes) / GIB:.2f}"
