"""A drill: ranks of unequal pipelines are killed while they train, and the others go on with what they hold."""

from semu.executor.drill.master import Arrangement, run_drill
from semu.executor.drill.orders import Failure, Move
from semu.executor.drill.report import DrillReport

__all__ = ["Arrangement", "DrillReport", "Failure", "Move", "run_drill"]
