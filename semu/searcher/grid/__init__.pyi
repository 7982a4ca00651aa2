# The names of ``semu.searcher.grid``, each beside the module that has it.

from semu.searcher.grid.grid_search import grid as grid
from semu.searcher.grid.result import GridResult as GridResult
from semu.searcher.grid.rows import Row as Row
from semu.searcher.grid.space import Axis as Axis
from semu.searcher.grid.space import Point as Point
from semu.searcher.grid.space import RankBy as RankBy
from semu.searcher.grid.space import Space as Space
