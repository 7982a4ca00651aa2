"""Pictures of an iteration: ``draw_timeline`` (ranks over time) and ``draw_memory`` (allocated bytes by role).

Matplotlib is imported when a picture is drawn, and only through ``Figure``: no window, no global state. Sizes, fonts
and colours are fixed and nothing is dated, so equal input gives equal bytes.
"""

from semu.plots.memory import draw_memory
from semu.plots.timeline import draw_timeline

__all__ = ["draw_memory", "draw_timeline"]
