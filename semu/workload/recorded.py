"""Batches whose samples come from a metadata file: ``FileBatch``, ``file_batch``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from semu.checks import check_count, check_member, check_seed, check_switch
from semu.errors import ConfigError
from semu.records import dataclass
from semu.workload.batch import DEFAULT_TEXT_SEQ_LEN, AbstractBatch, Microbatch, check_request
from semu.workload.metadata import STREAMS, Contents, Metadata, read_metadata
from semu.workload.mixed import DEFAULT_MIXED_SEQ_LEN
from semu.workload.samples import Placement, Samples
from semu.workload.t2v import MAX_CLIPS, MAX_SECONDS, Clips, VideoTokenizer, check_max_seconds
from semu.workload.vlm import DEFAULT_VLM_SEQ_LEN

_SEQ_LEN: Mapping[Contents, int | None] = {
    Contents.TEXT: DEFAULT_TEXT_SEQ_LEN,
    Contents.VLM: DEFAULT_VLM_SEQ_LEN,
    Contents.T2V: None,
    Contents.MIXED: DEFAULT_MIXED_SEQ_LEN,
}


@dataclass(frozen=True)
class FileBatch(AbstractBatch):
    """Samples of a metadata file: text and images packed in the file's order, clips grouped by similar durations.

    A sample is used once; a file with too few is an error, not a loop. The last sequence may be partly filled.

    Attributes:
        metadata: the file's contents.
        seed: of the order of clip groups, >= 0; text and images keep the file's order.
        images_max: largest number of images in a packed sequence; None: what the context holds.
        attend_across_samples: attention runs over the whole packed sequence instead of inside each sample.
        max_seconds, max_clips: limits of a clip group; a longer clip is an error.
        tokenizer: frame rate, latent compression and patches of clips.
        audio_in_text: clips of sound take places among the text's tokens; false: the text attends to them.
        placement: where in the text of its sample an item stands; None: as recorded, in samples without a record
            before the text.
    Raises:
        ConfigError: a bad option, or places to be read from a file without any.
    """

    metadata: Metadata
    seed: int = 0
    images_max: int | None = None
    attend_across_samples: bool = False
    max_seconds: float = MAX_SECONDS
    max_clips: int = MAX_CLIPS
    tokenizer: VideoTokenizer = field(default_factory=VideoTokenizer)
    audio_in_text: bool = True
    placement: Placement | str | None = None

    def __post_init__(self) -> None:
        check_seed(self.seed, "batch.seed")
        if self.placement is not None:
            object.__setattr__(self, "placement", check_member(self.placement, Placement, "batch.placement"))
        if self.placement is Placement.RECORDED and not any(sample.layout for sample in self.metadata.samples):
            raise ConfigError(
                "no sample of the file says where its images stand",
                where="batch.placement",
                expected='the key "layout" in the file, or prefix or embedded',
                got=Placement.RECORDED.value,
                nearest=Placement.PREFIX.value,
            )
        if self.images_max is not None:
            check_count(self.images_max, "batch.images_max")
        check_switch(self.attend_across_samples, "batch.attend_across_samples")
        check_max_seconds(self.max_seconds, self.tokenizer)
        check_count(self.max_clips, "batch.max_clips")

    @property
    def default_seq_len(self) -> int | None:
        """2048 (text), 8192 (VLM, mixed), None (T2V: groups are limited by playing time)."""
        return _SEQ_LEN[self.metadata.contents]

    @property
    def input_streams(self) -> tuple[str, ...]:
        """Text, and what comes with it."""
        if self.metadata.contents is Contents.MIXED:
            return ("text", *(name for name, items in self._samples.items.items() if items.lengths.size))
        return STREAMS[self.metadata.contents]

    def microbatches(self, count: int, micro_batch: int, seq_len: int | None = None) -> list[Microbatch]:
        """``count`` microbatches from the beginning of the file.

        Raises:
            ConfigError: a sample larger than the context (``where`` is its line), or too few samples.
        """
        context = self.context_length(seq_len)
        check_request(count, micro_batch, context)
        samples, bounds = self._packed(context)
        if isinstance(samples, Clips):
            self._check_enough(bounds.size - 1, count, micro_batch, "clip groups")
            return samples.microbatches(bounds, count, micro_batch)
        self._check_enough(bounds.size - 1, count, micro_batch, f"packed sequences of {context} tokens")
        return samples.microbatches(bounds, count, micro_batch, self.attend_across_samples)

    def packed(self, seq_len: int | None = None) -> tuple[Samples, NDArray[np.int64]]:
        """The samples of the file, and the bounds of the sequences that they are packed to in its order.

        Args:
            seq_len: as for ``microbatches``.
        Raises:
            ConfigError: a sample larger than the context; clips, which are grouped in another order.
        """
        samples, bounds = self._packed(self.context_length(seq_len))
        if isinstance(samples, Clips):
            raise ConfigError(
                "clips are grouped by duration, not packed", where=self.metadata.path, expected="text, images or sound"
            )
        return samples, bounds

    def capacity(self, micro_batch: int, seq_len: int | None = None) -> int:
        """How many microbatches the file holds; arguments as ``microbatches``.

        Raises:
            ConfigError: a sample larger than the context.
        """
        context = self.context_length(seq_len)
        check_request(1, micro_batch, context)
        return (self._packed(context)[1].size - 1) // micro_batch

    def describe(self) -> dict[str, object]:
        """Kind, file and its checksum, limits that apply."""
        common: dict[str, object] = {
            "kind": "file",
            "path": self.metadata.path,
            "sha256": self.metadata.sha256,
            "contents": self.metadata.contents.value,
            "samples": len(self.metadata.samples),
            "default_seq_len": self.default_seq_len,
        }
        if self.metadata.contents is Contents.T2V:
            return common | {"seed": self.seed, "max_seconds": self.max_seconds, "max_clips": self.max_clips}
        said = {} if self.placement is None else {"placement": Placement(self.placement).value}
        return common | {"images_max": self.images_max, "attend_across_samples": self.attend_across_samples} | said

    def _packed(self, context: int | None) -> tuple[Clips | Samples, NDArray[np.int64]]:
        """Clips in the order of their groups, or other samples, and the bounds of groups or packed sequences."""
        if self.metadata.contents is Contents.T2V or context is None:  # only clips have no default context
            self._check_sizes(self._clips.frames, self.tokenizer.frames(self.max_seconds), "frames", "max_seconds")
            if context is not None:
                self._check_sizes(self._clips.video_tokens, context, "latent tokens", "seq_len")
            return self._clips.group(self.max_seconds, self.max_clips, context, self.seed)
        images_max = self.images_max if "vision" in self._samples.items else None
        self._check_sizes(self._samples.lengths, context, "tokens", "seq_len")
        if images_max is not None:
            self._check_sizes(self._samples.items["vision"].counts, images_max, "images", "images_max")
        return self._samples, self._samples.pack(context, images_max)

    @cached_property
    def _samples(self) -> Samples:
        samples = self.metadata.packable(audio_in_text=self.audio_in_text)
        if self.placement in (None, Placement.RECORDED):
            return samples
        return replace(samples, placement=Placement(self.placement), seed=self.seed, layouts=())

    @cached_property
    def _clips(self) -> Clips:
        return self.metadata.clips(self.tokenizer)

    def _check_sizes(self, sizes: NDArray[np.int64], limit: int, unit: str, key: str) -> None:
        """Refuse the first sample that is larger than a limit, naming the smallest limit that all samples keep."""
        too_large = np.flatnonzero(sizes > limit)
        if not too_large.size:
            return
        first, largest = int(too_large[0]), int(sizes.max())
        raise ConfigError(
            f"a sample of {int(sizes[first])} {unit} is larger than {key} allows",
            where=self.metadata.place(first),
            expected=f"<= {limit} {unit}",
            got=int(sizes[first]),
            nearest=f"{key} = {largest / self.tokenizer.fps if key == 'max_seconds' else largest}",
        )

    def _check_enough(self, have: int, count: int, micro_batch: int, what: str) -> None:
        need, samples = count * micro_batch, len(self.metadata.samples)
        if have >= need:
            return
        about = -(-need * samples // have)
        raise ConfigError(
            f"the file holds fewer samples than the iteration needs ({count} microbatches of {micro_batch})",
            where=self.metadata.path,
            expected=f"{need} {what}, about {about} samples",
            got=f"{have} {what} from {samples} samples",
            nearest=f"{have // micro_batch} microbatches" if have >= micro_batch else None,
        )


def file_batch(
    path: str | Path,
    kind: Contents | str | None = None,
    *,
    seed: int = 0,
    images_max: int | None = None,
    attend_across_samples: bool = False,
    max_seconds: float = MAX_SECONDS,
    max_clips: int = MAX_CLIPS,
    tokenizer: VideoTokenizer | None = None,
    sizes: Mapping[str, tuple[int, int]] | None = None,
    audio_in_text: bool = True,
    placement: Placement | str | None = None,
) -> FileBatch:
    """Samples of a JSONL file (format: ``semu.workload.metadata``); the file is read at once.

    Args:
        path: of the file.
        kind: ``"text"``, ``"vlm"``, ``"t2v"`` or ``"mixed"``: what the file must hold; None: what its keys say.
        sizes: see ``read_metadata``. All others: see ``FileBatch``.
    Raises:
        ConfigError: no such file, no samples in it, a bad line (``where`` is ``file.jsonl:LINE``), a bad option.
    """
    contents = None if kind is None else check_member(kind, Contents, "batch.contents")
    return FileBatch(
        read_metadata(path, contents, sizes),
        seed,
        images_max,
        attend_across_samples,
        max_seconds,
        max_clips,
        tokenizer if tokenizer is not None else VideoTokenizer(),
        audio_in_text,
        placement,
    )
