"""``GoodputReport``: how much of a long run is useful work, by strategy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Any

import numpy as np

from semu.frames import Tabular
from semu.records import dataclass
from semu.resilience.accounts import Account
from semu.resilience.events import US_PER_S
from semu.resilience.machine import Outcome
from semu.units import fit_columns, fit_lines, format_usd

if TYPE_CHECKING:
    from semu.present.page import Page

DAY_S = 86400.0
_STOPPED = (Account.SAVE, Account.LOAD, Account.DETECT, Account.RECONFIGURE, Account.COPY, Account.WAITING)
"""What GPUs do while nobody trains."""


def interval_90(values: list[float]) -> tuple[float, float]:
    """From the 5 % to the 95 % quantile."""
    low, high = np.quantile(values, (0.05, 0.95))
    return float(low), float(high)


@dataclass(frozen=True, eq=False)
class StrategyResult:
    """A strategy's runs.

    Attributes:
        name, title: of the strategy. nodes: of its cluster, spares too; job_nodes: of the job.
        iteration_s: of the job without failures [s].
        job_gpus: of the job. tokens: of an iteration. outcomes: by seed. settings: what it chose.
        refusal: why it cannot run this job; then there are no outcomes.
    """

    name: str
    title: str
    nodes: int
    job_nodes: int
    iteration_s: float
    job_gpus: int
    tokens: int
    outcomes: tuple[Outcome, ...] = field(repr=False)
    settings: Mapping[str, float] = field(default_factory=dict)
    refusal: str | None = None

    def goodputs(self) -> list[float]:
        """By seed: progress over that of the job without failures."""
        return [one.iterations * self.iteration_s * US_PER_S / one.wall_us for one in self.outcomes]

    @property
    def goodput(self) -> float:
        """Progress over that of the job without failures: mean of the seeds."""
        return float(np.mean(self.goodputs())) if self.outcomes else 0.0

    @property
    def interval(self) -> tuple[float, float]:
        """Goodput of 90 % of the seeds."""
        return interval_90(self.goodputs())

    @property
    def gpu_goodput(self) -> float:
        """``goodput`` per GPU that is paid for, over that of the job without failures and without spares."""
        return self.goodput * self.job_gpus / self.gpus

    @property
    def gpus(self) -> int:
        """Of its cluster, spares too."""
        return self.outcomes[0].gpus if self.outcomes else self.job_gpus

    def shares(self) -> dict[Account, float]:
        """What GPU-seconds were spent on, over wall x GPUs: means of the seeds; they sum to 1."""
        return {what: float(np.mean([one.share(what) for one in self.outcomes])) for what in Account}

    def mean(self, name: str) -> float:
        """Mean of a count of ``Outcome`` over the seeds."""
        return float(np.mean([getattr(one, name) for one in self.outcomes]))

    @property
    def tokens_per_s(self) -> float:
        """Tokens that count, per second."""
        return self.goodput * self.tokens / self.iteration_s

    def budget(self, tokens: float, gpu_hour_usd: float | None) -> dict[str, float | None]:
        """Days, and, where a price is given, dollars until so many tokens; None: it makes no progress."""
        days = tokens / self.tokens_per_s / DAY_S if self.goodput > 0 else None
        found = {"days": days}
        if gpu_hour_usd is not None:
            found["usd"] = None if days is None else days * 24.0 * self.gpus * gpu_hour_usd
        return found

    @property
    def reason(self) -> str | None:
        """Why it makes no progress; None: it does."""
        if self.refusal is not None:
            return self.refusal
        if self.goodput > 0:
            return None
        if self.mean("interruptions") == 0:
            return "an iteration takes longer than the run"
        shares = self.shares()
        worst = max((what for what in Account if what is not Account.USEFUL), key=shares.__getitem__)
        return f"no work outlives the next failure; {shares[worst]:.0%} of the time is {worst.value}"

    def to_json(self) -> dict[str, Any]:
        """An entry of ``strategies`` of ``goodput --json``."""
        if not self.outcomes:
            return {"name": self.name, "title": self.title, "refusal": self.refusal}
        low, high = self.interval
        counts = ("iterations", "failures", "interruptions", "changes", "saves", "from_start")
        return {
            "name": self.name,
            "title": self.title,
            "nodes": self.nodes,
            "gpus": self.gpus,
            "goodput": self.goodput,
            "goodput_90": [low, high],
            "gpu_goodput": self.gpu_goodput,
            "tokens_per_s": self.tokens_per_s,
            "shares": {what.value: share for what, share in self.shares().items()},
            "gpu_us": [{what.value: amount for what, amount in one.gpu_us.items()} for one in self.outcomes],
            "wall_us": [one.wall_us for one in self.outcomes],
            **{name: self.mean(name) for name in counts},
            "settings": dict(self.settings),
            "reason": self.reason,
            "refusal": None,
        }


@dataclass(frozen=True)
class Help:
    """What a change would bring the best strategy.

    Attributes:
        change: for people. goodput: with it.
    """

    change: str
    goodput: float


@dataclass(frozen=True, eq=False, repr=False)
class GoodputReport(Tabular):
    """Result of ``semu.goodput``; ``repr`` is its table.

    Attributes:
        title: of the job. days, seeds: of each run, and how many there are. failures: where they come from.
        mtbf_s: between failures of the job's nodes together [s]. strategies: in the order in which they were asked for.
        helps: what would help the best strategy, the most first. assumed: what nobody said.
        against_mtbf: strategy -> (mean time between failures [s], goodput), where that was asked for.
        tokens, gpu_hour_usd: what is asked about, if it is.
    """

    title: str
    days: float
    seeds: int
    failures: str
    mtbf_s: float
    strategies: tuple[StrategyResult, ...]
    helps: tuple[Help, ...] = ()
    assumed: tuple[str, ...] = ()
    tokens: float | None = None
    gpu_hour_usd: float | None = None
    against_mtbf: Mapping[str, tuple[tuple[float, float], ...]] = field(default_factory=dict)

    @property
    def best(self) -> StrategyResult:
        """The strategy with the most progress per GPU."""
        return max(self.strategies, key=lambda one: one.gpu_goodput)

    def to_dicts(self) -> list[dict[str, Any]]:
        """A record for each strategy."""
        return [
            {
                "name": one.name,
                "nodes": one.nodes,
                "goodput": one.goodput,
                "gpu_goodput": one.gpu_goodput,
                **{what.value: share for what, share in one.shares().items()},
            }
            for one in self.strategies
            if one.outcomes
        ]

    def to_json(self) -> dict[str, Any]:
        """As ``goodput --json``."""
        return {
            "title": self.title,
            "days": self.days,
            "seeds": self.seeds,
            "failures": self.failures,
            "mtbf_s": self.mtbf_s if math.isfinite(self.mtbf_s) else None,
            "best": self.best.name,
            "strategies": [
                one.to_json() | ({} if self.tokens is None else {"budget": one.budget(self.tokens, self.gpu_hour_usd)})
                for one in self.strategies
            ],
            "helps": [vars(one) for one in self.helps],
            "assumed": list(self.assumed),
            **(
                {"against_mtbf": {name: list(map(list, points)) for name, points in self.against_mtbf.items()}}
                if self.against_mtbf
                else {}
            ),
        }

    def page(self) -> Page:
        """One HTML file of all this; ``page().save(path)`` writes it."""
        from semu.resilience.pages import goodput_page  # circle: a report opens its page

        return goodput_page(self)

    def __repr__(self) -> str:
        ran = [one for one in self.strategies if one.outcomes]
        columns = [self._columns(one) for one in ran]
        heads = [
            head
            for head in (columns[0] if ran else {})
            if head == "goodput" or any(found[head] not in ("0.0%", "-") for found in columns)
        ]
        if all(one.gpus == one.job_gpus for one in ran):
            heads = [head for head in heads if head != "per GPU"]
        rows = [
            ["strategy", *heads],
            *([one.name, *(found[head] for head in heads)] for one, found in zip(ran, columns, strict=True)),
        ]
        mtbf = f"one every {_time(self.mtbf_s)}" if math.isfinite(self.mtbf_s) else "none"
        runs = "1 run" if self.seeds == 1 else f"{self.seeds} runs"
        lines = [f"{self.title}: {self.days:g} days, {runs}", f"failures: {self.failures} ({mtbf})", ""]
        lines += [*fit_columns(rows, [False, *[True] * len(heads)]), ""] if ran else []
        lines += [f"{one.name:12}  {one.reason}" for one in self.strategies if one.reason is not None]
        if self.helps:
            said = "; ".join(f"{one.change} ({one.goodput:.1%})" for one in self.helps)
            lines += [f"what helps    {self.best.name}: {said}"]
        lines += [f"assumed       {text}" for text in self.assumed]
        return fit_lines("\n".join(lines).rstrip())

    def _columns(self, one: StrategyResult) -> dict[str, str]:
        """Cells of a strategy, the most important first."""
        low, high = one.interval
        shares = one.shares()
        stopped = sum(shares[what] for what in _STOPPED)
        every = one.settings.get("memory_every_s", one.settings.get("storage_every_s"))
        budget = {} if self.tokens is None else one.budget(self.tokens, self.gpu_hour_usd)
        days, usd = budget.get("days"), budget.get("usd")
        return {
            "goodput": f"{one.goodput:.1%}",
            "of 90 %": f"{100 * low:.1f} to {100 * high:.1f}",
            "save every": "-" if every is None else _time(every),
            "days": "-" if self.tokens is None else "never" if days is None else f"{days:,.1f}",
            "cost": "-" if usd is None else format_usd(usd),
            "lost": f"{shares[Account.LOST]:.1%}",
            "stopped": f"{stopped:.1%}",
            "redundant": f"{shares[Account.REDUNDANT]:.1%}",
            "idle": f"{shares[Account.IDLE]:.1%}",
            "down": f"{shares[Account.DOWN]:.1%}",
            "per GPU": f"{one.gpu_goodput:.1%}",
        }


def _time(time_s: float) -> str:
    """A long time for a person."""
    for unit, size in (("d", DAY_S), ("h", 3600.0), ("min", 60.0)):
        if time_s >= 2 * size:
            return f"{time_s / size:.3g} {unit}"
    return f"{time_s:.3g} s"
