"""``plan_page``: an execution plan, and the search that it is of, on one page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from semu.engine.timeline import OuterSlice, RankTimeline
from semu.graph.operator import OpKind
from semu.plan.columns import NUM_STAGE_KINDS
from semu.plan.picture import plan_timeline
from semu.plan.plan import ExecutionPlan
from semu.plan.text import message_words, plan_summary
from semu.present.page import Column, Page
from semu.present.page.results import add_breakdown, add_memory, add_timelines
from semu.units import GIB, MIB, format_time

if TYPE_CHECKING:
    from semu.present.report import Report
    from semu.searcher.report import SearchReport

_RANKS = (
    Column("rank", "pipeline rank", 0),
    Column("stages", "stages", 0),
    Column("actions", "actions", 0),
    Column("sends", "messages sent", 0),
    Column("sent", "sent [MiB]", 1, MIB, is_bar=True),
    Column("peak", "peak [GiB]", 3, GIB),
    Column("buffers", "buffers [GiB]", 3, GIB),
    Column("limit", "limit [GiB]", 3, GIB),
)


def plan_page(
    plan: ExecutionPlan, report: Report, document: Mapping[str, Any], found: SearchReport | None = None
) -> Page:
    """What a plan does and needs, rank by rank; its timeline, under a searched schedule beside the one before.

    Args:
        report: simulation of the schedule. document: as ``semu plan --json`` prints it. found: the search; None: the
            schedule was given.
    """
    page = Page(f"Plan {plan.name}: {report.title}", () if report.fits else report.warnings[:1])
    facts = [
        ("iteration", f"{format_time(document['iteration_time_s'])}, pipeline {format_time(document['makespan_s'])}"),
        ("schedule", f"{plan.name}, {document['num_chunks']} chunks, {document['num_microbatches']} microbatches"),
        ("what runs", f"{document['num_stages']:,} stages and {document['num_messages']:,} messages"),
        ("", f"{document['num_actions']:,} actions on {document['num_ranks']} pipeline ranks"),
        ("replicas", str(document["num_replicas"])),
        ("fits", "yes" if document["fits"] and document["verified"] is not None else "no"),
        ("model", str(document["model_hash"])),
    ]
    if found is not None:
        facts[1:1] = _of_search(document, found)
    page.add_facts("At a glance", facts)
    if found is None:
        add_timelines(page, [(plan.name, report.timeline)])
    else:
        found.add_to(page)
    page.add_table("What every rank does and holds", _ranks(plan), _RANKS)
    add_breakdown(page, report)
    add_memory(page, report)
    page.add_list("Notes", report.warnings)
    return page


def shown_plan_page(plan: ExecutionPlan) -> Page:
    """A plan that is there: its summary, stages and messages at their estimated times, and what every rank does.

    Raises:
        ConfigError: it has no estimates, so nothing has a time.
    """
    timeline = plan_timeline(plan)
    page = Page(f"Plan {plan.name}", plan_summary(plan).splitlines())
    add_timelines(page, [(plan.name, replace(timeline, ranks=_with_messages(plan, timeline.ranks)))])
    page.add_table("What every rank does and holds", _ranks(plan), _RANKS)
    return page


def _with_messages(plan: ExecutionPlan, ranks: Sequence[RankTimeline]) -> tuple[RankTimeline, ...]:
    """Ranks with the messages that they send, where the plan says when."""
    estimates, messages = plan.estimates, plan.messages
    assert estimates is not None
    times = estimates.transfer_start_s.tolist(), estimates.transfer_end_s.tolist()
    if len(times[0]) != len(messages):
        return tuple(ranks)
    sent: list[list[OuterSlice]] = [[] for _ in ranks]
    ends = messages.source_rank.tolist(), messages.target_rank.tolist()
    sizes = messages.num_bytes[estimates.replica].tolist()
    for words, source, target, start, end, size in zip(message_words(plan), *ends, *times, sizes, strict=True):
        name = f"send {words.replace(' -> ', ' for ')} to rank {target}"
        sent[source].append(OuterSlice(name, OpKind.P2P, "pp", start, end, size, 2))
    return tuple(
        replace(rank, outer=tuple(sorted(own, key=lambda piece: (piece.start_s, piece.end_s, piece.name))))
        for rank, own in zip(ranks, sent, strict=True)
    )


def _of_search(document: Mapping[str, Any], found: SearchReport) -> list[tuple[str, str]]:
    gap = document["gap"]
    said = [("gap", f"{100 * gap:.2f} % above the lower bound of {format_time(document['lower_bound_s'])}")]
    spent = f"{document['rollouts']:,} rollouts and {document['moves']:,} moves, ended by {found.result.ended_by}"
    if document["search_s"] is not None:
        spent += f", in {format_time(document['search_s'])} after {format_time(document['prepare_s'])} of preparation"
    said.append(("planning", spent))
    if gain := found.gain_text():
        said.append(("gain", gain))
    return said


def _ranks(plan: ExecutionPlan) -> list[dict[str, Any]]:
    estimates, messages = plan.estimates, plan.messages
    assert estimates is not None
    sent = messages.num_bytes[estimates.replica]
    rows = []
    for rank, actions in enumerate(plan.actions):
        own = messages.source_rank == rank
        rows.append(
            {
                "rank": rank,
                "stages": int((actions.kind < NUM_STAGE_KINDS).sum()),
                "actions": len(actions.kind),
                "sends": int(own.sum()),
                "sent": int(sent[own].sum()),
                "peak": int(estimates.peak_memory_bytes[rank]),
                "buffers": int(estimates.buffer_bytes[rank]),
                "limit": int(plan.limit_bytes[rank]),
            }
        )
    return rows
