"""Images and clips of a batch must be those that the model's encoders make tokens of (``semu.nn.merging``)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from semu import memo
from semu.costs.evaluation import BatchShapes
from semu.errors import ConfigError
from semu.job import TrainingJob
from semu.nn.merging import Merging
from semu.workload.batch import Microbatch


def check_modality_inputs(job: TrainingJob, microbatches: Sequence[Microbatch], shapes: BatchShapes) -> None:
    """Refuse a batch that contradicts the model.

    Raises:
        ConfigError: an item of another size than the encoder takes, or that makes another number of tokens; streams
            with different numbers of items; fewer tokens of text than items take places among.
    """
    if not job.model.mergings:
        return
    _FITTING.get((job.model.mergings, memo.Same(microbatches)), lambda: _check_items(job, microbatches))
    columns = shapes.columns
    merged = [merging.tokens for merging in job.model.mergings if f"{merging.tokens}.tokens" in columns]
    if not merged or "text.tokens" not in columns:
        return
    taken = np.sum([columns[f"{name}.tokens"] for name in merged], axis=0)
    short = np.flatnonzero(columns["text.tokens"] < taken)
    if short.size:
        raise ConfigError(
            "the text has fewer tokens than its images and clips take places",
            where="batch",
            expected=f">= {int(taken[short[0]])} tokens of text, those of {' and '.join(map(str, merged))} included",
            got=int(columns["text.tokens"][short[0]]),
        )


_FITTING = memo.Table[bool]("microbatches whose items encoders take, by what these make of them", 32)


def _check_items(job: TrainingJob, microbatches: Sequence[Microbatch]) -> bool:
    items = list({id(item): item for item in microbatches}.values())
    for merging in job.model.mergings:
        _check(job, merging, [item for item in items if merging.stream in item.lengths])
    return True


def _check(job: TrainingJob, merging: Merging, items: Sequence[Microbatch]) -> None:
    name = merging.tokens
    if not items:
        return
    for item in items if name is not None else ():
        entering, leaving = len(item.lengths[merging.stream]), len(item.lengths.get(name or "", ()))
        if entering != leaving:
            raise ConfigError(
                f"{entering} {merging.item}s enter the encoder, {leaving} the backbone",
                where="batch",
                expected=f"as many lengths of {name!r} as of {merging.stream!r}",
                got=f"{entering} and {leaving}",
            )
    lengths = np.concatenate([item.lengths[merging.stream] for item in items])
    tokens = np.concatenate([item.lengths[name] for item in items]) if name is not None else None
    number = merging.misfit(lengths, tokens)
    if number is None:
        return
    length = int(lengths[number])
    got = f"{length} {merging.unit}" + (f", {int(tokens[number])} tokens" if tokens is not None else "")
    only = merging.length if merging.length is not None else max(length // merging.multiple, 1) * merging.multiple
    made = int(merging.tokens_of(np.array([only]))[0])
    nearest = f"{only} {merging.unit}" + (f", {made} tokens" if name is not None else "")
    if merging.stream == "vision" and hasattr(job.batch, "patches_per_image"):
        nearest = f"patches_per_image = {only}, tokens_per_image = {made}"
    what = "at most " if merging.is_padded else ""
    raise ConfigError(
        f"the batch contradicts {job.model.name}: {'an' if merging.item[0] in 'aeiou' else 'a'} {merging.item} of "
        f"{length} {merging.unit} does not make these tokens",
        where="batch",
        expected=f"{only} {merging.unit}" + (f" and {what}{made} tokens" if name is not None else ""),
        got=got,
        nearest=nearest,
    )
