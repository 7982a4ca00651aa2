"""``launchable``: what of a searched schedule another program can be told.

No program takes a plan: sub-microbatches, a memory strategy for every stage and an order of stages are semu's. What a
file can say of a plan is its cut of a decoder into stages and one kind of recomputation, under the program's own
schedule; whether that is worth anything is simulated.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress

from semu.baselines import megatron
from semu.errors import SemuError
from semu.exports.exported import Exported
from semu.exports.programs import export
from semu.present.report import Report
from semu.runfile.config import RunConfig
from semu.schedule.stage_plan import STRATEGIES, StagePlan
from semu.searcher.report import SearchReport
from semu.simulation import simulate

_CUT = "parallel.partition:"
"""How a sentence on what a file cannot say of the cut begins."""


def launchable(run: RunConfig, found: SearchReport, word: str) -> tuple[RunConfig, Exported, Report]:
    """The run nearest to a searched schedule that a program can be told, the fastest that fits; its file; its
    simulation. What the file leaves out is among ``Exported.unsaid``.

    Args:
        run: what was searched. found: its schedule. word: of ``PROGRAMS``.
    Raises:
        ConfigError: a model that the program's files cannot describe.
    """
    tried = [(run, export(run, word), simulate(run.job()))]
    for changes in _changes(run, found.plan):
        try:
            other = run.changed(changes, "search")
            exported = export(other, word)
            if not any(sentence.startswith(_CUT) for sentence in exported.unsaid):
                tried.append((other, exported, simulate(other.job())))
        except SemuError:  # the program's schedule cannot run this cut, which is told like any that is slower
            continue
    best, exported, report = min(tried, key=lambda one: (not one[2].fits, one[2].iteration_time_s))
    layout, layers = best.config["parallel"].get("layout"), found.plan.layers
    is_cut = layers is not None and layout == {"modules": {name: list(counts) for name, counts in layers.items()}}
    said = (*exported.unsaid, *_left_out(found, report, is_cut=is_cut))
    return best, Exported(exported.text, said), report


def _changes(run: RunConfig, plan: StagePlan) -> Iterator[Mapping[str, object]]:
    """Settings that come near a plan: each kind of recomputation that it uses, under its cut, under Megatron-LM's with
    virtual stages and under the run's."""
    pp = run.config["parallel"]["pp"]
    cuts: list[Mapping[str, object]] = [{}]
    with suppress(SemuError):  # the microbatches or layers may not divide
        cuts.append(megatron(run.job()).changes)
    if plan.layers is not None and not plan.parts:
        vpp = sum(map(len, plan.layers.values())) // pp
        layers = {name: list(counts) for name, counts in plan.layers.items()}
        schedule = "1f1b" if vpp == 1 else "interleaved"
        cut = {"vpp": vpp, "layout": {"modules": layers}, "partition": None, "placement": None}
        cuts.append({f"parallel.{name}": value for name, value in cut.items()} | {"training.schedule": schedule})
    used = {strategy for chunk in plan.variants for variant in chunk for strategy in variant} - {"offload"}
    for cut_changes in cuts:
        for kind in STRATEGIES:
            if kind in used:
                whole = dict.fromkeys(("recompute_method", "recompute_layers", "recompute_modules"))
                yield {**cut_changes, **{f"training.{key}": None for key in whole}, "training.recompute": kind}
        if cut_changes:
            yield cut_changes


def _left_out(found: SearchReport, report: Report, *, is_cut: bool) -> Iterator[str]:
    """What a file says nothing of, a sentence each."""
    plan = found.plan
    if plan.parts:
        yield "sub-microbatches of " + ", ".join(plan.parts)
    if not is_cut:
        yield "the cut into stages of the schedule found"
    if any(len(variants) > 1 for variants in plan.variants):
        yield "a memory strategy for every stage"
    fits = "" if report.fits else ", and does not fit"
    yield (
        f"the order of stages: as the file launches it an iteration takes {report.iteration_time_s:.4g} s{fits}; "
        f"the schedule found takes {found.report.iteration_time_s:.4g} s"
    )
