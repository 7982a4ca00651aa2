"""``unsaid_of``: what another program's file cannot say of a run, found by reading the file back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields
from enum import Enum

from semu.errors import SemuError
from semu.exports.transformer_sizes import differences
from semu.imports.kinds import ReadOptions, program_of
from semu.job import Optimizer, Precision, Recompute, TrainingJob, Workspaces
from semu.parallel.context import Balance, idle_settings
from semu.runfile.config import RunConfig
from semu.runfile.places import Places
from semu.runfile.resolve import resolve_tables

_ALIKE = frozenset({"left_out", "software_date"})
"""Settings that say how sure a prediction is, or when."""
_CUT = ("partition", "layout", "placement")
"""Settings that say how a model is cut into stages, which is compared by the cut."""

_EFFECTIVE = {"pipeline": ("overlaps_sends", "pp"), "tensor_parallel": ("overlaps_tensor_parallel", "tp")}
"""Settings of ``[overlap]`` that may be left to a rule -> property of the job that says how it came out, and the axis
without which nothing is sent."""


def unsaid_of(run: RunConfig, text: str, name: str) -> tuple[str, ...]:
    """What differs between a run's job and the job of a file that was made of it, a sentence each.

    Args:
        run: what was exported. text: the file. name: what such a file is called, which tells the program.
    """
    cluster = run.config["cluster"]
    asked = f"{cluster['device']}:{cluster['nodes']}x{cluster['gpus_per_node']}"
    program = program_of(name, text)
    assert program is not None, "a program's export is a file of it"
    try:
        tables = program.read(text, name, ReadOptions(asked, allow_unmodelled=True)).tables
        tables["cluster"] |= {key: value for key, value in cluster.items() if key not in tables["cluster"]}
        other = resolve_tables(tables, Places(name)).job()
    except SemuError as error:
        return (f"read back, the file is refused: {error}",)
    return tuple(_different(run.job(), other))


def _different(ours: TrainingJob, theirs: TrainingJob) -> Iterator[str]:
    if (where := differences(ours.model, theirs.model)) is not None:
        yield f"model: {where} differs"
    if type(ours.batch) is not type(theirs.batch):
        yield f"batch: {type(ours.batch).__name__} here, {type(theirs.batch).__name__} there"
    for table, one, other in (
        ("parallel", ours.parallel, theirs.parallel),
        ("training", ours.training, theirs.training),
        ("overlap", ours.training.overlap, theirs.training.overlap),
    ):
        for item in fields(one):
            here, there = getattr(one, item.name), getattr(other, item.name)
            if (
                here != there
                and item.name not in (*_ALIKE, *_CUT, *_EFFECTIVE)
                and not _is_idle(ours, f"{table}.{item.name}")
            ):
                yield f"{table}.{item.name}: {_shown(here)} here, {_shown(there)} there"

    for name, (prop, axis) in _EFFECTIVE.items():
        here, there = getattr(ours, prop), getattr(theirs, prop)
        if here != there and getattr(ours.parallel, axis) > 1:
            yield f"overlap.{name}: {_shown(here)} here, {_shown(there)} there"
    if any(getattr(ours.parallel, name) != getattr(theirs.parallel, name) for name in _CUT) and ours.parallel.pp > 1:
        here, there = _cut(ours), _cut(theirs)
        if here != there:
            yield f"parallel.partition: stages of {here} blocks here, {there} there"


def _cut(job: TrainingJob) -> list[int]:
    """Blocks of every stage."""
    from semu.simulation.preparation import prepare

    return [len(chunk.blocks) for chunk in prepare(job).layout.chunks]


def _is_idle(job: TrainingJob, key: str) -> bool:
    """Whether a setting has no bearing on a job, or is compared elsewhere."""
    parallel, training = job.parallel, job.training
    is_whole = training.recompute is Recompute.FULL and training.recompute_method is None
    idle = {
        "training.recompute_method": is_whole,  # every layer alone, which is uniform with one layer
        "training.recompute_layers": is_whole,
        "training.overlap": True,  # its fields are compared
        "training.workspaces": training.workspaces is Workspaces.NONE,  # the run does not say which libraries it has
        **{f"parallel.{name}": True for name in idle_settings(parallel.cp, Balance(parallel.cp_balance))},
        "parallel.sequence_parallel": parallel.tp == 1,
        "training.gathered_inputs": parallel.tp == 1,
        "training.fp8_recipe": training.precision is not Precision.FP8,
        "overlap.param_gather": training.optimizer is Optimizer.MUON,
        "overlap.expert_parallel": bool(job.exposed_exchanges),
        "overlap.delayed_weight_gradients": bool(job.exposed_exchanges),
    }
    return idle.get(key, False)


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, Mapping):
        return str(dict(value))
    return "nothing" if value is None else str(value)
