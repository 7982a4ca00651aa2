"""``IterationTimeline``: one ``RankTimeline`` per pipeline rank of the slowest data-parallel replica.

``root``, ``span`` and ``chunk`` give times, costs and memory at every level of nesting (``semu.engine.span``).
"""

from __future__ import annotations

from dataclasses import fields
from functools import cached_property

from semu.engine.memory import MemoryCurve, PeakMemory, compress_steps
from semu.engine.rank_timeline import OperatorTable, OuterSlice, RankTimeline, StageOperators, StageSlice
from semu.engine.span import Span
from semu.engine.span_tree import chunk_spans, find_span, iteration_span
from semu.frames import html_table
from semu.records import dataclass
from semu.schedule.costs import idle_share
from semu.units import format_time

_MOST_RANKS = 32
"""What notebooks show of a timeline."""

__all__ = [
    "IterationTimeline",
    "MemoryCurve",
    "OperatorTable",
    "OuterSlice",
    "PeakMemory",
    "RankTimeline",
    "StageOperators",
    "StageSlice",
    "compress_steps",
]


@dataclass(frozen=True)
class IterationTimeline:
    """One training iteration of the slowest replica.

    Attributes:
        ranks: one per pipeline rank, in order.
        iteration_time_s: from the start of the iteration to the end of the last rank's optimizer step [s].
        makespan_s: end of the pipeline's last stage [s].
    """

    ranks: tuple[RankTimeline, ...]
    iteration_time_s: float
    makespan_s: float

    def __getstate__(self) -> dict[str, object]:
        """Fields only: spans are made again."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @property
    def bubble_ratio(self) -> float:
        """1 - (sum of stage times) / (P x makespan) (DESIGN §2), ranks weighted by their GPUs; waiting inside a stage
        counts as busy."""
        stages = sum(rank.weight * (stage.end_s - stage.start_s) for rank in self.ranks for stage in rank.stages)
        return idle_share(stages, len(self.ranks), self.makespan_s)

    def __repr__(self) -> str:
        stages = sum(len(rank.stages) for rank in self.ranks)
        return (
            f"IterationTimeline({stages:,} stages on {len(self.ranks):,} ranks, iteration "
            f"{format_time(self.iteration_time_s)}, pipeline {format_time(self.makespan_s)})"
        )

    def _repr_html_(self) -> str:
        """For notebooks: what the first ranks do, in figures."""
        rows = []
        for rank in self.ranks[:_MOST_RANKS]:
            busy_s = sum(stage.end_s - stage.start_s for stage in rank.stages)
            share = busy_s / self.makespan_s if self.makespan_s > 0 else 0.0
            begin, end = (rank.stages[0].start_s, rank.stages[-1].end_s) if rank.stages else (0.0, 0.0)
            times = (f"{len(rank.stages):,}", format_time(begin), format_time(end), format_time(busy_s))
            rows.append((str(rank.rank), *times, f"{share:.1%}"))
        said = f"iteration {format_time(self.iteration_time_s)}, bubble {self.bubble_ratio:.1%}"
        if len(self.ranks) > _MOST_RANKS:
            said += f"; the first {_MOST_RANKS} of {len(self.ranks):,} ranks"
        return html_table(("rank", "stages", "from", "to", "busy", "of the pipeline"), rows, said)

    @cached_property
    def root(self) -> Span:
        """The whole iteration; microbatches, stages, layers and operators are inside."""
        return iteration_span(self.ranks, self.iteration_time_s)

    @cached_property
    def chunks(self) -> tuple[Span, ...]:
        """Every model chunk: all its stages, from the first to the end of the last, on the rank that holds it."""
        return chunk_spans(self.ranks)

    def span(self, path: str) -> Span:
        """A piece of the iteration by path: ``mb3``, ``mb3/2F3``, ``mb3/2F3/llm.layers.4/attention.qkv``, ``chunk2``.

        Raises:
            ConfigError: nothing has this path; the nearest legal one is named.
        """
        return find_span(self.root, lambda: self.chunks, path)

    def chunk(self, number: int) -> Span:
        """One of ``chunks`` by its number.

        Raises:
            ConfigError: no such chunk.
        """
        return self.span(f"chunk{number}")
