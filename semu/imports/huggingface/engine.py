"""``Engine``: what shards parameters, gradients and optimizer states: DistributedDataParallel, FSDP or ZeRO."""

from __future__ import annotations

from dataclasses import field
from typing import Any

from semu.imports.flags import Effect
from semu.imports.settings import Settings
from semu.records import dataclass

HOST_STEP = "the optimizer steps on the host; semu brings the states to the device for it"
HOST_EFFECT = Effect(slower=0.3, faster=0.05)
"""Of a step on the host: its time is that of the host's memory, of which a device's profile says nothing."""
NODE = -1
"""``Engine.group``: sharding groups are the GPUs of a node."""


@dataclass
class Engine:
    """Sharding, and what goes with it.

    Attributes:
        settings: which told it, for messages.
        zero, reshard: as ``[parallel]``. group: ranks of a sharding group; ``NODE``; None: all data-parallel ranks.
        grad_dtype: of gradient buffers and on the wire; None: that of the parameters.
        has_master: parameters have an fp32 copy, whatever type the model was loaded in.
        fsdp: a word of ``training.fsdp``; None: nothing is sharded in the forward.
        autocasts: the model runs under ``torch.autocast``; false: its modules were cast (DeepSpeed).
        overlap: ``[overlap]``. offload: words of ``training.offload``.
        tp, cp, cp_kind: sizes of the other axes; cp_kind None: cp = 1.
        defers: gradients stay whole from the first microbatch to the last, where there are several.
        recompute: whether the engine itself recomputes activations.
        replicas: sharding groups that there are, where their number is told. world: GPUs of the run, where these sizes
            say it.
        copies: ranks that share a second copy of the 16-bit parameters (ZeRO++); 1: there is none.
    """

    settings: Settings
    zero: int = 0
    reshard: bool = True
    group: int | None = None
    grad_dtype: str | None = None
    has_master: bool = False
    fsdp: str | None = None
    autocasts: bool = True
    overlap: dict[str, Any] = field(default_factory=dict)
    offload: tuple[str, ...] = ()
    tp: int = 1
    cp: int = 1
    cp_kind: str | None = None
    defers: bool = False
    recompute: bool = False
    replicas: int = 1
    world: int | None = None
    copies: int = 1

    @property
    def ranks(self) -> int:
        """GPUs of a replica."""
        return self.tp * self.cp


def offload_to_host(engine: Engine, settings: Settings, key: str) -> None:
    """FSDP's offload: parameters and states live on the host, where the optimizer steps."""
    engine.offload = ("weights", "optimizer")
    settings.approximate(key, HOST_STEP, HOST_EFFECT)


def data_parallel(settings: Settings) -> Engine:
    """PyTorch's DistributedDataParallel: everything whole on every rank, gradients reduced behind the last backward."""
    return Engine(settings)
