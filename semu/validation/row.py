"""``Row``: a published training run, as the normalised fields of a runs file describe it.

A row says which model was trained, on what, how it was spread, and what came out. ``None`` means: not published.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from semu.records import dataclass
from semu.simulation.effects.pass_times import PassTimes


class Trust(Enum):
    """How far a row can be believed; the value is the file's word."""

    PRINTED = "A"
    INFERRED = "B"
    SANITY = "C"
    UNUSABLE = "D"
    FORMULA = "formula"

    @property
    def is_scored(self) -> bool:
        """Whether the row's errors count: closed forms do, in activation and static bytes."""
        return self in (Trust.PRINTED, Trust.INFERRED, Trust.FORMULA)


class Scope(Enum):
    """Whose memory was measured."""

    LAST_RANK = "last_rank"
    FIRST_STAGE = "first_stage"
    MAX = "max"


class Measure(Enum):
    """What was measured: bytes in tensors, bytes held by the allocator, all that is taken of the device (nvidia-smi),
    a closed form, or gigabytes in print."""

    ALLOCATED = "allocated"
    RESERVED = "reserved"
    DEVICE = "device"
    ANALYTIC = "analytic"
    PRINTED_GB = "printed_gb"


@dataclass(frozen=True)
class Shape:
    """The transformer of a row.

    Attributes:
        layers, hidden, ffn, heads, kv_heads, head_dim: sizes; ``ffn`` is the width of gate and of up where gated.
        vocab: entries that the tokenizer knows. vocab_padded: rows of the table where the source tells.
        seq_len: tokens of a sequence. positions: rows of a learned position table, None: as many as tokens.
        gated_mlp, tied_embeddings, bias, qkv_bias: as in ``[model.transformer]``; qkv_bias None: as bias.
        activation, norm, position: the file's words.
        dropout: probability, None: the source does not say.
        moe, mla: sizes of experts and of latent attention, None: dense, ordinary attention.
        mtp_layers: layers that predict further tokens.
    """

    layers: int
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    seq_len: int
    gated_mlp: bool
    tied_embeddings: bool
    bias: bool
    norm: str
    position: str
    activation: str | None = None
    qkv_bias: bool | None = None
    vocab_padded: int | None = None
    positions: int | None = None
    dropout: float | None = None
    moe: Mapping[str, object] | None = None
    mla: Mapping[str, object] | None = None
    mtp_layers: int = 0

    @property
    def has_learned_positions(self) -> bool:
        """Whether the row's word for positions is one for a learned table."""
        return self.position in ("learned", "learned_absolute")


NO_TRANSFORMER = Shape(1, 1, 1, 1, 1, 1, 1, 1, True, False, False, "rmsnorm", "none")
"""Stands in a row whose ``run`` says the model."""


@dataclass(frozen=True)
class Row:
    """One run.

    Attributes:
        id, group: names, for reports only. trust: how far to believe it.
        profile: device. gpus, gpus_per_node: how many.
        nvlink_domain: GPUs that NVLink joins over nodes; None: a node's.
        dp, tp, pp, cp, ep, vp: parallel sizes; vp None: not published.
        micro_batch: sequences, None: not published. global_batch: sequences.
        fp8_recipe: how fp8 tensors are scaled, where the row says mxfp8; None: as semu takes it.
        precision, recompute, sharding, schedule: the file's words (``*_kind``); recompute also ``unknown``.
        zero_group: ranks among which ZeRO shards, None: all data-parallel ranks.
        activation_limit: of automatic zero-bubble schedules. etp: tensor parallelism of the experts.
        sequence_parallel: as in ``[parallel]``. overlap: switches by the file's names, None or absent: unknown.
        software, software_date: whose kernels and collectives ran (``megatron``, ``torch``), and the month of the
            release; None: not published.
        attention: first word of the file's remark on the attention kernel, lower case; empty: none.
        attention_kernel: a word of ``training.attention_kernel``, or ``unfused``; None: not published.
        attention_deterministic: whether its backward adds in a fixed order.
        cross_entropy: a word of ``training.cross_entropy``; None: not published.
        moe_dispatcher: a word of ``training.moe_dispatcher``; None: not published.
        drops_tokens: experts take as many rows as balanced routing gives them, and drop the rest (the row's notes).
        gradient_accumulation_fusion: as in ``[training]``; None: not published.
        recompute_modules: what selective recomputation covers; empty: the attention core.
        nic_bytes_per_s: of a GPU, where it differs from the profile's; None: the profile's [byte/s].
        fabric: as in ``[cluster]``; None: the profile's network.
        grad_dtype: first word of the file's remark on the gradients' type; empty: none.
        offloaded_layers: the first layers, whose activations live on the host between their passes; 0: of none.
        compiled: whether ``torch.compile`` made the kernels; None: the source does not say.
        layout: keys of ``[parallel.layout]``, where a file has them; None: none.
        scope, measure: whose memory, and of which kind.
        iteration_time_s, peak_mem_bytes, activation_bytes, static_bytes: what came out.
        lora: ``[model.lora]``; None: every parameter trains. run: tables of a run file that say what the fields of a
            transformer cannot; None: there are none.
        pass_times: of a microbatch on a pipeline rank, mean over the ranks, where the source profiled them.
        remarks: what was taken for fields that the row leaves open, a sentence each.
    """

    id: str
    group: str
    trust: Trust
    shape: Shape
    profile: str
    gpus: int
    gpus_per_node: int
    dp: int
    tp: int
    pp: int
    cp: int
    ep: int
    vp: int | None
    micro_batch: int | None
    global_batch: int
    precision: str
    fp8_recipe: str | None
    recompute: str
    sharding: str
    schedule: str | None
    sequence_parallel: bool
    zero_group: int | None = None
    activation_limit: str | None = None
    etp: int | None = None
    overlap: Mapping[str, object] | None = None
    software: str | None = None
    software_date: str | None = None
    attention: str = ""
    attention_kernel: str | None = None
    attention_deterministic: bool | None = None
    cross_entropy: str | None = None
    moe_dispatcher: str | None = None
    drops_tokens: bool = False
    gradient_accumulation_fusion: bool | None = None
    recompute_modules: tuple[str, ...] = ()
    nic_bytes_per_s: float | None = None
    fabric: str | None = None
    nvlink_domain: int | None = None
    grad_dtype: str = ""
    offloaded_layers: int = 0
    compiled: bool | None = None
    layout: Mapping[str, object] | None = None
    lora: Mapping[str, object] | None = None
    run: Mapping[str, Mapping[str, object]] | None = None
    scope: Scope | None = None
    measure: Measure | None = None
    iteration_time_s: float | None = None
    peak_mem_bytes: float | None = None
    activation_bytes: float | None = None
    static_bytes: float | None = None
    pass_times: PassTimes | None = None
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True)
class BadRow:
    """A row that cannot be read.

    Attributes:
        id: of the row, or its number in the file. group, trust: as far as they can be read, else empty.
        reason: the field and what is wrong with it.
    """

    id: str
    group: str
    trust: str
    reason: str
