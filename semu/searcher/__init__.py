"""The searcher: schedules made for the batch at hand (002 §5, 000 §6).

``SearchProblem`` is its input, ``Solution`` its result. ``Interleaver`` makes schedules of priorities,
``evaluate`` times any order, ``choose_candidates`` trades time for memory, ``lower_bounds`` says what is left.
"""

from semu.lazy import lazy_names

__getattr__, __dir__ = lazy_names(__name__)
