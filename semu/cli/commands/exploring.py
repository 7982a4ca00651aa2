"""``semu schedules --explore``, ``--explain``, ``--rule-of``: schedules by rule."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from semu.cli.console import Progress, emit, emit_json, printed_anyway, say, say_written
from semu.errors import ConfigError, MemoryLimitError, ScheduleError
from semu.files import make_folder, read_toml, write_text

if TYPE_CHECKING:
    from semu.costs.result_cache import ResultCache
    from semu.job import TrainingJob
    from semu.schedule.exploration.changes import Explanation
    from semu.simulation.schedules.comparison import ComparedSchedule
    from semu.simulation.schedules.exploring import Exploration


def explore_run(
    arguments: argparse.Namespace, job: TrainingJob, cache: ResultCache | None, progress: Progress, notes: list[str]
) -> int:
    """Explore a run's schedules; returns the exit code."""
    from semu.simulation.schedules.exploring import explore_schedules

    found = explore_schedules(job, top=arguments.top, split=arguments.split, progress=progress, cache=cache)
    found = replace(found, comparison=replace(found.comparison, warnings=tuple(notes)))
    lines = [repr(found), *_megatron_lines(found.best)]
    told = None
    if arguments.explain and found.best is not None:
        told = explained(found.best, cache)
        lines += ["", f"why {found.best.name} idles, on its stages' mean times:", *told.lines()]
    if arguments.out is not None:
        with printed_anyway(lambda: "\n".join(lines), is_json=arguments.json):
            say_written(*save(found, arguments.out))
    if arguments.json:
        emit_json({"run": arguments.run, **found.to_json(), **({"explained": [*told.lines()]} if told else {})})
    else:
        emit("\n".join(lines))
    return 0 if found.best is not None else MemoryLimitError.exit_code


def save(found: Exploration, directory: str) -> Iterator[Path]:
    """Write ``result.json``; ``torch.csv``, the fastest schedule that torch.distributed.pipelining can run; and
    ``separation.png``, the best schedule before and after its gradients were separated."""
    from semu.plan.torch_schedule import schedule_to_torch_csv
    from semu.simulation.schedules.comparing import compare_schedules

    folder = make_folder(Path(directory))
    yield write_text(folder / "result.json", json.dumps(found.to_json(), indent=2, allow_nan=False) + "\n")
    best = found.best
    if best is None:
        return
    for row in found.rows:
        try:
            text = schedule_to_torch_csv(row.stages.schedule, row.stages.shape)
        except ScheduleError:
            continue
        yield write_text(folder / "torch.csv", text)
        say(f"torch.csv is {row.name}, the fastest that torch.distributed.pipelining can run")
        break
    names = [best.name]
    head, mark, rest = best.name.partition("separated inner={")
    if mark:
        names.insert(0, head + rest[: rest.rindex("}")])
    compared = compare_schedules(replace(best.job, training=replace(best.job.training, schedule=names[0])), names[1:])
    yield compared.draw(folder / "separation.png")


def explained(row: ComparedSchedule, cache: ResultCache | None) -> Explanation:
    """Why the schedule of a row idles, on the mean times of its stages."""
    from semu.schedule.exploration.changes import explain
    from semu.schedule.registry import ALL_SCHEDULES
    from semu.schedule.rules.rule import Rule
    from semu.simulation.preparation import prepare
    from semu.simulation.schedules.named import pipeline_study

    checkpoint = prepare(row.job, cache=cache)
    try:
        study = pipeline_study(checkpoint)
    except ConfigError:  # backwards that cannot be split
        study = pipeline_study(checkpoint, splits=False)
    family = ALL_SCHEDULES.get(row.name)
    rule = family.orders if family is not None and isinstance(family.orders, Rule) else None
    return explain(study, row.stages.schedule, rule)


def _megatron_lines(best: ComparedSchedule | None) -> Iterator[str]:
    """Flags of Megatron-LM where it has the schedule."""
    if best is None or best.name not in ("1f1b", "interleaved"):
        return
    flags = f"--pipeline-model-parallel-size {best.job.parallel.pp}"
    if best.vpp > 1:
        flags += f" --num-virtual-stages-per-pipeline-rank {best.vpp}"
    yield f"Megatron-LM: {flags}"


def explore_plain(arguments: argparse.Namespace) -> int:
    """Explore schedules of equal stages; returns the exit code."""
    from semu.schedule.exploration.changes import explain
    from semu.schedule.exploration.plain import explore
    from semu.schedule.registry import ALL_SCHEDULES
    from semu.schedule.rules.rule import Rule

    found = explore(arguments.ranks, arguments.microbatches, split=arguments.split)
    lines = [
        f"{arguments.ranks} ranks, {arguments.microbatches} microbatches; "
        "F, I and W of a p-th of the model take 1 s each",
        "",
        found.table(arguments.top),
    ]
    told = None
    if arguments.explain:
        best = found.rows[0]
        rule = ALL_SCHEDULES[best.name].orders
        told = explain(best.study, best.schedule, rule if isinstance(rule, Rule) else None)
        lines += ["", f"why {best.name} idles:", *told.lines()]
    if arguments.json:
        emit_json({**found.to_json(arguments.top), **({"explained": [*told.lines()]} if told else {})})
    else:
        emit("\n".join(lines))
    return 0


def rule_of_file(arguments: argparse.Namespace) -> int:
    """The rule of an order in a file; returns the exit code.

    Raises:
        ConfigError: the file cannot be read. ScheduleError: it is no order of a chain in a known placement.
    """
    from semu.schedule.exploration.inverse import find_rule
    from semu.schedule.files import read_schedule

    found = find_rule(read_schedule(arguments.rule_of))
    p, m, v = found.shape.num_ranks, found.shape.num_microbatches, found.shape.num_slots
    said = "reproduces it" if found.differs == 0 else f"comes nearest, {found.differs} of {found.stages} stages differ"
    if arguments.json:
        sizes = {"ranks": p, "microbatches": m, "vpp": v}
        emit_json({"rule": found.name, "differs": found.differs, "stages": found.stages, **sizes})
    else:
        emit(f"{p} ranks, {m} microbatches, {v} chunks per rank, {found.stages} stages\n{said}: {found.name}")
    return 0 if found.differs == 0 else ScheduleError.exit_code


def program_names(path: str) -> list[str]:
    """The schedules that the tables ``[schedule.NAME]`` of a file describe, as text.

    Raises:
        ConfigError: the file cannot be read, it has none, as ``named_rules``.
    """
    from semu.runfile.places import Places
    from semu.runfile.schedules import program_texts

    tables = read_toml(path, path, "a TOML file with tables [schedule.NAME]")
    texts = program_texts(tables.get("schedule"), Places(path))
    if not texts:
        raise ConfigError("no rules", where=path, expected="tables [schedule.NAME]", got=[*tables])
    return [*texts.values()]
