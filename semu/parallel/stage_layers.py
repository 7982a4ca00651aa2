"""From a layout to block numbers: ``stage_boundaries``, and how many layers an even share is."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, pairwise

from semu.checks import check_word
from semu.errors import ConfigError
from semu.nn.model import ModalityModule, Model
from semu.parallel.layout import PipelineLayout
from semu.parallel.layout_text import expand_stages
from semu.records import dataclass

MTP_MODULE = "mtp"
"""Name of the modality module that predicts further tokens, where a model has one (``semu_models.text.mtp``)."""
_WHERE = "parallel.layout"
_NUMBERED = re.compile(r"(?:(.*)\.)?\d+")


@dataclass(frozen=True)
class _Chain:
    """Layers among the blocks of one modality module, or of all of them in a row.

    Attributes:
        name: for messages. starts: block at which each layer's part begins, ``starts[0]`` 0 (what stands before the
            first layer is its part). first: the block that is the first layer. behind: one behind the last layer.
        size: blocks.
    """

    name: str
    starts: tuple[int, ...]
    first: int
    behind: int
    size: int

    def cut(self, counts: Sequence[int], where: str) -> list[int]:
        """Where stages end that have the given numbers of layers, in blocks.

        Raises:
            ConfigError: other layers in all than there are, a stage with nothing in it.
        """
        total = len(self.starts)
        if sum(counts) != total:
            last = counts[-1] + total - sum(counts)
            raise ConfigError(
                f"the stages have {sum(counts)} layers together, and {self.name} has {total}",
                where=where,
                expected=f"{total} layers",
                got=" + ".join(map(str, counts)) if len(counts) <= 16 else sum(counts),
                nearest=f"{last} in the last stage" if last >= 0 else None,
            )
        ends = []
        for number, done in enumerate(accumulate(counts), start=1):
            if number == len(counts):
                ends.append(self.size)
            elif done in (0, total):
                ends.append(self.behind if done else self.first)
            else:
                ends.append(self.starts[done])
        for number, (begin, end) in enumerate(zip([0, *ends], ends, strict=False)):
            if begin == end:
                raise ConfigError(
                    f"stage {number} of {self.name} has neither a layer nor anything beside its layers",
                    where=where,
                    expected=">= 1 layer",
                    got=counts[number],
                    nearest=1,
                )
        return ends


def stage_boundaries(model: Model, layout: PipelineLayout, pp: int, vpp: int) -> list[int]:
    """Cut a model as a layout says.

    Args:
        model: its modality modules' blocks, in order, are what is cut. layout: empty: evenly by layers.
        pp, vpp: pipeline ranks, virtual stages per rank.
    Returns:
        pp x vpp + 1 boundaries among the blocks of all modules, as ``semu.parallel.partition``.
    Raises:
        ConfigError: layers that do not add up or do not divide, a module that the layout does not name.
    """
    layout.check_stages(pp, vpp)
    chains = [_chain(module) for module in model.modules]
    if layout.modules is not None:
        return _by_module(chains, layout, pp * vpp)
    if len(chains) == 2 and chains[1].name == MTP_MODULE:
        return [0, *_before_predictions(chains[0], chains[1], layout, pp, vpp)]
    if layout.stages is not None or layout.layers is not None:
        key = "stages" if layout.stages is not None else "layers"
        if len(chains) > 1:
            names = ", ".join(chain.name for chain in chains)
            raise ConfigError(
                f"{key} is for a model of one modality module, and {model.name} has {len(chains)}",
                where=f"{_WHERE}.{key}",
                expected=f"layout.modules with layers of {names}",
                got=len(chains),
            )
        if layout.stages is not None:
            stages = expand_stages(layout.stages, f"{_WHERE}.stages")
            _check_predictions(stages, 0)
            counts = [stage.count("t") for stage in stages]
        else:
            counts = list(layout.layers or ())
        return [0, *chains[0].cut(counts, f"{_WHERE}.{key}")]
    whole = _joined(model.name, chains)
    where = _WHERE if layout != PipelineLayout() else "parallel.partition"
    return [0, *whole.cut(layer_counts(len(whole.starts), layout, pp, vpp), where)]


def _before_predictions(chain: _Chain, further: _Chain, layout: PipelineLayout, pp: int, vpp: int) -> list[int]:
    """Where stages end if further tokens are predicted: their layers stand where the text says m, else in the last
    stage, in addition to its share (Megatron-LM)."""
    if layout.stages is not None:
        where = f"{_WHERE}.stages"
        stages = expand_stages(layout.stages, where)
        _check_predictions(stages, len(further.starts))
        counts = [stage.count("t") + stage.count("m") for stage in stages]
        return _joined(chain.name, [chain, further]).cut(counts, where)
    whole = replace(chain, size=chain.size + further.size)
    if layout.layers is not None:
        return whole.cut(layout.layers, f"{_WHERE}.layers")
    where = _WHERE if layout != PipelineLayout() else "parallel.partition"
    return whole.cut(layer_counts(len(chain.starts), layout, pp, vpp), where)


def _check_predictions(stages: Sequence[str], layers: int) -> None:
    """Refuse another number of multi-token-prediction layers than the model has."""
    named = sum(stage.count("m") for stage in stages)
    if named != layers:
        raise ConfigError(
            f"the stages have {named} layers of multi-token prediction (m), and the model has {layers}",
            where=f"{_WHERE}.stages",
            expected=f"{layers} m behind the layers",
            got=named,
            nearest=layers,
        )


def layer_counts(layers: int, layout: PipelineLayout, pp: int, vpp: int) -> list[int]:
    """Layers of each of the pp x vpp stages: evenly, but for what ``first``, ``last`` and the switches say.

    Raises:
        ConfigError: the rest does not divide.
    Source:
        Megatron-LM, ``get_num_layers_to_build``: a rank's layers are divided by its virtual stages; first and last are
        ranks, the switches take one layer off the first and the last stage.
    """
    ends = {rank: count for rank, count in ((0, layout.first), (pp - 1, layout.last)) if count is not None}
    if pp == 1 and ends:
        raise ConfigError("first and last rank are the same", where=_WHERE, expected="pp >= 2", got="pp = 1")
    others = pp - len(ends)
    taken = sum(ends.values())
    extra = layout.account_for_embedding + layout.account_for_loss
    if others:
        step = others if ends else pp * vpp
        rest = layers - taken + extra
        if rest % step or rest < 0:
            raise _uneven(layers, layout, pp, vpp, step)
        ends = dict.fromkeys(range(pp), rest // others) | ends
    for rank, count in ends.items():
        if count % vpp:
            raise ConfigError(
                f"the {count} layers of rank {rank} do not divide into {vpp} virtual stages",
                where=_WHERE if layout != PipelineLayout() else "parallel.partition",
                expected=f"a multiple of {vpp}",
                got=count,
                nearest=count // vpp * vpp or vpp,
            )
    counts = [ends[rank] // vpp for _ in range(vpp) for rank in range(pp)]
    counts[0] -= layout.account_for_embedding
    counts[-1] -= layout.account_for_loss
    return counts


def _uneven(layers: int, layout: PipelineLayout, pp: int, vpp: int, step: int) -> ConfigError:
    """Why the layers do not divide, and what would."""
    key = "first" if layout.first is not None else "last" if layout.last is not None else None
    if key is not None:
        other = (layout.last if key == "first" else None) or 0
        value = getattr(layout, key)
        legal = [n for n in range(layers - other + 1) if (layers - other - n) % step == 0]
        return ConfigError(
            f"{layers} layers but those of the first and last rank do not divide among {step} ranks",
            where=f"{_WHERE}.{key}",
            expected=f"a rest that is a multiple of {step}",
            got=value,
            nearest=min(legal, key=lambda n: (abs(n - value), n)) if legal else None,
        )
    extra = layout.account_for_embedding + layout.account_for_loss
    counted = f"{layers} layers" + (f" and {extra} for embedding and loss" if extra else "")
    sizes = [n for n in range(1, layers + 1) if (layers + extra) % (pp * n) == 0]
    ranks = [n for n in range(1, layers + 1) if (layers + extra) % (n * vpp) == 0]
    nearest = None
    if sizes and vpp > 1:
        nearest = f"vpp = {min(sizes, key=lambda n: abs(n - vpp))}"
    elif ranks:
        nearest = f"pp = {min(ranks, key=lambda n: abs(n - pp))}"
    return ConfigError(
        f"{counted} do not divide into pp x vpp = {pp} x {vpp} stages",
        where="parallel.partition" if layout == PipelineLayout() else _WHERE,
        expected=f"a multiple of {pp * vpp}",
        got=layers + extra,
        nearest=nearest,
    )


def _by_module(chains: Sequence[_Chain], layout: PipelineLayout, num_stages: int) -> list[int]:
    """Boundaries where every module has a list."""
    counts_of = layout.modules or {}
    names = [chain.name for chain in chains]
    for name in counts_of:
        check_word(name, names, "modality module", f"{_WHERE}.modules.{name}")
    for name in names:
        if name not in counts_of:
            raise ConfigError(
                f"no layers for the module {name}", where=f"{_WHERE}.modules", expected=f"{name} = [...]", got="nothing"
            )
    boundaries = [0]
    if len(chains) == 1 or any(len(counts) != num_stages for counts in counts_of.values()):
        for chain in chains:
            ends = chain.cut(counts_of[chain.name], f"{_WHERE}.modules.{chain.name}")
            boundaries += [boundaries[-1] + end for end in ends]
        return boundaries
    return _side_by_side(chains, layout, num_stages)


def _side_by_side(chains: Sequence[_Chain], layout: PipelineLayout, num_stages: int) -> list[int]:
    """Boundaries where every module has an entry for every stage, 0 where it is not in it."""
    counts_of = layout.modules or {}
    ends = [0] * num_stages
    reached = 0
    for chain in chains:
        counts, where = counts_of[chain.name], f"{_WHERE}.modules.{chain.name}"
        used = [stage for stage, count in enumerate(counts) if count]
        if not used or used != list(range(used[0], used[-1] + 1)):
            raise ConfigError(
                f"the stages of {chain.name} are not next to one another",
                where=where,
                expected="zeros only before and behind",
                got=list(counts),
            )
        if used[0] < reached:
            raise ConfigError(
                f"{chain.name} begins in stage {used[0]}, before the module in front of it ends",
                where=where,
                expected=f"zeros before stage {reached}",
                got=list(counts),
                nearest=reached,
            )
        cut = [0, *chain.cut([counts[stage] for stage in used], where)]
        for stage, (begin, end) in zip(used, pairwise(cut), strict=True):
            ends[stage] += end - begin
        reached = used[-1]
    if 0 in ends:
        number = ends.index(0)
        raise ConfigError(
            f"stage {number} is empty, which is not modelled by this version",
            where=f"{_WHERE}.modules",
            expected="a layer of some module in every stage",
            got=0,
            nearest=1,
        )
    return [0, *accumulate(ends)]


def _chain(module: ModalityModule) -> _Chain:
    names = [path.removeprefix(module.name).removeprefix(".") for path, _ in module.blocks()]
    families = [match[1] or "" if (match := _NUMBERED.fullmatch(name)) else None for name in names]
    sizes = Counter(family for family in families if family is not None)
    longest = max(sizes, key=sizes.__getitem__) if sizes else None
    layers = [number for number, family in enumerate(families) if family == longest]
    return _Chain(module.name, (0, *layers[1:]), layers[0], layers[-1] + 1, len(names))


@dataclass(frozen=True)
class LayerPart:
    """A layer of a modality module with what goes with it.

    Attributes:
        first, last: its blocks are first <= i < last; with the first layer goes what stands before it, with the last
            one what stands behind it. layer: which of these blocks is the layer.
    """

    first: int
    last: int
    layer: int


def layer_parts(module: ModalityModule) -> list[LayerPart]:
    """A module's blocks, layer by layer: what ``PipelineLayout`` counts."""
    chain = _chain(module)
    layers = (chain.first, *chain.starts[1:])
    ends = (*chain.starts[1:], chain.size)
    return [LayerPart(*part) for part in zip(chain.starts, ends, layers, strict=True)]


def _joined(name: str, chains: Sequence[_Chain]) -> _Chain:
    """All modules in a row; a module's first layer begins with what stands before it."""
    if len(chains) == 1:
        return chains[0]
    offsets = [0, *accumulate(chain.size for chain in chains)]
    starts = [offset + start for offset, chain in zip(offsets, chains, strict=False) for start in chain.starts]
    return _Chain(name, tuple(starts), chains[0].first, offsets[-2] + chains[-1].behind, offsets[-1])
