"""``draw_grid``: a schedule as text, a line per rank over time, for people.

rank 0 |F0F1F2F3      B0--F4B1--F5|      F, B, I, W: phase; f, b, i, w: the same of a rank's second chunk, and of
rank 1 |  F0F1F2    B0--F3B1--F4B2|      every other after it; the number is the microbatch's
"""

from __future__ import annotations

from semu.schedule.graph import PipelineGraph
from semu.schedule.study import StudyResult

_LETTERS = ("FBIW", "fbiw")


def draw_grid(
    evaluation: StudyResult, arrays: PipelineGraph, *, columns: int = 100, unit_s: float | None = None, width: int = 2
) -> str:
    """A line per rank; a stage shows its phase and microbatch as far as there is room, idle time is blank.

    Args:
        evaluation: the schedule's times. arrays: its pipeline.
        columns: width of the drawing; later stages are cut off.
        unit_s: time [s] that ``width`` characters stand for; by default all of the makespan fits.
    """
    scale = width / unit_s if unit_s else columns / max(evaluation.makespan_s, 1e-300)
    end = min(columns, round(evaluation.makespan_s * scale))
    ranks = len(evaluation.busy_s)
    margin = len(str(ranks - 1))
    lines = []
    for rank in range(ranks):
        line = [" "] * end
        for at in range(int(evaluation.ptr[rank]), int(evaluation.ptr[rank + 1])):
            first, stop = round(evaluation.start_s[at] * scale), round(evaluation.end_s[at] * scale)
            text = _label(int(evaluation.stages[at]), arrays)
            room = max(stop - first, 1)
            if room > len(text) + 1 or (room > len(text) and width > 2):
                text = text.ljust(room - 1, "-") + " " if width > 2 else text.ljust(room, "-")
            line[first : min(stop, end)] = text[: max(min(stop, end) - first, 0)]
        cut = "|" if round(evaluation.makespan_s * scale) <= columns else ".."
        lines.append(f"rank {rank:>{margin}} |{''.join(line[:end])}{cut}")
    return "\n".join(lines)


def _label(stage: int, arrays: PipelineGraph) -> str:
    pair, phase = divmod(stage, 4)
    slot = arrays.shape.chunk_slot[int(arrays.chunk[pair])]
    return f"{_LETTERS[slot % 2][phase]}{int(arrays.part[pair])}"
