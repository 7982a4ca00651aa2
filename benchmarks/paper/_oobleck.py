"""Oobleck's five models on its 30 A40s (§2.7.1, Table 2.1), and runs that lose one node after another (§2.7.2)."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np

import semu
import semu_models
from benchmarks.paper.choices import Choices
from semu.nn import Model
from semu.resilience.job_figures import JobFigures
from semu.resilience.long_run import run_strategy, situation_of
from semu.resilience.options import CheckpointOptions, FailureOptions, Resilience
from semu.resilience.report import StrategyResult
from semu.resilience.strategies.registry import STRATEGIES
from semu.resilience.strategies.strategy import Situation
from semu.resilience.strategies.varuna import Varuna
from semu_models.text.decoder import decoder_model
from semu_models.text.gpt import GPT, GPTConfig

NODES = 30
LEFT = 14
"""A run ends when less than half of the nodes are left."""
SPOT = {"EC2": 7.7 * 60.0, "GCP": 10.3 * 60.0}
"""Mean time between preemptions [s] (§2.7.3)."""
NOTICE_S = 120.0
"""Before a preemption, as EC2 gives it."""
FREQUENCIES = {"6h": 6 * 3600.0, "1h": 3600.0, "10m": 600.0}


@dataclass(frozen=True)
class Workload:
    """A column of Tables 2.1 and 2.2.

    Attributes:
        global_batch: samples. micro_batch: of Varuna and Oobleck. bamboo: of Bamboo; None: it does not fit.
        length: of a sequence [tokens]. printed: system -> samples/s at 6 h, 1 h and 10 min.
    """

    global_batch: int
    micro_batch: int
    bamboo: int | None
    length: int
    printed: dict[str, tuple[float, float, float]]


WORKLOADS = {
    "BERT-Large": Workload(
        8192,
        32,
        4,
        512,
        {"Bamboo": (77.04, 75.60, 69.84), "Varuna": (260.11, 246.03, 173.52), "Oobleck": (287.10, 286.28, 282.11)},
    ),
    "GPT-2": Workload(
        8192,
        32,
        1,
        1024,
        {"Bamboo": (17.47, 17.13, 16.01), "Varuna": (86.51, 85.17, 76.39), "Oobleck": (85.59, 85.42, 84.80)},
    ),
    "GPT-3 Medium": Workload(8192, 16, None, 2048, {"Varuna": (29.50, 28.49, 20.19), "Oobleck": (29.30, 29.21, 28.70)}),
    "GPT-3 2.7b": Workload(1024, 2, None, 2048, {"Varuna": (7.27, 6.53, 1.76), "Oobleck": (7.29, 7.23, 6.89)}),
    "GPT-3 6.7b": Workload(1024, 2, None, 2048, {"Varuna": (4.14, 2.69, 0.26), "Oobleck": (4.33, 4.22, 3.55)}),
}
NO_CHECKPOINT = {"BERT-Large": (275.88, 273.85, 264.16), "GPT-3 6.7b": (4.61, 4.29, 1.98)}
"""Table 2.4: Varuna whose saves cost nothing."""
SIZES = {"GPT-3 Medium": (24, 1024, 16), "GPT-3 2.7b": (32, 2560, 32), "GPT-3 6.7b": (32, 4096, 32)}
"""Layers, width, heads (2005.14165 Table 2.1)."""


@cache
def model(name: str) -> Model:
    """A model of Table 2.1."""
    if name in SIZES:
        return decoder_model(name.lower().replace(" ", "-"), GPT(GPTConfig(*SIZES[name], vocab=50257)))
    return semu_models.build({"BERT-Large": "bert-large", "GPT-2": "gpt2-medium"}[name])


def job(name: str, *, is_bamboo: bool = False) -> semu.TrainingJob:
    """A training on all nodes; strategies choose their own layouts, but Bamboo, which has two pipelines."""
    one = WORKLOADS[name]
    micro_batch = one.bamboo if is_bamboo else one.micro_batch
    assert micro_batch is not None
    return semu.TrainingJob(
        model(name),
        semu.Cluster("a40", NODES, 1, nic_gbit=200.0),
        semu.Parallel(dp=2, pp=NODES // 2, zero=0),
        semu.Training(
            global_batch=one.global_batch,
            micro_batch=micro_batch,
            seq_len=one.length,
            precision="tf32",
            recompute="none" if is_bamboo else "full",
        ),
    )


@cache
def situation(name: str, *, is_bamboo: bool = False) -> Situation:
    """Of a training; its options are replaced in every run."""
    of = job(name, is_bamboo=is_bamboo)
    return situation_of(of, JobFigures.of(of, semu.simulate(of)), Resilience(), math.inf)


def state_bytes(name: str) -> float:
    """Weights and Adam's moments in fp32."""
    return 12.0 * model(name).num_parameters()


def losses(mean_s: float, seed: int) -> list[tuple[float, int]]:
    """(time [s], node) of failures, random in time and place; the last one ends the run."""
    random = np.random.default_rng(seed)
    times = np.cumsum(random.exponential(mean_s, NODES - LEFT)).tolist()
    return list(zip(times, random.permutation(NODES)[: NODES - LEFT].tolist(), strict=True))


@dataclass(frozen=True)
class Times:
    """Of recoveries [s]: a restart beside loading, new pipelines; storage [GB/s]; iterations between Varuna's saves;
    whether its saves take no time (loads do)."""

    restart_s: float
    reconfigure_s: float
    storage_gb_per_s: float
    every: int = 10
    is_save_free: bool = False

    @classmethod
    def of(cls, choices: Choices) -> Times:
        """As chosen."""
        return cls(choices.oobleck_restart.value, choices.oobleck_reconfigure.value, choices.oobleck_storage.value)


def run_losses(name: str, strategy: str, mean_s: float, times: Times, seeds: int) -> list[StrategyResult]:
    """A strategy of ``STRATEGIES`` through the failures of some seeds."""
    base = situation(name, is_bamboo=strategy == "bamboo")
    kind, found = STRATEGIES[strategy], []
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(seeds):
            events = losses(mean_s, seed)
            path = Path(folder) / f"{seed}.csv"
            lines = ["time_s,node,event,notice_s", *(f"{time!r},{node},fail,0" for time, node in events[:-1])]
            path.write_text("\n".join(lines) + "\n")
            options = Resilience(
                days=events[-1][0] / 86400.0,
                reconfigure_s=times.reconfigure_s,
                checkpoint=_checkpoint(name, base, strategy, times),
                failures=FailureOptions(trace=str(path)),
            )
            found.append(run_strategy(kind(replace(base, options=options, mtbf_s=mean_s))))
    return found


def run_spot(name: str, strategy: str, mean_s: float, back_s: float, times: Times, seeds: int) -> list[StrategyResult]:
    """A strategy through twelve hours of nodes that go and come back (§2.7.3), drawn."""
    base = situation(name, is_bamboo=strategy == "bamboo")
    options = Resilience(
        days=0.5,
        seeds=seeds,
        reconfigure_s=times.reconfigure_s,
        checkpoint=_checkpoint(name, base, strategy, times),
        failures=FailureOptions(mtbf=mean_s, repair=back_s, notice_s=NOTICE_S),
    )
    result = run_strategy(STRATEGIES[strategy](replace(base, options=options, mtbf_s=mean_s)))
    return [replace(result, outcomes=(one,)) for one in result.outcomes]


def _checkpoint(name: str, base: Situation, strategy: str, times: Times) -> CheckpointOptions:
    transfer_s = state_bytes(name) / (times.storage_gb_per_s * 1e9)
    iteration_s = base.figures.iteration_s
    if strategy == "varuna":
        iteration_s = Varuna(base).conduct(NODES).iteration_s or iteration_s
    return CheckpointOptions(
        every_s=times.every * iteration_s,
        save_s=0.0 if times.is_save_free else transfer_s,
        load_s=transfer_s,
        restart_s=times.restart_s,
    )


def samples_per_s(results: Sequence[StrategyResult], global_batch: int) -> float:
    """Mean of runs."""
    found = [one.outcomes[0].iterations * global_batch / (one.outcomes[0].wall_us * 1e-6) for one in results]
    return float(np.mean(found))
