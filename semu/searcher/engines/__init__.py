"""Engines: where many independent tasks run: here, in processes of this machine, or on a Ray cluster.

A study hands an engine one function and a stream of tasks; it gets every task's result once, in any order. Which engine
runs them changes nothing about the results.
"""

from semu.searcher.engines.engine import ENGINES, Engine, make_engine

__all__ = ["ENGINES", "Engine", "make_engine"]
