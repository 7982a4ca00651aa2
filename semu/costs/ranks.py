"""``Ranked``: what the context ranks of a job do differently."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from semu.errors import ConfigError
from semu.job import TrainingJob
from semu.job.context import context_plan
from semu.nn.masked_kernel import MaskedKernel, masked_in
from semu.parallel.context import Balance
from semu.workload.masked import ContextPlan


@dataclass(frozen=True)
class Ranked:
    """What context ranks do differently.

    Attributes:
        kernels: whose sizes are counted. plan: of the job.
    """

    kernels: tuple[MaskedKernel, ...]
    plan: ContextPlan

    @classmethod
    def of(cls, job: TrainingJob, symbols: Iterable[str]) -> Ranked | None:
        """Of a job whose sizes depend on some symbols; None: its context ranks do the same.

        Raises:
            ConfigError: a policy beside modules that have sizes of their own.
        """
        kernels, plan = masked_in(symbols), context_plan(job)
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
        return cls(kernels, plan)
