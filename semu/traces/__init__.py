"""Timelines as Chrome traces, for Perfetto and HolisticTraceAnalysis: ``write_trace``, ``write_rank_trace``."""

from semu.traces.writer import write_rank_trace, write_trace

__all__ = ["write_rank_trace", "write_trace"]
