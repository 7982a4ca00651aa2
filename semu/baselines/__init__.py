"""What others would run: each baseline is a function from a job to the job that it makes of it, with its schedule.

    found = semu.baselines.megatron(job)
    print(found.simulate())         # or semu.simulate(found.job); on the command line: --baseline megatron

``BASELINES`` holds them by name. Definitions, and what the papers leave open: ``semu/baselines/README.md``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from semu.baselines.baseline import Baseline
from semu.baselines.contrastive_towers import distmm
from semu.baselines.fully_sharded import fsdp
from semu.baselines.list_scheduled import greedy
from semu.baselines.megatron_lm import megatron, megatron_1f1b
from semu.baselines.modules_in_parallel import cornstarch, cornstarch_unaware
from semu.baselines.nn_scaler import nnscaler
from semu.baselines.optimus_coarse import optimus
from semu.baselines.vocabulary_parallel import t_1f1b
from semu.checks import find_named
from semu.job import TrainingJob

BASELINES: Mapping[str, Callable[[TrainingJob], Baseline]] = MappingProxyType(
    {
        "megatron": megatron,
        "megatron-1f1b": megatron_1f1b,
        "nnscaler": nnscaler,
        "optimus": optimus,
        "fsdp": fsdp,
        "greedy": greedy,
        "t-1f1b": t_1f1b,
        "distmm": distmm,
        "cornstarch": cornstarch,
        "cornstarch-unaware": cornstarch_unaware,
    }
)
"""Every baseline by the name that ``--baseline`` uses."""

__all__ = [
    "BASELINES",
    "Baseline",
    "cornstarch",
    "cornstarch_unaware",
    "distmm",
    "find_baseline",
    "fsdp",
    "greedy",
    "megatron",
    "megatron_1f1b",
    "nnscaler",
    "optimus",
    "t_1f1b",
]


def find_baseline(name: str, *, where: str = "baseline") -> Callable[[TrainingJob], Baseline]:
    """The baseline of a name.

    Args:
        name: one of ``BASELINES``. where: place of the name, for the error.
    Raises:
        ConfigError: an unknown name, with a 'did you mean'.
    """
    return find_named("baseline", name, BASELINES, where=where)
