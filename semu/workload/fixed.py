"""Batches whose samples are all alike: ``FixedBatch``, a sequence of one length in each stream."""

from __future__ import annotations

from dataclasses import fields

from semu.checks import check_count
from semu.errors import ConfigError
from semu.records import dataclass
from semu.workload.batch import AbstractBatch, Microbatch, check_request


@dataclass(frozen=True)
class FixedBatch(AbstractBatch):
    """Equal samples, e.g. latents of one resolution with a caption each.

    Attributes:
        text, vision, vision_tokens, video, audio, audio_tokens: length of a sample's sequence in that stream [tokens],
            >= 1; None: samples have nothing there.
    Raises:
        ConfigError: a length below 1, no stream at all.
    """

    text: int | None = None
    vision: int | None = None
    vision_tokens: int | None = None
    video: int | None = None
    audio: int | None = None
    audio_tokens: int | None = None

    def __post_init__(self) -> None:
        for name, length in self._lengths().items():
            check_count(length, f"batch.{name}")
        if not self._lengths():
            raise ConfigError(
                "samples without a stream", where="batch", expected="at least one of " + ", ".join(STREAMS)
            )

    def _lengths(self) -> dict[str, int]:
        return {name: length for name in STREAMS if (length := getattr(self, name)) is not None}

    def microbatches(self, count: int, micro_batch: int, seq_len: int | None = None) -> list[Microbatch]:
        """``count`` times ``micro_batch`` samples; ``seq_len``, where given, is the length of the text."""
        lengths = self._lengths()
        if "text" in lengths and seq_len is not None:
            lengths["text"] = seq_len
        check_request(count, micro_batch, seq_len)
        return [Microbatch({k: (n,) * micro_batch for k, n in lengths.items()}, samples=micro_batch)] * count

    @property
    def input_streams(self) -> tuple[str, ...]:
        """The streams that have a length, but for what encoders make."""
        return tuple(name for name in self._lengths() if not name.endswith("_tokens"))

    @property
    def default_seq_len(self) -> int | None:
        """``text``."""
        return self.text

    def describe(self) -> dict[str, object]:
        """Kind and lengths."""
        return {"kind": "fixed", **self._lengths()}


STREAMS = tuple(field.name for field in fields(FixedBatch))
"""Streams that a sample may have."""
fixed_batch = FixedBatch
