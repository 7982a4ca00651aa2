"""Timelines as Chrome traces, for Perfetto and HolisticTraceAnalysis, and memory as PyTorch's snapshots.

``write_trace``, ``write_rank_trace``, ``write_memory_snapshot``.
"""

from semu.present.traces.memory_snapshots import write_memory_snapshot
from semu.present.traces.writer import write_rank_trace, write_trace

__all__ = ["write_memory_snapshot", "write_rank_trace", "write_trace"]
