"""Images and clips of a batch must be those that the model's encoders make tokens of (``semu.nn.merging``)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from semu.errors import ConfigError
from semu.job import TrainingJob
from semu.nn.merging import Merging
from semu.workload.batch import Microbatch


def check_items(job: TrainingJob, microbatches: Sequence[Microbatch]) -> None:
    """Refuse a batch that contradicts the model.

    Raises:
        ConfigError: an item of another size than the encoder takes, or that makes another number of tokens; streams
            with different numbers of items; fewer tokens of text than items take places among.
    """
    seen: dict[int, Microbatch] = {id(item): item for item in microbatches}
    for merging in job.model.mergings:
        for item in seen.values():
            if merging.stream in item.lengths:
                _check(job, merging, item)
    merged = [merging.tokens for merging in job.model.mergings if merging.tokens is not None]
    for item in seen.values():
        taken = sum(item.tokens(name) for name in merged)
        if "text" in item.lengths and item.tokens("text") < taken:
            raise ConfigError(
                "the text has fewer tokens than its images and clips take places",
                where="batch",
                expected=f">= {taken} tokens of text, those of {' and '.join(merged)} included",
                got=item.tokens("text"),
            )


def _check(job: TrainingJob, merging: Merging, item: Microbatch) -> None:
    lengths, name = item.lengths[merging.stream], merging.tokens
    tokens = item.lengths.get(name) if name is not None else None
    count = len(tokens) if tokens is not None else 0
    if name is not None and count != len(lengths):
        raise ConfigError(
            f"{len(lengths)} {merging.item}s enter the encoder, {count} the backbone",
            where="batch",
            expected=f"as many lengths of {name!r} as of {merging.stream!r}",
            got=f"{len(lengths)} and {count}",
        )
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
