"""Which layers of a chunk full recomputation covers: the first N, or all of them in groups of N, as Megatron-LM.

Which layers those are is known only when the model has been cut, so such a job is traced twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from semu.compile.tracer import Block, TracedUnit
from semu.errors import ConfigError
from semu.job import RecomputeMethod, Training, TrainingJob
from semu.nn.module import Module, Sequential
from semu.parallel.pipeline import Chunk


def recompute_units(
    job: TrainingJob, blocks: Sequence[Sequence[Block]], chunks: Sequence[Chunk]
) -> tuple[list[list[TracedUnit]], list[Chunk]]:
    """What to trace for ``training.recompute_layers``, and the chunks over it.

    Args:
        job: with ``recompute_layers``. blocks: of every modality module. chunks: in order of data flow.
    Returns:
        The units of every module, and the chunks with their bounds counted in units.
    Raises:
        ConfigError: more layers than any chunk has.
    """
    training = job.training
    assert training.recompute_layers is not None
    most = max(sum(b.is_layer for b in blocks[c.module][c.first : c.last]) for c in chunks)
    if training.recompute_layers > most:
        raise ConfigError(
            f"recompute_layers = {training.recompute_layers}, and no stage has more than {most} layers",
            where="training.recompute_layers",
            expected=f"1 to {most}" if most else 'a model with layers in an nn.Sequential, or recompute = "none"',
            got=training.recompute_layers,
            nearest=most or None,
        )
    units: list[list[TracedUnit]] = [[] for _ in job.model.modules]
    moved: list[Chunk] = []
    for chunk in chunks:
        module, own = job.model.modules[chunk.module], units[chunk.module]
        first = len(own)
        members = module.blocks()[chunk.first : chunk.last]
        layers = [block.is_layer for block in blocks[chunk.module][chunk.first : chunk.last]]
        own.extend(_units(training, module.name, members, layers))
        moved.append(replace(chunk, first=first, last=len(own)))
    return units, moved


def _units(
    training: Training, module: str, members: Sequence[tuple[str, Module]], layers: Sequence[bool]
) -> list[TracedUnit]:
    """Units of one chunk. ``layers`` says which of its blocks can be recomputed."""
    count = training.recompute_layers or 1
    if training.recompute_method is RecomputeMethod.BLOCK:
        chosen = [number for number, is_layer in enumerate(layers) if is_layer][:count]
        return [TracedUnit(path, body, number in chosen) for number, (path, body) in enumerate(members)]
    units: list[TracedUnit] = []
    group: list[tuple[str, Module]] = []
    for (path, body), is_layer in zip(members, layers, strict=True):
        if not is_layer or len(group) == count:
            units += _grouped(module, group)
            group = []
        if is_layer:
            group.append((path, body))
        else:
            units.append(TracedUnit(path, body, is_recomputed=False))
    return units + _grouped(module, group)


def _grouped(module: str, group: Sequence[tuple[str, Module]]) -> list[TracedUnit]:
    """Layers that are recomputed together, as one unit under the module's path."""
    if len(group) < 2:
        return [TracedUnit(path, body, is_recomputed=True) for path, body in group]
    body = Sequential({path.removeprefix(f"{module}."): layer for path, layer in group})
    return [TracedUnit(module, body, is_recomputed=True)]
