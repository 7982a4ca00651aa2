# The names of ``semu.searcher``, each beside the module that has it.

from semu.searcher.bounds import LowerBounds as LowerBounds
from semu.searcher.bounds import lower_bounds as lower_bounds
from semu.searcher.memory import MemoryChoice as MemoryChoice
from semu.searcher.memory import check_limits as check_limits
from semu.searcher.memory import choose_candidates as choose_candidates
from semu.searcher.orders.interleave import Interleaver as Interleaver
from semu.searcher.orders.interleave import Rollouts as Rollouts
from semu.searcher.orders.interleave import evaluate as evaluate
from semu.searcher.problem.search_problem import NO_LIMIT as NO_LIMIT
from semu.searcher.problem.search_problem import SearchProblem as SearchProblem
from semu.searcher.problem.search_problem import Solution as Solution
