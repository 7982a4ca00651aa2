"""``grid``: the best configurations of a job within its memory: enumerate, bound, evaluate what is left, rank."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from semu.checks import check_integer, check_member, check_number
from semu.collector import without_collector
from semu.errors import ConfigError
from semu.job import TrainingJob
from semu.searcher.engines import Engine, make_engine
from semu.searcher.grid.framework import Framework, framework_of, framework_values
from semu.searcher.grid.hunt import Hunt
from semu.searcher.grid.legal import Legal, legal_points
from semu.searcher.grid.result import GridResult
from semu.searcher.grid.space import RankBy, Space, Value, with_gpus


def grid(
    job: TrainingJob,
    vary: Space | Sequence[str] | Mapping[str, Sequence[Value] | None] | None = None,
    *,
    fix: Mapping[str, Value] | None = None,
    gpus: int | None = None,
    top: int = 10,
    rank_by: RankBy | str = RankBy.TIME,
    price: float | None = None,
    framework: Framework | str | None = None,
    exhaustive: bool = False,
    results: str | Path | None = None,
    workers: int | None = None,
    engine: Engine | str | None = None,
    progress: Callable[[str], None] | None = None,
) -> GridResult:
    """Find the best configurations of a job: sizes of the parallelism, of the microbatch, recomputation and so on.

    Args:
        job: what it says holds on every axis that does not vary.
        vary: axes (``semu.searcher.grid.Axis``), or axis -> its values, None: all; None: dp, tp, pp, vpp, micro_batch
            and recompute, with experts ep too. dp follows from the other sizes unless it is fixed; tp stays within a
            node unless its values are named. ``shares`` and ``modules`` split GPUs over modules (``splits``). Or a
            whole ``Space``.
        fix: axis -> its value, in the place of the job's.
        gpus: their number, in nodes like the job's. None: the job's cluster.
        top: how many of the best are wanted for sure, >= 1.
        rank_by: time of an iteration, tokens/s per GPU, dollars per token (with ``price``), or memory that is left.
        price: of a GPU for an hour [USD].
        framework: ``"megatron"``, ``"torchtitan"`` (``semu.searcher.grid.framework``): only configurations that it can
            run, with its kind of ZeRO where neither job nor axes have one; ``"any"``: all that semu can. None, as for
            ``semu grid``: Megatron-LM's where ``training.software`` says so, else any.
        exhaustive: evaluate every configuration that is not surely too large, without bounds of its time.
        results: SQLite file with what has been evaluated; it is taken from there, and added.
        workers: processes; None: this one, or all cores of an ``engine``. engine: ``"local"`` (processes of this
            machine), ``"ray"`` or an engine (``semu.searcher.engines``); None: ``"local"`` where there are workers.
        progress: called with a line now and then.
    Returns:
        The table. Ctrl-C ends the search: the table then holds what has been evaluated (``ended_by``).
    Raises:
        ConfigError: an unknown axis, one that is fixed and varied, no legal configuration, results of another job.
    """
    order = _rank_by(rank_by, price)
    check_integer(top, "top")
    check_integer(1 if workers is None else workers, "workers")
    begin = time.monotonic()
    base = job if gpus is None else with_gpus(job, gpus)
    whose = framework_of(framework, base)
    space = vary if isinstance(vary, Space) else Space.of(base, vary, fix, framework_values(whose, base))
    tell = progress or (lambda _: None)
    tell("looking for legal configurations")
    with without_collector():
        legal = legal_points(base, space, tell, whose)
    if not legal.points:
        raise _none_legal(base, legal)
    with ExitStack() as stack:
        store = None
        if results is not None:
            from semu.searcher.grid.content import content_hash
            from semu.searcher.grid.store import ResultStore

            label = f"{base.model.name} on {base.cluster.label()}, global batch {base.training.global_batch}"
            store = stack.enter_context(ResultStore(results, content_hash(base), label))
        hunt = Hunt(base, space, order, top, price, _engine(engine, workers), tell, begin)
        if store is not None:
            hunt.outcomes.update(store.known(legal.points))
            hunt.reused, hunt.keep = len(hunt.outcomes), store.add
        return hunt.run(legal, is_exhaustive=exhaustive)


def _rank_by(rank_by: RankBy | str, price: float | None) -> RankBy:
    chosen = check_member(rank_by, RankBy, "rank_by", "order")
    if price is not None:
        check_number(price, "price", "a price", most=1e9, is_above=True)
    if chosen is RankBy.COST and price is None:
        raise ConfigError(
            "cost per token without a price", where="price", expected="dollars for a GPU and an hour", nearest=2.0
        )
    return chosen


def _engine(engine: Engine | str | None, workers: int | None) -> Engine:
    if engine is not None and not isinstance(engine, str):
        return engine
    if engine is None and workers in (None, 1):
        return make_engine("serial")
    return make_engine(engine or "local", workers=workers)


def _none_legal(job: TrainingJob, legal: Legal) -> ConfigError:
    """The rule that cut the last of the combinations is the tightest one."""
    last = legal.cuts[-1]
    said = f"; {last.example}" if last.example else ""
    return ConfigError(
        f"no legal configuration: the last {last.count:,} of {legal.total:,} combinations were cut because "
        f"{last.says}{said}",
        where=f"grid, {last.rule.value}",
        expected=f"axes with a legal configuration on {job.cluster.num_gpus} GPUs, global batch "
        f"{job.training.global_batch}" + ("" if last.asked is None else ', or framework "any"'),
        got=", ".join(f"{cut.count:,} by {cut.rule.value}" for cut in legal.cuts),
    )
