"""A layout under a ``StagePlan``: the variants of its chunks, and which of them every (sub-)microbatch runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from semu import memo
from semu.compile.chunk import ChunkStages
from semu.compile.layout import Layout, ModelCut
from semu.compile.model_memo import cut_key, state_of, trace_key
from semu.compile.recipe.recipe import Recipe
from semu.compile.recipe.sub_microbatches import SubMicrobatches, check_symbols
from semu.compile.recipe.variants import TracedVariants, check_alike, join_variant, symbols_of_module, told_variants
from semu.compile.template_cache import JoinedLibrary
from semu.errors import ScheduleError
from semu.records import dataclass
from semu.schedule.stage_plan import StagePlan

I64 = NDArray[np.int64]


def plan_layout(layout: Layout, plan: StagePlan, cutting: SubMicrobatches) -> Layout:
    """A layout under a plan.

    Args:
        layout: of ``planned_job``, without a plan. plan: what to run. cutting: of the batch.
    Raises:
        ScheduleError: variants or choices for other chunks, layers or parts than there are.
        ConfigError: variants that this version cannot tell apart.
    """
    if not cutting.modules and not any(plan.variants):  # orders alone: the chunks are those of the layout
        base = layout.recipe
        numbers = [(number,) for number in range(len(layout.chunks))]
        return replace(layout, recipe=replace(base, plan=plan, choice=_choice(plan, base.parts, numbers)))
    joined = _joined(layout, plan, cutting)
    cut = ModelCut(joined.chunks, layout.cut.num_ranks)
    parts = tuple(_parts(layout, cutting, chunk.module) for chunk in layout.chunks)
    choice = _choice(plan, parts, joined.numbers)
    recipe = Recipe(plan, cutting, (*joined.chunks, *joined.more), joined.numbers, parts, choice)
    result = Layout(layout.job, layout.mesh, joined.joined.library, joined.joined.streams, cut, recipe)
    if not joined.is_checked:
        for module in cutting.modules.values():
            check_symbols(module, symbols_of_module(result, module.name))
        joined.is_checked = True
    return result


@dataclass(eq=False)
class _Joined:
    """What a plan makes of a layout whatever is in the batch.

    Attributes:
        joined: library of all templates. chunks: the first variant of each. more: their further variants. numbers: as
            ``Recipe``.
        is_checked: modules that cut their items can do so.
    """

    joined: JoinedLibrary
    chunks: tuple[ChunkStages, ...]
    more: tuple[ChunkStages, ...]
    numbers: tuple[tuple[int, ...], ...]
    is_checked: bool = False


_JOINED = memo.ScopedTable[_Joined]("variants of the chunks of a model's state, by settings, variants and cuts", 64)
"""A planner asks for the same ones batch after batch."""


_VARIANTS = memo.ScopedTable[TracedVariants]("blocks of a model's state under every strategy, by settings", 16)
"""A search cuts one model several ways, and asks of each cut what some strategies cost, then others."""


def _joined(layout: Layout, plan: StagePlan, cutting: SubMicrobatches) -> _Joined:
    """The variants of all chunks; remembered where the model hides nothing."""
    job, state = layout.job, state_of(layout.job.model)
    traced_key = trace_key(job, layout.mesh, has_experts=state.has_experts, reads_replicas=state.reads_replicas)
    chunks_key = cut_key(job)
    cut: tuple[object, ...] = tuple((name, own.streams) for name, own in sorted(cutting.modules.items()))
    cut += tuple(sorted(cutting.readers))
    key = (traced_key, chunks_key, plan.variants, cut)
    is_keyed = traced_key is not None and chunks_key is not None and state.is_fixed
    joined_before = _JOINED.of(state).peek(key) if is_keyed else None
    if joined_before is not None:
        return joined_before
    variants = told_variants(layout, plan)
    strategies = tuple(sorted({word for own in variants for words in own for word in words}))
    is_remembered = traced_key is not None and state.is_fixed
    traced = _VARIANTS.of(state).peek((traced_key, strategies)) if is_remembered else None
    if traced is None:
        traced = TracedVariants(job, strategies)
        if is_remembered and traced.is_lasting:
            _VARIANTS.of(state).put((traced_key, strategies), traced)
    joined = traced.joined()
    chunks: list[ChunkStages] = []
    more: list[ChunkStages] = []
    numbers: list[list[int]] = []
    for number, base in enumerate(layout.chunks):
        own = [join_variant(layout, cutting, traced, joined, base, None, chunks)] if not variants[number] else []
        for words in variants[number]:
            own.append(join_variant(layout, cutting, traced, joined, base, words, chunks))
        check_alike(layout, cutting, own)
        chunks.append(own[0])
        numbers.append([number, *range(len(layout.chunks) + len(more), len(layout.chunks) + len(more) + len(own) - 1)])
        more += own[1:]
    made = _Joined(joined, tuple(chunks), tuple(more), tuple(map(tuple, numbers)))
    return _JOINED.get(state, key, lambda: made) if is_keyed and traced.is_lasting else made


def chosen(layout: Layout, plan: StagePlan) -> Layout:
    """A layout under a plan, with another choice of variants and other orders."""
    recipe = layout.recipe
    return replace(layout, recipe=replace(recipe, plan=plan, choice=_choice(plan, recipe.parts, recipe.numbers)))


def _parts(layout: Layout, cutting: SubMicrobatches, module: str) -> I64:
    """Numbers of a module's parts, in order."""
    if module not in cutting.modules:
        return np.arange(layout.job.num_microbatches, dtype=np.int64)
    cut = cutting.modules[module]
    found = [cut.split * microbatch + part for microbatch, count in enumerate(cut.counts) for part in range(count)]
    return np.array(found, dtype=np.int64)


def _choice(plan: StagePlan, parts: Sequence[I64], numbers: Sequence[Sequence[int]]) -> tuple[I64, ...]:
    """Per chunk, the kind that each of its parts runs.

    Args:
        parts: per chunk. numbers: per chunk, of its variants in ``Layout.kinds``.
    """
    if plan.choice and len(plan.choice) != len(parts):
        raise ScheduleError(
            "choices for another number of chunks",
            where="plan.choice",
            expected=f"{len(parts)} lists",
            got=len(plan.choice),
        )
    result = []
    for number, mine in enumerate(parts):
        own = plan.choice[number] if plan.choice else (0,) * len(mine)
        if len(own) != len(mine):
            raise ScheduleError(
                "not a choice for every sub-microbatch",
                where=f"plan.choice[{number}]",
                expected=f"{len(mine)} numbers",
                got=len(own),
            )
        if own and max(own) >= len(numbers[number]):
            raise ScheduleError(
                "no such variant",
                where=f"plan.choice[{number}]",
                expected=f"0 to {len(numbers[number]) - 1}",
                got=max(own),
                nearest=len(numbers[number]) - 1,
            )
        result.append(np.array(numbers[number], dtype=np.int64)[np.array(own, dtype=np.int64)])
    return tuple(result)


def described_plan(layout: Layout) -> dict[str, object]:
    """A layout's plan for ``result.json``: sub-microbatches by module, and how often every variant runs."""
    recipe = layout.recipe
    assert recipe.plan is not None
    found: dict[str, object] = {}
    if recipe.cutting.modules:
        found["parts"] = {name: list(module.counts) for name, module in recipe.cutting.modules.items()}
    if recipe.plan.reads:
        found["reads"] = {name: [list(map(list, own)) for own in rows] for name, rows in recipe.plan.reads.items()}
    if any(recipe.plan.variants):
        found["variants"] = [
            [
                {"layers": dict(Counter(words)), "runs": int((choice == kind).sum())}
                for words, kind in zip(variants, kinds, strict=False)
            ]
            for variants, kinds, choice in zip(recipe.plan.variants, recipe.numbers, recipe.choice, strict=True)
        ]
    return found
