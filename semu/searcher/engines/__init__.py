"""Engines: where many independent tasks run: here, in processes of this machine, or on a Ray cluster.

A study hands an engine one function and a stream of tasks; it gets every task's result once, in any order. Which engine
runs them changes nothing about the results. ``make_engine`` makes one by name.
"""

from semu.checks import check_integer, check_word
from semu.errors import ConfigError
from semu.searcher.engines.engine import Engine, SerialEngine

__all__ = ["ENGINES", "Engine", "make_engine"]

ENGINES = ("serial", "local", "ray")
"""Engines by name: in this process, in processes of this machine, on a Ray cluster."""


def make_engine(name: str = "local", *, workers: int | None = None, address: str | None = None) -> Engine:
    """An engine by name.

    Args:
        name: one of ``ENGINES``. workers: processes of ``local``, CPUs of a Ray cluster that is started here; None: all
            cores. address: of a Ray cluster that runs already; None: one is started here.
    Raises:
        ConfigError: an unknown name, no count, an address for another engine, Ray is not installed.
    """
    check_word(name, ENGINES, "engine", "engine")
    if workers is not None:
        check_integer(workers, "workers", "a number of workers")
    if address is not None and name != "ray":
        raise ConfigError("only a Ray cluster has an address", where="address", expected="engine ray", got=name)
    if name == "serial":
        return SerialEngine()
    if name == "local":
        from semu.searcher.engines.local import LocalEngine

        return LocalEngine(workers)
    from semu.searcher.engines.cluster import RayEngine

    return RayEngine(address=address, workers=workers)
