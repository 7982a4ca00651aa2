"""``SETUPS``: published training configurations by name; each brings its cluster, parallelism, batch and recompute.

DIP prints tensor and pipeline sizes but neither batch sizes nor the recompute setting, so one rule serves all setups
that publish no batch: microbatches of one item, four per pipeline rank and at least 16 per data-parallel replica.
DIP Table 1 prints the work of an iteration instead, 12.8 PFLOP: its setups have as many items as come nearest to that
(model FLOP: causal attention counted half, nothing that is computed twice). Recompute is full but for lm-7b, and the
optimizer is sharded over the replicas (ZeRO-1) everywhere: all setups fit in memory so.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from types import MappingProxyType

from semu.checks import find_named
from semu.errors import ConfigError
from semu.job import Recompute, Training
from semu.parallel.config import Parallel
from semu.records import dataclass
from semu_models.registry import find_model

VLM_BATCH: Mapping[str, object] = MappingProxyType({"kind": "vlm", "seed": 0})
"""Packed image-text sequences of 8192 tokens (DIP §7.1)."""
T2V_BATCH: Mapping[str, object] = MappingProxyType({"kind": "t2v", "seed": 0})
"""Groups of up to 8 video clips, 16 s together (DIP §7.1)."""
MIXED_BATCH: Mapping[str, object] = MappingProxyType({"kind": "mixed", "seed": 0})
"""Packed sequences of 8192 tokens, of samples of every kind that the model reads."""
TEXT_BATCH: Mapping[str, object] = MappingProxyType({"kind": "text"})
"""Text sequences of ``training.seq_len`` tokens."""


@dataclass(frozen=True)
class Setup:
    """A training configuration that ``semu simulate NAME`` knows.

    Attributes:
        name: lower case.
        model: one of ``semu_models.MODELS``.
        cluster: ``DEVICE:NODESxGPUS``.
        parallel, training: of the job.
        batch: run.toml's ``[batch]``.
        source: where the configuration is published, and what was decided here.
    Raises:
        ConfigError: an unknown model, a cluster without a size, a global batch that does not divide.
    """

    name: str
    model: str
    cluster: str
    parallel: Parallel
    training: Training
    batch: Mapping[str, object]
    source: str

    def __post_init__(self) -> None:
        find_model(self.model, where=f"setup {self.name}.model")
        object.__setattr__(self, "batch", MappingProxyType(copy.deepcopy(dict(self.batch))))
        if self.num_gpus != self.parallel.num_gpus:
            raise ConfigError(
                "the cluster does not have the ranks that the setup needs",
                where=f"setup {self.name}.cluster",
                expected=f"DEVICE:NODESxGPUS with {self.parallel.num_gpus} GPUs ({self.parallel.label()})",
                got=self.cluster,
            )
        per_step = self.parallel.dp * self.training.micro_batch
        if self.training.global_batch % per_step:
            raise ConfigError(
                "the global batch does not divide into microbatches",
                where=f"setup {self.name}.training.global_batch",
                expected=f"a multiple of dp x micro_batch = {per_step}",
                got=self.training.global_batch,
                nearest=max(per_step, self.training.global_batch // per_step * per_step),
            )

    @property
    def num_gpus(self) -> int:
        """GPUs of the cluster; 0 where its text has no size."""
        nodes, _, per_node = self.cluster.rpartition(":")[2].partition("x")
        return int(nodes) * int(per_node) if nodes.isdecimal() and per_node.isdecimal() else 0

    @property
    def num_microbatches(self) -> int:
        """Microbatches of one data-parallel replica in one iteration."""
        return self.training.global_batch // (self.parallel.dp * self.training.micro_batch)


def default_microbatches(pp: int) -> int:
    """Microbatches per replica where none are published: four per pipeline rank, at least 16."""
    return max(16, 4 * pp)


def _training(global_batch: int, seq_len: int | None = None, recompute: Recompute = Recompute.FULL) -> Training:
    return Training(micro_batch=1, global_batch=global_batch, seq_len=seq_len, recompute=recompute)


def _make(name: str, model: str, cluster: str, parallel: Parallel, batch: Mapping[str, object], source: str) -> Setup:
    """A setup with the default number of microbatches."""
    return Setup(
        name, model, cluster, parallel, _training(parallel.dp * default_microbatches(parallel.pp)), batch, source
    )


_LM_7B = Setup(
    "lm-7b",
    "lm-7b",
    "h800:1x8",
    Parallel(tp=2, pp=4),
    _training(73, seq_len=4096, recompute=Recompute.NONE),
    TEXT_BATCH,
    "DIP Table 1; decided here: context 4096 (Llama 2's), 73 sequences (12.82 PFLOP, nearest to the printed 12.8) and "
    "no recompute (it fits without)",
)
_VLM_7B = Setup(
    "vlm-7b",
    "vlm-7b",
    "h800:1x8",
    Parallel(tp=2, pp=4),
    _training(19),
    VLM_BATCH,
    "DIP Table 1 (dynamic data); decided here: 19 packed sequences (12.26 PFLOP, nearest to the printed 12.8: the next "
    "one has many images and makes 13.83) and full recompute (without it the job does not fit)",
)
_GPT3_175B = Setup(
    "gpt3-175b",
    "gpt3-175b",
    "a100-80g:48x8",
    Parallel(dp=4, tp=8, pp=12),
    _training(1536, seq_len=2048),
    TEXT_BATCH,
    "2104.04473 Table 2 (384 A100, 96-way model parallel, global batch 1536, microbatch 1)",
)

_ALL = (
    _LM_7B,
    _VLM_7B,
    _make("vlm-s", "vlm-s", "h800:2x8", Parallel(tp=4, pp=4), VLM_BATCH, "DIP Table 3"),
    _make("vlm-m", "vlm-m", "h800:4x8", Parallel(tp=8, pp=4), VLM_BATCH, "DIP Table 3"),
    _make("vlm-l", "vlm-l", "h800:8x8", Parallel(tp=8, pp=8), VLM_BATCH, "DIP Table 3"),
    _make("t2v-s", "t2v-s", "h800:2x8", Parallel(tp=4, pp=4), T2V_BATCH, "DIP Table 3"),
    _make("t2v-l", "t2v-l", "h800:8x8", Parallel(tp=8, pp=8), T2V_BATCH, "DIP Table 3"),
    _make("vlm-xl-8k", "vlm-xl", "h100:1024x8", Parallel(dp=128, tp=8, pp=8), VLM_BATCH, "DIP Table 6"),
    _make("vlm-xl-16k", "vlm-xl", "h100:2048x8", Parallel(dp=128, tp=8, pp=16), VLM_BATCH, "DIP Table 6"),
    _make("t2v-xl-3k", "t2v-xl", "h100:384x8", Parallel(dp=96, tp=8, pp=4), T2V_BATCH, "DIP Table 6"),
    _make("t2v-xl-6k", "t2v-xl", "h100:768x8", Parallel(dp=96, tp=8, pp=8), T2V_BATCH, "DIP Table 6"),
    _GPT3_175B,
    _make(
        "qwen2-vl-7b",
        "qwen2-vl-7b",
        "h100:1x8",
        Parallel(dp=4, tp=2),
        VLM_BATCH,
        "2409.12191 prints no training setup; decided here: one node, images of 728 px (2704 patches, 676 tokens)",
    ),
    _make(
        "qwen2-audio-7b",
        "qwen2-audio-7b",
        "h100:1x8",
        Parallel(dp=4, tp=2),
        MIXED_BATCH,
        "2407.10759 prints no training setup; decided here: one node, half of the samples speech, half text",
    ),
)

SETUPS: Mapping[str, Setup] = MappingProxyType({setup.name: setup for setup in _ALL})
"""Every shipped setup by name."""


def find_setup(name: str, *, where: str | None = None) -> Setup:
    """The setup of a name.

    Args:
        name: one of ``SETUPS``. where: place of the name, for the error.
    Raises:
        ConfigError: an unknown name, with a 'did you mean'.
    """
    return find_named("setup", name, SETUPS, where=where)
