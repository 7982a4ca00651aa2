"""``Ranked``: what the context ranks of a job do differently."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from semu.errors import ConfigError
from semu.job import TrainingJob
from semu.job.context import context_plan
from semu.nn.masked_kernel import FIELDS, GATE, MARK, TRAFFIC, WIDTH, MaskedKernel, masked_in
from semu.nn.trace.sharding import ContextKind
from semu.parallel.context import Balance
from semu.records import dataclass
from semu.workload.batch import Microbatch
from semu.workload.masked import ContextPlan, rank_columns


@dataclass(frozen=True)
class Ranked:
    """What context ranks do differently.

    Attributes:
        kernels: whose sizes are counted. plan: of the job. gates: symbols of tokens under one exchange of several.
        chosen: exchange of every microbatch, where there are several; empty: nothing runs in attention over the text,
            which is less than any of them costs.
    """

    kernels: tuple[MaskedKernel, ...]
    plan: ContextPlan
    gates: tuple[str, ...] = ()
    chosen: tuple[ContextKind, ...] = ()

    @classmethod
    def of(cls, job: TrainingJob, symbols: Iterable[str], chosen: Sequence[ContextKind] = ()) -> Ranked | None:
        """Of a job whose sizes depend on some symbols; None: its context ranks do the same. ``chosen``: see the class.

        Raises:
            ConfigError: a policy beside modules that have sizes of their own.
        """
        names = [*symbols]
        kernels, plan = masked_in(names), context_plan(job)
        if not kernels and (plan.cp == 1 or plan.balance is Balance.ZIGZAG):
            return None
        if job.parallel.modules and plan.cp > 1 and plan.balance is not Balance.ZIGZAG:
            raise ConfigError(
                "a policy of context ranks beside modules that have sizes of their own is not modelled by this version",
                where="parallel.cp_balance",
                expected='"zigzag", or no [parallel.modules]',
                got=plan.balance.value,
                nearest=Balance.ZIGZAG.value,
            )
        gates = tuple(sorted(name for name in names if GATE in name and MARK not in name))
        return cls(kernels, plan, gates, tuple(chosen))

    def runs(self, exchange: str, microbatches: int) -> NDArray[np.int64]:
        """Whether microbatches exchange keys in a way: int64[microbatches], 0 or 1."""
        if self.plan.kind is not ContextKind.AUTO or not exchange:
            return np.ones(microbatches, np.int64)
        chosen = self.chosen or (ContextKind.AUTO,) * microbatches
        return np.array([kind.value == exchange for kind in chosen], np.int64)

    def columns(
        self, items: Sequence[Microbatch], shards: Mapping[str, NDArray[np.int64]]
    ) -> dict[str, NDArray[np.int64]]:
        """What context ranks see: symbol -> int64[cp, microbatches].

        Args:
            items: microbatches. shards: ``text.shard`` and the like of ranks that have as many -> int64[microbatches].
        """
        found = rank_columns(items, self.kernels, self.plan)
        for kernel in self.kernels:
            for field in (*FIELDS, *TRAFFIC):
                name = kernel.symbol(field)
                if name in found:
                    found[name] = found[name] * self.runs(kernel.exchange, len(items))
        for gate in self.gates:
            name, _, rest = gate.partition(GATE)
            exchange, mark, width = rest.partition(WIDTH)
            tokens = found.get(f"{name}{mark}{width}", np.repeat(shards[name][None], self.plan.cp, axis=0))
            found[gate] = tokens * self.runs(exchange, len(items))
        return found
