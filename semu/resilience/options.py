"""``Resilience``: what a long run is asked about, as ``[resilience]`` of a run file has it.

Objects: ``Resilience``, ``CheckpointOptions``, ``FailureOptions``, ``PriceOptions``, ``parse_duration``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field, fields, replace
from enum import Enum
from typing import Any

from semu.checks import check_integer, check_member, check_number, check_seed
from semu.errors import ConfigError
from semu.records import dataclass

_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_DURATION = re.compile(r"\s*(\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)\s*([a-z]+)?\s*")
BEST = "best"
RECONFIGURE_S = 30.0
"""New communicators among processes that go on, where nobody says [s]: a default."""


def parse_duration(value: object, where: str, *, is_zero_ok: bool = False) -> float:
    """A time in seconds: a number of seconds, or a text like ``10s``, ``30min``, ``3h``, ``54d``.

    Raises:
        ConfigError: something else, NaN, infinity, a negative time, zero where it is not legal.
    """
    match = _DURATION.fullmatch(value) if isinstance(value, str) else None
    if match is not None and (match[2] or "s") in _UNITS:
        value = float(match[1]) * _UNITS[match[2] or "s"]
    elif isinstance(value, str):
        raise ConfigError(
            "not a time", where=where, expected="a number with s, min, h or d, e.g. 3h, or of seconds", got=value
        )
    return check_number(value, where, "a time", is_above=not is_zero_ok)


class Reconfiguration(Enum):
    """How pipelines are made for the nodes that are left."""

    COMPOSE = "compose"
    PAPER = "paper"


class FailureKind(Enum):
    """How the times between failures of a node are distributed."""

    POISSON = "poisson"
    WEIBULL = "weibull"


@dataclass(frozen=True)
class CheckpointOptions:
    """``[resilience.checkpoint]``; what is left open follows from the job's state and the links.

    Attributes:
        every_s: work between two saves [s] or a text like ``10min``; ``best``: the interval that keeps most.
        save_s: how long a save to storage lasts [s]. load_s: reading it back [s]; where only ``restart_s`` is given,
            that is all of a restart.
        detect_s: until a failure is noticed [s]. restart_s: from then until training goes on, loading not counted [s].
        storage_gb_per_s: what all nodes together write or read at most [GB/s]. node_gb_per_s: what a node does.
        memory_every_s: work between two copies to a peer's memory [s], of ``tiered``; ``best`` as above.
    """

    every_s: float | str = BEST
    save_s: float | str | None = None
    load_s: float | str | None = None
    detect_s: float | str = 0.0
    restart_s: float | str | None = None
    storage_gb_per_s: float | None = None
    node_gb_per_s: float | None = None
    memory_every_s: float | str = BEST

    def __post_init__(self) -> None:
        where = "resilience.checkpoint"
        for name in ("every_s", "memory_every_s"):
            if getattr(self, name) != BEST:
                object.__setattr__(self, name, parse_duration(getattr(self, name), f"{where}.{name}"))
        for name in ("save_s", "load_s", "detect_s", "restart_s"):
            if getattr(self, name) is not None:
                value = parse_duration(getattr(self, name), f"{where}.{name}", is_zero_ok=True)
                object.__setattr__(self, name, value)
        for name in ("storage_gb_per_s", "node_gb_per_s"):
            if getattr(self, name) is not None:
                check_number(getattr(self, name), f"{where}.{name}", "a bandwidth", is_above=True)

    def seconds(self, name: str) -> float | None:
        """A time of the table [s]; None: it is left open."""
        value = getattr(self, name)
        return None if value is None or value == BEST else float(value)


@dataclass(frozen=True)
class FailureOptions:
    """``[resilience.failures]``: where failures come from.

    Attributes:
        mtbf: mean time between failures of the job's nodes together, e.g. ``3h``.
        rate: failures in a time, e.g. ``419/54d``, of ``gpus`` GPUs.
        gpus: of the cluster that the rate was counted on; None: the job's.
        trace: a file of events. kind: of the times between a node's failures. shape: of Weibull's distribution; below
            1 failures come in bursts.
        rack_nodes: nodes that share a rack; 0: none do. rack_share: of failures, those that take a whole rack.
        repair: until a node is back, e.g. ``2h``; 0: another takes its place at once; ``never``.
        notice_s: how long before it goes a node says so [s].
    """

    mtbf: float | str | None = None
    rate: str | None = None
    gpus: int | None = None
    trace: str | None = None
    kind: str = FailureKind.POISSON.value
    shape: float = 0.7
    rack_nodes: int = 0
    rack_share: float = 0.1
    repair: float | str = 0.0
    notice_s: float | str = 0.0

    def __post_init__(self) -> None:
        where = "resilience.failures"
        given = [name for name in ("mtbf", "rate", "trace") if getattr(self, name) is not None]
        if len(given) > 1:
            raise ConfigError(
                "failures are given twice", where=where, expected="one of mtbf, rate, trace", got=" and ".join(given)
            )
        if self.mtbf is not None:
            object.__setattr__(self, "mtbf", parse_duration(self.mtbf, f"{where}.mtbf"))
        if self.rate is not None:
            self.failures_per_s()
        check_member(self.kind, FailureKind, f"{where}.kind")
        check_number(self.shape, f"{where}.shape", "a shape", least=0.1, most=10.0)
        check_integer(self.rack_nodes, f"{where}.rack_nodes", "nodes", least=0)
        check_number(self.rack_share, f"{where}.rack_share", "a share", most=1.0)
        if self.gpus is not None:
            check_integer(self.gpus, f"{where}.gpus", "GPUs")
        if self.repair != "never":
            object.__setattr__(self, "repair", parse_duration(self.repair, f"{where}.repair", is_zero_ok=True))
        object.__setattr__(self, "notice_s", parse_duration(self.notice_s, f"{where}.notice_s", is_zero_ok=True))

    def failures_per_s(self) -> float:
        """Failures per second of the cluster that the rate was counted on.

        Raises:
            ConfigError: a rate that is none.
        """
        where = "resilience.failures.rate"
        count, slash, time = (self.rate or "").partition("/")
        try:
            number = float(count)
        except ValueError:
            number = -1.0
        if not slash or not number > 0:
            raise ConfigError("not a rate", where=where, expected="failures in a time, e.g. 419/54d", got=self.rate)
        return check_number(number, where, "a count", is_above=True) / parse_duration(time, where)

    @property
    def repair_s(self) -> float | None:
        """Until a node is back [s]; None: never."""
        return None if self.repair == "never" else float(self.repair)


@dataclass(frozen=True)
class PriceOptions:
    """``[resilience.price]``.

    Attributes:
        gpu_hour_usd: of a GPU of the cluster, spares too [USD].
    """

    gpu_hour_usd: float | None = None

    def __post_init__(self) -> None:
        if self.gpu_hour_usd is not None:
            check_number(self.gpu_hour_usd, "resilience.price.gpu_hour_usd", "a price")


@dataclass(frozen=True)
class Resilience:
    """``[resilience]``: a long run.

    Attributes:
        days: how long each simulated run is. seeds: how many runs are drawn. seed: of the first.
        spares: nodes beside the job's, for ``spares``. faults: failures at once that templates must survive.
        reconfigure_s: of strategies that go on without a restart, new pipelines and communicators [s].
        reconfiguration: of templates: ``compose``, the fastest pipelines for the nodes that are left; ``paper``,
            Oobleck's three steps (``semu.resilience.templates.reinstantiating``).
        strategies: by name; ``all``. checkpoint, failures, price: tables of their own.
    """

    days: float = 54.0
    seeds: int = 16
    seed: int = 0
    spares: int | None = None
    faults: int = 1
    reconfigure_s: float | str = RECONFIGURE_S
    reconfiguration: str = Reconfiguration.COMPOSE.value
    strategies: tuple[str, ...] = ("all",)
    checkpoint: CheckpointOptions = field(default_factory=CheckpointOptions)
    failures: FailureOptions = field(default_factory=FailureOptions)
    price: PriceOptions = field(default_factory=PriceOptions)

    def __post_init__(self) -> None:
        check_number(self.days, "resilience.days", "days", is_above=True, most=36500.0)
        check_integer(self.seeds, "resilience.seeds", "a number of runs", most=100_000)
        check_seed(self.seed, "resilience.seed")
        check_integer(self.faults, "resilience.faults", "failures at once", least=0)
        check_member(self.reconfiguration, Reconfiguration, "resilience.reconfiguration")
        object.__setattr__(
            self, "reconfigure_s", parse_duration(self.reconfigure_s, "resilience.reconfigure_s", is_zero_ok=True)
        )
        if self.spares is not None:
            check_integer(self.spares, "resilience.spares", "nodes", least=0)

    @classmethod
    def of(cls, table: Mapping[str, Any]) -> Resilience:
        """From the tables of a run file, whose keys were checked.

        Raises:
            ConfigError: a value that is not legal.
        """
        kinds = {"checkpoint": CheckpointOptions, "failures": FailureOptions, "price": PriceOptions}
        given = {key: kinds[key](**value) if key in kinds else value for key, value in table.items()}
        if isinstance(given.get("strategies"), str | list):
            words = given["strategies"]
            given["strategies"] = (words,) if isinstance(words, str) else tuple(words)
        return cls(**given)

    def changed(self, **changes: Any) -> Resilience:
        """With other values; those that are None are left out. Names with a dot are of a table."""
        own = {key: value for key, value in changes.items() if "." not in key and value is not None}
        for item in fields(self):
            prefix = f"{item.name}."
            inner = {
                key.removeprefix(prefix): value
                for key, value in changes.items()
                if key.startswith(prefix) and value is not None
            }
            if inner:
                own[item.name] = replace(getattr(self, item.name), **inner)
        return replace(self, **own)
