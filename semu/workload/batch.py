"""What microbatches hold, as lengths only: ``Microbatch``, ``AbstractBatch``, ``TextBatch``, ``shape_columns``.

A microbatch is a set of *streams*; each stream lists the lengths of its sequences:

    text            tokens that enter a language model, image tokens included; one entry per packed sample
                    (T2V: caption tokens, one entry per clip)
    vision          patches that enter the image encoder, one entry per image
    vision_tokens   what the encoder hands to the backbone (merged patches), one entry per image
    video           latent tokens that enter the video decoder, one entry per clip

Attention runs inside a sequence, so that a stream's cost needs two numbers: sum of lengths, sum of squared lengths; and
one more for every window that some attention looks through.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from itertools import permutations
from types import MappingProxyType
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from semu.checks import check_count
from semu.errors import ConfigError
from semu.masks.spans import Spans
from semu.nn.window import MARK, Window
from semu.records import dataclass
from semu.workload.packing import offsets

Lengths: TypeAlias = NDArray[np.int64]

DEFAULT_TEXT_SEQ_LEN = 2048


class Places(Protocol):
    """What stands where in a microbatch's text."""

    def spans(self) -> Spans:
        """Its runs."""


@dataclass(frozen=True, slots=True, init=False, eq=False)
class Microbatch:
    """The contents of one microbatch.

    Args:
        streams: stream name -> length of every sequence in that stream; lengths >= 0, a stream may be empty.
        samples: samples packed into the microbatch, >= 0.
        video_seconds: playing time of all its clips [s], 0 without video.
    Attributes:
        lengths: the streams as read-only arrays, int64[number of sequences].
        places: where images and sounds stand in its text; None: nobody knows.
    Raises:
        ConfigError: a length that is not an integer >= 0.
    """

    lengths: Mapping[str, Lengths]
    samples: int
    video_seconds: float
    places: Places | None

    def __init__(self, streams: Mapping[str, Sequence[int]], samples: int, video_seconds: float = 0.0) -> None:
        lengths: dict[str, Lengths] = {}
        for name, values in streams.items():
            array = np.array(values)
            if array.ndim != 1 or (array.size and (array.dtype.kind not in "iu" or array.min() < 0)):
                raise ConfigError(
                    "not a list of lengths", where=f"microbatch.streams.{name}", expected="integers >= 0", got=values
                )
            lengths[name] = array.astype(np.int64)
            lengths[name].flags.writeable = False
        object.__setattr__(self, "lengths", MappingProxyType(lengths))
        object.__setattr__(self, "samples", samples)
        object.__setattr__(self, "video_seconds", video_seconds)
        object.__setattr__(self, "places", None)

    @classmethod
    def from_arrays(
        cls, lengths: dict[str, Lengths], samples: int, video_seconds: float = 0.0, places: Places | None = None
    ) -> Microbatch:
        """A microbatch over read-only int64 arrays that were checked before; nothing is copied."""
        new = object.__new__(cls)
        object.__setattr__(new, "lengths", MappingProxyType(lengths))
        object.__setattr__(new, "samples", samples)
        object.__setattr__(new, "video_seconds", video_seconds)
        object.__setattr__(new, "places", places)
        return new

    def spans(self, stream: str = "text") -> Spans:
        """The runs of a stream; nothing but text where nobody knows better."""
        if stream == "text" and self.places is not None:
            return self.places.spans()
        return Spans.of_text(self.lengths[stream][self.lengths[stream] > 0])

    @property
    def streams(self) -> Mapping[str, tuple[int, ...]]:
        """Stream name -> length of every sequence, as plain tuples."""
        return {name: tuple(array.tolist()) for name, array in self.lengths.items()}

    def tokens(self, stream: str) -> int:
        """Sum of the lengths of a stream; 0 where the microbatch has no such stream."""
        return int(self.lengths[stream].sum()) if stream in self.lengths else 0

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Microbatch):
            return NotImplemented
        return (
            self.samples == other.samples
            and self.video_seconds == other.video_seconds
            and self.lengths.keys() == other.lengths.keys()
            and all(np.array_equal(array, other.lengths[name]) for name, array in self.lengths.items())
        )

    def __hash__(self) -> int:
        contents = tuple((name, self.lengths[name].tobytes()) for name in sorted(self.lengths))
        return hash((self.samples, self.video_seconds, contents))

    def __reduce__(self) -> tuple[object, ...]:
        places = None if self.places is None else self.places.spans()
        return Microbatch.from_arrays, (dict(self.lengths), self.samples, self.video_seconds, places)

    def __repr__(self) -> str:
        parts = [f"{name}: {array.size} x {array.mean():.4g}" for name, array in self.lengths.items() if array.size]
        return f"Microbatch({', '.join(parts)}; {self.samples} samples)"


@dataclass(frozen=True)
class AbstractBatch(ABC):
    """Where the microbatches of an iteration come from.

    Final classes: ``TextBatch``, ``VlmBatch``, ``T2vBatch``, ``FileBatch``, ``ListedBatch`` and others.
    """

    @abstractmethod
    def microbatches(self, count: int, micro_batch: int, seq_len: int | None = None) -> list[Microbatch]:
        """The first ``count`` microbatches; the same arguments give the same list.

        Args:
            count: number of microbatches (of all data-parallel replicas together), >= 1. The first k microbatches
                do not depend on it.
            micro_batch: items per microbatch, >= 1: sequences (text), packed sequences (VLM), packed clip groups
                (T2V).
            seq_len: context length [tokens]; None: ``default_seq_len``.
        Raises:
            ConfigError: a context too short for the samples, or fewer samples than needed.
        """

    @property
    @abstractmethod
    def default_seq_len(self) -> int | None:
        """Context length [tokens] where the job names none; None: the batch sets no limit."""

    def context_length(self, seq_len: int | None) -> int | None:
        """The context length that is used [tokens]: the job's, or that of the batch where the job names none."""
        return self.default_seq_len if seq_len is None else seq_len

    @property
    def input_streams(self) -> tuple[str, ...]:
        """Streams that a model may read (not ``vision_tokens``, which an encoder makes of ``vision``)."""
        return tuple(name for name in self.microbatches(1, 1)[0].lengths if name != "vision_tokens")

    @abstractmethod
    def describe(self) -> dict[str, object]:
        """What the batch is, for result.json: plain numbers, strings, lists and dicts."""


@dataclass(frozen=True)
class TextBatch(AbstractBatch):
    """Text sequences of equal length, as in language-model pretraining.

    Attributes:
        seq_len: length of a sequence where the job names none [tokens], >= 1.
    Raises:
        ConfigError: seq_len < 1.
    """

    seq_len: int = DEFAULT_TEXT_SEQ_LEN

    def __post_init__(self) -> None:
        check_count(self.seq_len, "batch.seq_len")

    def microbatches(self, count: int, micro_batch: int, seq_len: int | None = None) -> list[Microbatch]:
        """``count`` times ``micro_batch`` sequences of ``seq_len`` tokens."""
        length = self.seq_len if seq_len is None else seq_len
        check_request(count, micro_batch, length)
        return [Microbatch({"text": (length,) * micro_batch}, samples=micro_batch)] * count

    @property
    def input_streams(self) -> tuple[str, ...]:
        """Text."""
        return ("text",)

    @property
    def default_seq_len(self) -> int:
        """``seq_len``."""
        return self.seq_len

    def describe(self) -> dict[str, object]:
        """Kind and length."""
        return {"kind": "text", "default_seq_len": self.seq_len}


text_batch = TextBatch


def check_request(count: int, micro_batch: int, seq_len: int | None) -> None:
    """Validate the arguments of ``AbstractBatch.microbatches``.

    Raises:
        ConfigError: one of them is not an integer >= 1 (``seq_len`` may be None).
    """
    check_count(count, "batch.count")
    check_count(micro_batch, "training.micro_batch")
    if seq_len is not None:
        check_count(seq_len, "training.seq_len")


def shape_columns(
    microbatches: Sequence[Microbatch],
    token_divisor: int,
    parts: int = 1,
    windows: Mapping[str, Sequence[Window]] | None = None,
) -> dict[str, NDArray[np.int64]]:
    """The numbers that operator costs depend on, one column per number.

    Args:
        microbatches: all with the same stream names.
        token_divisor: streams are padded to a multiple of it, >= 1 (``Parallel.token_divisor``).
        parts: chunks into which every sequence is cut, >= 1 (``Parallel.sequence_parts``); each sequence is padded to a
            multiple of it, and ``pairs`` are made of the lengths of chunks.
        windows: stream -> windows of attention over it; ``windows_in`` finds them.
    Returns:
        int64[num_microbatches] per key. For each stream ``s``: ``s.shard`` = ceil(sum of padded lengths /
        token_divisor), ``s.tokens`` = sum of lengths, ``s.pairs`` = sum of squared lengths, ``s.sequences`` = their
        number; for each of its windows ``s.pairs@LABEL``, the pairs inside. For each ordered pair of different streams
        ``a``, ``b`` with equally many sequences in every microbatch: ``a*b.pairs`` = sum of a_i b_i (cross attention,
        a's sequence i on b's sequence i).
    Raises:
        ConfigError: token_divisor < 1, or stream names that differ between microbatches.
    """
    check_count(token_divisor, "token_divisor")
    if not microbatches:
        return {}
    names = list(microbatches[0].lengths)
    expected = microbatches[0].lengths.keys()
    for index, microbatch in enumerate(microbatches):
        if microbatch.lengths.keys() != expected:
            raise ConfigError(
                "microbatches of one iteration hold different streams",
                where=f"microbatch {index}",
                expected=", ".join(names),
                got=", ".join(microbatch.lengths),
            )
    columns: dict[str, NDArray[np.int64]] = {}
    flat: dict[str, Lengths] = {}
    ends: dict[str, NDArray[np.int64]] = {}
    for name in names:
        arrays = [microbatch.lengths[name] for microbatch in microbatches]
        sequences = np.fromiter(map(len, arrays), np.int64, len(arrays))
        flat[name], ends[name] = np.concatenate(arrays), np.cumsum(sequences)
        tokens = _segment_sums(flat[name], ends[name])
        for window in (windows or {}).get(name, ()):
            columns[f"{name}.pairs{MARK}{window.label}"] = _segment_sums(window.pairs_of(flat[name]), ends[name])
        if parts > 1:
            flat[name] = -(-flat[name] // parts)
        columns[f"{name}.shard"] = -(-(parts * _segment_sums(flat[name], ends[name])) // token_divisor)
        columns[f"{name}.tokens"] = tokens
        columns[f"{name}.pairs"] = _segment_sums(flat[name] ** 2, ends[name])
        columns[f"{name}.sequences"] = sequences
    for first, second in permutations(names, 2):
        if np.array_equal(ends[first], ends[second]):
            mirrored = columns.get(f"{second}*{first}.pairs")
            sums = mirrored if mirrored is not None else _segment_sums(flat[first] * flat[second], ends[first])
            columns[f"{first}*{second}.pairs"] = sums
    return columns


def _segment_sums(values: Lengths, ends: NDArray[np.int64]) -> NDArray[np.int64]:
    """Sums of ``values`` over segments [previous end, end); an empty segment sums to 0 (exact in integers)."""
    return np.diff(offsets(values)[ends], prepend=0)
