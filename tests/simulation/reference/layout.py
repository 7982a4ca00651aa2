"""Layouts for the slow reference: blocks are dealt to the stages one by one."""

from __future__ import annotations

import re
from itertools import combinations, pairwise, product

from semu.job import TrainingJob


def is_layer(path: str) -> bool:
    """Whether a block is one of its module's numbered layers."""
    return re.search(r"\.(layers\.)?\d+$", path) is not None


def spelt_out(text: str) -> str:
    """A Megatron-LM layout without repetitions: the innermost ones are written out first, again and again."""
    text = re.sub(r"[\s,]", "", text)
    while "*" in text or "(" in text:
        text = re.sub(
            r"\(([^()]*)\)(?:\*(\d+))?|(.)\*(\d+)",
            lambda m: (m[1] or "") * int(m[2] or 1) if m[3] is None else m[3] * int(m[4]),
            text,
            count=1,
        )
    return text


def stage_of_blocks(job: TrainingJob, paths: list[tuple[int, str]]) -> list[int]:
    """The stage of every block.

    Args:
        job: with a layout, or cut evenly. paths: (modality module, path) of every block, in order.
    """
    blocks = [[path for module, path in paths if module == number] for number in range(len(job.model.modules))]
    pieces = _pieces(job, [sum(map(is_layer, own)) for own in blocks])
    result: list[int] = []
    for number, own in enumerate(blocks):
        left = list(own)
        mine = [(stage, count) for stage, module, count in pieces if module == number]
        for stage, count in mine:
            taken: list[str] = []
            while left and (sum(map(is_layer, taken)) < count or (count == 0 and not is_layer(left[0]))):
                taken.append(left.pop(0))
            if (stage, count) == mine[-1]:
                taken, left = taken + left, []
            result += [stage] * len(taken)
    return result


def _pieces(job: TrainingJob, layers: list[int]) -> list[tuple[int, int, int]]:
    """(stage, module, layers) in order of data flow."""
    layout, num_stages = job.parallel.layout, job.parallel.pp * job.parallel.vpp
    predicts = job.model.modules[-1].name == "mtp"
    if layout is not None and layout.stages is not None:
        texts = spelt_out(layout.stages).split("|")
        pieces = [(stage, 0, text.count("t")) for stage, text in enumerate(texts) if "t" in text or not predicts]
        further = [(stage, 1, text.count("m")) for stage, text in enumerate(texts) if "m" in text]
        return pieces + further + ([(len(texts) - 1, 1, 0)] if predicts and "m" not in texts[-1] else [])
    if layout is not None and layout.layers is not None:
        pieces = [(stage, 0, count) for stage, count in enumerate(layout.layers)]
        return [*pieces, (num_stages - 1, 1, layers[1])] if predicts else pieces
    if layout is not None and layout.modules is not None:
        lists = [layout.modules[module.name] for module in job.model.modules]
        if sum(map(len, lists)) == num_stages:
            flat = [(module, count) for module, counts in enumerate(lists) for count in counts]
            return [(stage, module, count) for stage, (module, count) in enumerate(flat)]
        return [(stage, module, n) for module, counts in enumerate(lists) for stage, n in enumerate(counts) if n]
    if predicts and layout is None:
        pieces = [(stage, 0, count) for stage, count in enumerate(_even(job, layers[0]))]
        return [*pieces, (num_stages - 1, 1, layers[1])]
    pieces = []
    owner = [module for module, count in enumerate(layers) for _ in range(count)]
    for stage, count in enumerate(_even(job, len(owner))):
        mine, owner = owner[:count], owner[count:]
        held = mine or [0 if stage == 0 else len(layers) - 1]
        pieces += [(stage, module, mine.count(module)) for module in dict.fromkeys(held)]
    return pieces


def _even(job: TrainingJob, total: int) -> list[int]:
    """Layers per stage by trying all sizes of an inner rank."""
    layout, pp, vpp = job.parallel.layout, job.parallel.pp, job.parallel.vpp
    for size in range(0, total + 3, vpp):
        ranks = [size] * pp
        if layout is not None and layout.first is not None:
            ranks[0] = layout.first
        if layout is not None and layout.last is not None:
            ranks[-1] = layout.last
        stages = [ranks[rank] // vpp for _ in range(vpp) for rank in range(pp)]
        if layout is not None and layout.account_for_embedding:
            stages[0] -= 1
        if layout is not None and layout.account_for_loss:
            stages[-1] -= 1
        if sum(stages) == total:
            return stages
    raise AssertionError("no even cut")


def module_groups(job: TrainingJob, module: list[int], weights: list[int]) -> list[int]:
    """The stage of every block where modules have segments or ranks of their own, by trying all shares and all cuts.

    Args:
        job: its segments are not mixed. module, weights: of every block, in order.
    """
    parallel, count = job.parallel, len(job.model.modules)
    total, each = (parallel.vpp, parallel.pp) if parallel.segments == "separated" else (parallel.pp, 1)
    own = [[w for w, m in zip(weights, module, strict=True) if m == number] for number in range(count)]

    def best(number: int, share: int) -> tuple[int, int, tuple[int, ...]]:
        def score(cuts: tuple[int, ...]) -> tuple[int, int, tuple[int, ...]]:
            parts = [sum(own[number][a:b]) for a, b in pairwise((0, *cuts, len(own[number])))]
            return max(parts), sum(part**2 for part in parts), cuts

        return min(map(score, combinations(range(1, len(own[number])), share * each - 1)))

    told = parallel.shares
    together = [n for n, m in enumerate(job.model.modules) if m.role.value == "encoder"]
    once = together[1:] if parallel.segments == "colocated" else []  # these have the ranks of the first encoder
    shares = [
        item
        for item in product(range(1, total + 1), repeat=count)
        if sum(share for n, share in enumerate(item) if n not in once) == total
        and all(item[n] == item[together[0]] for n in once)
        and all(n * each <= len(blocks) for n, blocks in zip(item, own, strict=True))
        and (not told or list(item) == [told[m.name] for m in job.model.modules])
    ]
    chosen = min(shares, key=lambda item: (max(best(i, n)[0] for i, n in enumerate(item)), [-n for n in item]))
    result: list[int] = []
    for number, share in enumerate(chosen):
        cuts = best(number, share)[2]
        before = range(together[0] if number in once else number)
        start = sum(chosen[n] for n in before if n not in once) * each
        result += [start + sum(place >= cut for cut in cuts) for place in range(len(own[number]))]
    return result
