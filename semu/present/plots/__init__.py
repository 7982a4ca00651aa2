"""Pictures: ``draw_timeline`` (ranks over time) and ``draw_memory`` (allocated bytes by role) of an iteration,
``draw_validation`` (predicted over measured) of many, ``draw_bars`` (measured beside simulated), ``draw_fit`` (a fit
and its residuals), ``draw_schedules`` (pipeline schedules below one another).

Matplotlib is imported when a picture is drawn, and only through ``Figure``: no window, no global state. Sizes, fonts
and colours are fixed and nothing is dated, so equal input gives equal bytes.
"""

from semu.present.plots.bars import BarPair, BarPanel, draw_bars
from semu.present.plots.fit import FitPoints, draw_fit
from semu.present.plots.memory import draw_memory
from semu.present.plots.schedules import ScheduleRow, draw_schedules
from semu.present.plots.timeline import draw_timeline
from semu.present.plots.validation import ScatterPoint, draw_validation

__all__ = [
    "BarPair",
    "BarPanel",
    "FitPoints",
    "ScatterPoint",
    "ScheduleRow",
    "draw_bars",
    "draw_fit",
    "draw_memory",
    "draw_schedules",
    "draw_timeline",
    "draw_validation",
]
