"""``semu simulate``: predict one training iteration of a run."""

from __future__ import annotations

import argparse
import math
import os
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from semu.checks import check_member, check_number
from semu.cli.console import Progress, emit, emit_json, printed_anyway, say, say_written, write_html
from semu.cli.option_checks import check_place
from semu.cli.resolved import dump_run, read_run, say_notes
from semu.errors import ConfigError, MemoryLimitError, MissingCoefficientError
from semu.units import GIB

if TYPE_CHECKING:
    from semu.baselines import Baseline
    from semu.costs.result_cache import ResultCache
    from semu.job import TrainingJob
    from semu.present.report import Report
    from semu.present.summary import Budget
    from semu.runfile.config import RunConfig


def simulate_command(arguments: argparse.Namespace) -> int:
    """Run the command; returns the exit code.

    Raises:
        ConfigError: a run that cannot be read or does not fit together.
        MissingCoefficientError: a default coefficient under ``--strict``, a wide interval under
            ``--strict-interval``.
    """
    from semu.present.report import TraceDetail

    check_member(arguments.trace, TraceDetail, "--trace", "detail of a trace")
    check_place("--html", arguments.html)
    with Progress() as progress:
        run = read_run(arguments, progress)
        job, order, plan, is_assigned = run.job(), None, None, run.names_samples
        _check_snapshots(arguments, job)
        if is_assigned and arguments.baseline is not None:
            expected = "a run without assignment.samples: a baseline trains the run's own batch"
            raise ConfigError("a baseline of assigned samples", where="--baseline", expected=expected)
        if arguments.baseline is not None:
            progress(f"planning as {arguments.baseline}")
            run, baseline = _as_baseline(run, arguments.baseline)
            job, order = baseline.job, baseline.order
        if arguments.dump_config or arguments.json:
            say_notes(run, assigns=True)
        if arguments.dump_config:
            return dump_run(run, is_json=arguments.json)
        if is_assigned:
            from semu.door.assigning import assigned_run

            run, assigned = assigned_run(run, job, progress)
            assert assigned is not None
            job, plan = assigned.assigned_job, assigned.recipe
            if arguments.json:
                say(run.notes[-1])
        from semu.door.simulating import advised, of_run
        from semu.simulation import simulate

        cache = result_cache(arguments.cache)
        if arguments.samples and not (job.training.jitter or job.training.straggler_share):
            say("--samples: training.jitter is 0 and there are no stragglers, so that all samples are alike")
        with run.places.located():
            report = simulate(
                job,
                schedule=order,
                plan=plan,
                progress=progress,
                cache=cache,
                samples=arguments.samples,
                seed=arguments.seed or 0,
                contention=arguments.contention,
            )
        report = of_run(report, run)  # files and --json have the notes of stderr too
        if arguments.strict:
            refuse_defaults(report)
        if arguments.strict_interval is not None:
            refuse_wide(report, arguments.strict_interval)
        if not is_assigned:  # changes would have to assign anew
            report = advised(
                job,
                report,
                progress=progress,
                cache=cache,
                contention=arguments.contention,
                has_reasons=arguments.samples == 0 and not arguments.contention,
            )
        budget = _budget(arguments, run)
        if arguments.out is not None or arguments.html is not None:
            progress("drawing the timeline and the memory")
            with printed_anyway(lambda: _text(arguments, report, budget), is_json=arguments.json):
                _write_files(arguments, report)
    if arguments.json:
        found = {"budget": budget.of(report)} if budget.tokens else {}
        emit_json({**report.to_json(), **found})
    else:
        emit(_text(arguments, report, budget))
    if report.fits:
        return 0
    from semu.present.summary import fit_sentence

    fullest = report.memory_of(report.fullest_rank)
    assert fullest is not None
    kinds = fullest._asdict()
    most = max(
        ("parameters", "gradients", "optimizer", "activations", "workspace", "communication"), key=kinds.__getitem__
    )
    say(f"{fit_sentence(report)}; most of it is {most}, {kinds[most] / GIB:.2f} GiB")
    if report.nearest_fit and arguments.baseline is None:  # a baseline decides settings itself
        say(f"it fits with: {shlex.join(['semu', *_set_anew(arguments.typed, report.nearest_fit[0].label().split())])}")
    return MemoryLimitError.exit_code


def _set_anew(typed: Sequence[str], settings: Sequence[str]) -> list[str]:
    """The words of a command line, with other settings (``key=value``) in place of its own of the same keys."""
    keys = {one.partition("=")[0] for one in settings}
    words: list[str] = []
    for word in typed:
        if words and words[-1] == "--set" and word.partition("=")[0] in keys:
            words.pop()
        else:
            words.append(word)
    return words + [word for one in settings for word in ("--set", one)]


def _write_files(arguments: argparse.Namespace, report: Report) -> None:
    """What ``--out`` and ``--html`` ask for."""
    write_html(arguments.html, report)
    if arguments.out is None:
        return
    say_written(*report.save(arguments.out, trace=arguments.trace))
    for rank in arguments.memory_snapshot:
        from semu.present.traces import write_memory_snapshot

        path = Path(arguments.out) / f"memory-rank{rank}.pickle"
        say_written(write_memory_snapshot(path, report.timeline, rank))


def _text(arguments: argparse.Namespace, report: Report, budget: Budget) -> str:
    """What people read."""
    from semu.present.summary import summarize

    has_more = arguments.details or arguments.provenance  # which have the notes too
    texts = [summarize(report, budget, has_notes=not has_more)]
    texts += [report.details()] if arguments.details else [report.provenance_text()] if has_more else []
    return "\n\n".join(texts)


def _budget(arguments: argparse.Namespace, run: RunConfig) -> Budget:
    """What is asked about a long run: the command line's price, else that of ``[cost]``."""
    from semu.present.summary import Budget, read_tokens

    cost = run.config.get("cost", {})
    given, watt = arguments.gpu_hour_usd, cost.get("watt")
    price = cost.get("gpu_hour_usd") if given is None else given
    return Budget(
        0.0 if arguments.tokens is None else read_tokens(arguments.tokens, where="--tokens"),
        None if price is None else check_number(price, "cost.gpu_hour_usd" if given is None else "--gpu-hour-usd"),
        None if watt is None else check_number(watt, "cost.watt"),
    )


def _check_snapshots(arguments: argparse.Namespace, job: TrainingJob) -> None:
    """Refuse snapshots of ranks that there are not, before anything is simulated."""
    if arguments.memory_snapshot and arguments.out is None:
        raise ConfigError("nowhere to write a snapshot", where="--memory-snapshot", expected="--out DIR with it")
    for rank in arguments.memory_snapshot:
        if not 0 <= rank < job.parallel.pp:
            raise ConfigError(
                "no such pipeline rank",
                where="--memory-snapshot",
                expected=f"0 to {job.parallel.pp - 1}",
                got=rank,
                nearest=min(max(rank, 0), job.parallel.pp - 1),
            )


def _as_baseline(run: RunConfig, name: str) -> tuple[RunConfig, Baseline]:
    """The run that a baseline makes of a run, and the baseline; its notes say what is changed."""
    from semu.runfile.toml_text import format_value
    from semu.searcher.tessel.baselines import any_baseline

    with run.places.located():
        found = any_baseline(name, where="--baseline")(run.job())
    flag = f"--baseline {name}"
    changes = [f"{key} = {format_value(value)}" for key, value in found.changes.items() if value is not None]
    changes += [f"no {key}" for key, value in found.changes.items() if value is None]
    said = f"{flag}: " + ("; ".join(changes) or "the run is as this baseline would have it")
    made = run.changed(found.changes, flag)
    return replace(made, notes=(*run.notes, said, *found.notes)), found


def result_cache(path: str | None) -> ResultCache | None:
    """The cache that ``--cache`` names, else the one of ``SEMU_CACHE``; None: no file."""
    from semu.costs.result_cache import ResultCache

    place = path or os.environ.get("SEMU_CACHE")
    return ResultCache(place, warn=say) if place else None


def refuse_defaults(report: Report) -> None:
    """Refuse a report that rests on coefficients with provenance ``default``."""
    share = report.provenance.get("default")
    if share is None:
        return
    kinds = dict.fromkeys(row.kind for row in report.top_operators if row.provenance == "default")
    if "launch" in report.breakdown_s and report.uncertainty is not None:
        kinds.update(dict.fromkeys(row.kind for row in report.uncertainty.kinds if row.kind.startswith("host.")))
    raise MissingCoefficientError(
        f"coefficients that are mere defaults make up {share:.2%} of the stage time",
        where=", ".join(kinds) or "operators of little cost",
        expected="a device profile with efficiencies for these kinds of operators, or no --strict",
        got="provenance default",
    )


def refuse_wide(report: Report, most_percent: float) -> None:
    """Refuse a report whose interval goes further than ``most_percent`` above its time."""
    check_number(most_percent, "--strict-interval", "a share in percent")
    assert report.uncertainty is not None
    wide = 100 * (report.uncertainty.interval_s()[1] / report.iteration_time_s - 1) if report.iteration_time_s else 0.0
    if wide > most_percent:
        raise MissingCoefficientError(
            f"the 90 % interval goes to {wide:.1f} % above the time",
            where=", ".join(item.kind for item in report.uncertainty.kinds[:3]),
            expected=f"at most {most_percent:g} %, or a wider --strict-interval",
            got=f"{wide:.1f} %",
            nearest=f"--strict-interval {math.ceil(wide)}",
        )
