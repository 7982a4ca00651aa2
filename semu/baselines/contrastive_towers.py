"""DistMM-Pipe, a baseline of FlexPipe (§2.2, Fig. 3): towers side by side, synchronised every few microbatches.

Every tower of a contrastive model has pipeline ranks of its own. The last ranks of all towers gather one another's
features and compute the loss together (``parallel.loss = "towers"``), for several microbatches one after another:
before the first backward of a group all its features must be there, so that every rank launches as many forwards more
in the warm-up.
"""

from __future__ import annotations

from collections.abc import Iterator

from semu.baselines.baseline import NO_SCHEDULE, Baseline
from semu.checks import check_integer
from semu.errors import ConfigError
from semu.graph.operator import Phase
from semu.job import TrainingJob
from semu.parallel.layout import PipelineLayout
from semu.parallel.stage_layers import layer_parts
from semu.schedule.schedule import Schedule
from semu.schedule.shape import PipelineShape, StageKey
from semu.simulation import prepare

EVERY = 4
"""Microbatches of a group; neither paper prints it ("every few")."""


def distmm(job: TrainingJob, *, every: int = EVERY) -> Baseline:
    """Towers on ranks of their own, and their losses in groups of microbatches.

    Args:
        job: a dual encoder, with at least as many pipeline ranks as towers. every: microbatches of a group.
    Raises:
        ConfigError: another model, fewer ranks than towers, microbatches that the groups do not divide.
    """
    check_integer(every, "every", "a number of microbatches")
    head, towers = job.model.modules[-1], job.model.modules[:-1]
    pp, m = job.parallel.pp, job.num_microbatches
    if len(towers) < 2 or set(head.sources) != {tower.name for tower in towers} or any(t.sources for t in towers):
        raise ConfigError(
            "DistMM trains towers side by side that meet in a loss",
            where="model",
            expected="a dual encoder, such as clip-vit-l-14",
            got=job.model.name,
            nearest="megatron",
        )
    if pp < len(towers) or job.parallel.vpp > 1:
        raise ConfigError(
            "DistMM has pipeline ranks for every tower, with one chunk each",
            where="parallel.pp",
            expected=f">= {len(towers)}, with vpp = 1",
            got=f"pp = {pp}, vpp = {job.parallel.vpp}",
            nearest=max(pp, len(towers)),
        )
    if m % every:
        raise ConfigError(
            f"{m} microbatches do not divide into groups of {every}",
            where="training.global_batch",
            expected=f"a multiple of {every} microbatches a replica",
            got=m,
            nearest=max(m // every * every, every),
        )
    counts = [len(layer_parts(tower)) for tower in towers]
    weights = [tower.body.num_parameters() for tower in towers]
    ranks = _shared_out(pp, weights, counts)
    modules, first = {}, 0
    for tower, count, own in zip(towers, counts, ranks, strict=True):
        share = [count // own + (number < count % own) for number in range(own)]
        modules[tower.name] = (*(0,) * first, *share, *(0,) * (pp - first - own))
        first += own
    modules[head.name] = (*(0,) * (pp - 1), len(layer_parts(head)))
    made = Baseline.of(
        "distmm",
        "DistMM, NSDI 2024; FlexPipe Fig. 3",
        job,
        parallel={
            "layout": PipelineLayout(modules=modules),
            "loss": "towers",
            "partition": "parameters",
            "placement": "circular",
            "segments": "mixed",
            "shares": {},
        },
        training={**NO_SCHEDULE, "schedule": "1f1b"},
    )
    order = Schedule.build("distmm", distmm_orders(prepare(made.job).pipeline_shape, every))
    note = f"distmm: losses of {every} microbatches together; ranks of the towers: {', '.join(map(str, ranks))}"
    return Baseline(made.name, made.source, made.job, made.changes, (note,), order)


def distmm_orders(shape: PipelineShape, every: int) -> Iterator[list[StageKey]]:
    """The stages of every rank: 1F1B of its tower with ``every`` - 1 forwards more ahead; losses group by group.

    Args:
        shape: towers, each a chain over neighbouring ranks, and a gang on their last ranks that reads them.
    """
    m, heads = shape.num_microbatches, shape.gangs[0]
    for rank in range(shape.num_ranks):
        own = [chunk for chunk in shape.chunks_of(rank) if chunk not in heads]
        head = next((chunk for chunk in heads if shape.chunk_rank[chunk] == rank), None)
        module = shape.chunk_module[own[-1]]
        last = max(r for r, name in zip(shape.chunk_rank, shape.chunk_module, strict=True) if name == module)
        warm_up = min(last - rank + every, m)
        order: list[StageKey] = []
        for step in range(m + warm_up):
            if step < m:
                order += [StageKey(chunk, Phase.FORWARD, step) for chunk in own]
            back = step - warm_up + 1
            if step + 1 < warm_up or back >= m:
                continue
            if head is not None and back % every == 0:
                group = range(back, back + every)
                order += [StageKey(head, phase, i) for phase in (Phase.FORWARD, Phase.BACKWARD) for i in group]
            order += [StageKey(chunk, Phase.BACKWARD, back) for chunk in reversed(own) if shape.has_backward[chunk]]
        yield order


def _shared_out(pp: int, weights: list[int], counts: list[int]) -> list[int]:
    """Ranks of every tower, one at least: always one more for the tower whose ranks hold most; not more than layers."""
    ranks = [1] * len(weights)
    for _ in range(pp - len(weights)):
        open_ones = [n for n in range(len(weights)) if ranks[n] < counts[n]]
        ranks[max(open_ones, key=lambda n: (weights[n] / ranks[n], -n))] += 1
    return ranks
