"""``TrainingLog``: what a training log says, whichever framework wrote it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from enum import Enum

from semu.records import dataclass


class LogFormat(Enum):
    """Who wrote the log."""

    MEGATRON = "Megatron-LM"
    TORCHTITAN = "torchtitan"
    NANOTRON = "nanotron"
    NEMO = "NeMo"
    DEEPSPEED = "DeepSpeed"
    TRAINER = "HuggingFace's Trainer"
    COMPOSER = "Composer"


class LoggedMemory(Enum):
    """What a logged number of bytes is; the value is its name in the log."""

    MAX_ALLOCATED = "max allocated"
    MAX_RESERVED = "max reserved"
    ALLOCATED = "allocated"


@dataclass(frozen=True)
class LoggedIteration:
    """One iteration line, the mean over the iterations since the line before.

    Attributes:
        number: iteration or step. line: of the file, from 1.
        time_s: of an iteration [s], None where the log tells tokens_per_s instead.
        tokens_per_s: per GPU. global_batch: sequences. tflop_per_s: per GPU, as the framework counts FLOP.
    """

    number: int
    line: int
    time_s: float | None = None
    tokens_per_s: float | None = None
    global_batch: int | None = None
    tflop_per_s: float | None = None


@dataclass(frozen=True)
class TrainingLog:
    """The last run that a log holds.

    Attributes:
        format: who wrote it. iterations: in order, one per iteration number.
        memory: (global rank, what) -> most bytes that any line tells; rank None: the lines tell none.
        settings: of the run as far as the log tells them: gpus, global_batch, micro_batch, seq_len, dp, tp, pp, cp, ep.
        notes: what was left out, a sentence each.
    """

    format: LogFormat
    iterations: tuple[LoggedIteration, ...]
    memory: Mapping[tuple[int | None, LoggedMemory], float] = field(default_factory=dict)
    settings: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
