"""How a job is spread over GPUs: ``Parallel``, and which communication may hide: ``Overlap``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import field, fields, replace
from functools import cached_property
from typing import NamedTuple, Self

from semu.checks import check_integer, check_member, check_number, check_switch, check_word, is_integer
from semu.errors import ConfigError
from semu.nn.masked_kernel import TILE_EDGE
from semu.nn.trace.sharding import ContextKind, ShardingStyle
from semu.parallel.axes import ParallelSizes
from semu.parallel.context import Balance, check_balance, check_exchange, sequence_parts
from semu.parallel.layout import PipelineLayout
from semu.parallel.modules import ModuleParallel
from semu.parallel.pipeline import PARTITIONS, TIMED_PARTITIONS
from semu.parallel.segments import OWN_RANKS, check_segments
from semu.records import dataclass

PLACEMENTS = ("circular", "v-shape", "bidirectional", "v-bidirectional")
"""How groups of layers are dealt to pipeline ranks."""
VOCABULARIES = ("ends", "pipeline")
LOSSES = ("head", "towers", "towers-async")
"""Where embedding and head lie."""


@dataclass(frozen=True)
class Overlap:
    """Which communication may hide behind computation (run.toml ``[overlap]``).

    Attributes:
        grad_reduce: gradient reduction runs while the last microbatch's backward still computes.
        param_gather: ZeRO-1's parameter all-gather runs while the first forward computes.
        tensor_parallel: tensor-parallel collectives run beside independent kernels of the same stage
            (weight gradients); false: the rank's compute waits for each of them; None: true under Megatron-LM with
            sequence parallelism, else false (``TrainingJob.overlaps_tensor_parallel``).
        pipeline: P2P sends run beside compute; false: the sender's compute waits (Megatron's 1F1B); None: true where
            ranks have several virtual stages (vpp > 1) and under other schedules than GPipe and 1F1B, else false
            (``TrainingJob.overlaps_sends``).
        expert_parallel: exchanges of experts' tokens hide behind another microbatch: in the steady phase of 1F1B a
            forward stage and the backward stage behind it run as one, layer by layer (Megatron-LM's
            ``--overlap-moe-expert-parallel-comm``; ``semu.compile.combined.layers``).
        delayed_weight_gradients: there, weight gradients run behind the gradients of a layer's inputs, beside further
            exchanges (Megatron-LM's ``--delay-wgrad-compute``).
    """

    grad_reduce: bool = True
    param_gather: bool = True
    tensor_parallel: bool | None = None
    pipeline: bool | None = None
    expert_parallel: bool = False
    delayed_weight_gradients: bool = False

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if value is not None or item.default is not None:
                check_switch(value, f"overlap.{item.name}")


class RankPlace(NamedTuple):
    """Where a pipeline rank lies whose modules have GPUs of their own.

    Attributes:
        first_gpu: of its first replica; the next replica's follow. width: GPUs of a replica.
        first_rank: of the pipeline ranks of its modules.
    """

    first_gpu: int
    width: int
    first_rank: int


DATA_FIRST, PIPELINE_FIRST = "tp-cp-dp-pp", "tp-cp-pp-dp"
"""Orders of ranks, neighbours first."""


@dataclass(frozen=True)
class Parallel(ParallelSizes):
    """Sizes of the parallel axes, and how work and state are shared out on them.

    Attributes:
        dp, tp, pp, vpp, cp, ep, etp: sizes, see ``ParallelSizes``.
        sequence_parallel: shard activations over the sequence between tensor-parallel regions (2205.05198).
        zero: 0 replicates the optimizer, 1 shards it over dp (Megatron's distributed optimizer), 2 | 3 shard
            gradients | parameters too; experts over the ranks that hold the same ones.
        partition: how layers are cut into pipeline stages: balanced by ``"parameters"``; by ``"latency"``, simulated
            forward plus backward, which knows what is frozen; by ``"forward"``, simulated forward alone, as tools do
            that take a backward for a fixed multiple of it; or evenly by ``"layers"``, the embedding with the first and
            the head with the last of them (Megatron-LM's default).
        zero_group: ZeRO-1 shards the optimizer, ZeRO-3 the parameters too, within groups of so many consecutive dp
            ranks, all their context ranks among them; gradients are all-reduced across the groups (Megatron-LM's
            distributed-optimizer instances; HSDP); None: one group of all dp ranks.
        reshard_after_forward: ZeRO-3 frees a block's gathered parameters after its forward and gathers them again
            for its backward (all but the model's last block; in a pipeline all); false: they stay from forward to
            backward, in a pipeline from the chunk's first forward to its last backward, which alone reduces gradients.
        layout: an explicit assignment of layers to stages, a ``PipelineLayout`` or its table; it replaces
            ``partition``.
        plan: extra sharding styles, module-path pattern -> style or its value, for modules that semu does not know,
            e.g. ``{"blocks.*.up": ShardingStyle.COLUMN}``; patterns as in ``fnmatch``, the first that matches wins.
        cp_kind: how context parallelism exchanges keys and values: ``"ring"`` (Megatron-LM's ``p2p``, its default),
            ``"all_gather"``, ``"all_to_all"`` (``a2a``), ``"needed"`` (what a rank's tiles of the text read; a ring
            for other streams), or ``"auto"``: ring, all_gather or needed, the fastest for every microbatch; without
            meaning where cp = 1.
        cp_inner: ranks of the groups between which a ring runs: in them heads are exchanged for tokens (Megatron-LM's
            ``a2a+p2p``); 1: the ring has all context ranks. Without meaning where cp = 1.
        cp_balance: which tokens of the text every context rank holds, a ``Balance`` or its word
            (``semu.masks.balance``).
        cp_block: tokens of a block, where a policy deals blocks: a multiple or a divisor of 128.
        cp_slack: work of the busiest context rank above the mean that the policies ``"local"`` and ``"hybrid"`` allow
            for fewer bytes.
        attention_split: parts of a row's keys that a kernel computes beside one another and adds up in another kernel
            (Cornstarch, 3.3.2.2), in the forward; 0: rows are whole.
        cp_overlap: ``"heads"``: gathered keys and values travel head by head, under the kernels; or ``"none"``.
        cp_gather_heads: ``"kv"``: the heads of keys travel; ``"query"``: they are repeated to all query heads before.
        modules: modality module -> ``ModuleParallel`` or its table, where it differs from the job's, e.g.
            ``{"vit": ModuleParallel(tp=1)}``.
        placement: where the groups of layers lie: ``"circular"``, group g on rank g mod pp, or with vpp >= 2 in a V,
            ``"v-shape"``: rank r has groups r and 2 pp - 1 - r (2405.15362 §3), the first both ends of the
            model, and so on back and forth (a wave); or ``"bidirectional"``: the model twice, rank r has group r of one
            copy and group pp - 1 - r of the other, each with half the microbatches (Chimera, 2107.06925 §3.1); or
            ``"v-bidirectional"``: twice, either copy in a V (FlexPipe §7.1). ``layout.ranks`` says it group by group.
        segments: how modality modules lie over the pipeline ranks (DIP §3.1): ``"mixed"``, all their layers in one row,
            cut where ``partition`` balances; ``"separated"``, each fills vpp segments of pp stages of its own, so
            that every rank holds chunks of every module; ``"apart"``, each on pipeline ranks of its own;
            ``"colocated"``, so too, but all encoders one after another on the same ranks; ``"replicated"``, all
            encoders on every pipeline rank of the other modules, which read what their own rank makes (Cornstarch
            §3.3). Under ``"apart"`` and ``"colocated"`` a module's ``gpus`` give it GPUs of its own.
        rank_order: how ranks lie on GPUs, neighbours first: ``"tp-cp-dp-pp"``, Megatron-LM's, or ``"tp-cp-pp-dp"``, its
            ``--use-tp-pp-dp-mapping``, in which a replica's pipeline ranks are neighbours.
        shares: modality module -> how many of the vpp segments (separated) or pp ranks (apart, colocated: of all
            encoders the same) it has; empty: as ``partition`` balances best.
        vocabulary: where embedding and head lie: ``"ends"``, on the first and the last stage, or ``"pipeline"``, split
            over the vocabulary among all tp x pp ranks of a replica, which run them together (the MLLM placement of
            FlexPipe, §7.1 and Fig. 1).
        loss: where a module that joins several towers runs, a contrastive loss: ``"head"``, on a rank that their
            features are sent to, or ``"towers"``, on the last ranks of all towers, which gather one another's features
            and run it together (DistMM-Pipe; FlexPipe Fig. 3), or ``"towers-async"``: the same ranks send one another
            their features while they go on with other stages, and each runs it when all have come (FlexPipe §7.5).
    """

    sequence_parallel: bool = True
    zero: int = 1
    partition: str = "parameters"
    plan: Mapping[str, ShardingStyle] = field(default_factory=dict)
    zero_group: int | None = None
    reshard_after_forward: bool = True
    layout: PipelineLayout | None = None
    cp_kind: ContextKind | str = ContextKind.RING
    modules: Mapping[str, ModuleParallel] = field(default_factory=dict)
    placement: str = "circular"
    segments: str = "mixed"
    shares: Mapping[str, int] = field(default_factory=dict)
    rank_order: str = DATA_FIRST
    cp_inner: int = 1
    cp_balance: Balance | str = Balance.ZIGZAG
    cp_block: int = TILE_EDGE
    cp_slack: float = 0.1
    attention_split: int = 0
    cp_overlap: str = "none"
    cp_gather_heads: str = "kv"
    vocabulary: str = "ends"
    loss: str = "head"

    def __post_init__(self) -> None:
        self.check_sizes()
        self._read_modules()
        if not is_integer(self.zero) or self.zero not in (0, 1, 2, 3):
            raise ConfigError("unknown ZeRO stage", where="parallel.zero", expected="0, 1, 2 or 3", got=self.zero)
        for name in ("sequence_parallel", "reshard_after_forward"):
            check_switch(getattr(self, name), f"parallel.{name}")
        self._check_zero_group()
        check_word(self.partition, PARTITIONS, "way to cut layers into stages", "parallel.partition")
        check_word(self.rank_order, (DATA_FIRST, PIPELINE_FIRST), "order of ranks", "parallel.rank_order")
        self._check_placement()
        if self.layout is not None:
            self._set_layout(PipelineLayout.of(self.layout))
        shares = check_segments(
            self.segments,
            self.shares,
            vpp=self.vpp,
            has_layout=self.layout is not None,
            partition_by=self.partition,
        )
        object.__setattr__(self, "shares", shares)

        kind = check_member(self.cp_kind, ContextKind, "parallel.cp_kind", "kind of context parallelism")
        object.__setattr__(self, "cp_kind", kind)
        self._check_levels()
        balance = check_balance(self.cp_balance, self.cp_block, self.attention_split)
        object.__setattr__(self, "cp_slack", check_number(self.cp_slack, "parallel.cp_slack", most=1e6))
        object.__setattr__(self, "cp_balance", balance)
        check_exchange(self.cp, kind.value, balance, self.cp_overlap, self.cp_gather_heads, self.cp_inner)
        self._check_modules()
        check_word(self.vocabulary, VOCABULARIES, "place of embedding and head", "parallel.vocabulary")
        check_word(self.loss, LOSSES, "place of a loss of several towers", "parallel.loss")
        object.__setattr__(self, "plan", {pattern: _style(pattern, style) for pattern, style in self.plan.items()})

    def _check_levels(self) -> None:
        check_integer(self.cp_inner, "parallel.cp_inner", "a number of ranks")
        if self.cp_inner > 1 and ContextKind(self.cp_kind) is not ContextKind.RING:
            raise ConfigError(
                "only a ring runs between groups of context ranks",
                where="parallel.cp_inner",
                expected='cp_kind = "ring", or 1',
                got=self.cp_inner,
                nearest=1,
            )
        if self.cp > 1 and self.cp % self.cp_inner:
            raise ConfigError(
                f"cp = {self.cp} does not divide into groups of {self.cp_inner}",
                where="parallel.cp_inner",
                expected=f"a divisor of cp = {self.cp}",
                got=self.cp_inner,
                nearest=max(n for n in range(1, min(self.cp, self.cp_inner) + 1) if self.cp % n == 0),
            )
        if self.cp_inner > 1 and self.modules:
            raise ConfigError(
                "groups of context ranks with modules that have sizes of their own are not modelled by this version",
                where="parallel.cp_inner",
                expected="1, or no [parallel.modules]",
                got=self.cp_inner,
                nearest=1,
            )

    @property
    def has_context_levels(self) -> bool:
        """Whether a ring runs between groups of context ranks."""
        return 1 < self.cp_inner < self.cp

    def _check_placement(self) -> None:
        check_word(self.placement, PLACEMENTS, "placement of the groups of layers", "parallel.placement")
        if self.copies > 1:
            self._check_copies()
        if self.placement.startswith("v-") and self.vpp < 2:
            raise ConfigError(
                "a V-shaped placement has several groups of layers on each rank",
                where="parallel.vpp",
                expected=">= 2",
                got=self.vpp,
                nearest=2,
            )

    def _check_copies(self) -> None:
        """Two copies of the model in opposite directions: one group of layers of each on every rank, or a V."""
        for name, expected, fits, nearest in (
            ("pp", "an even number of ranks, on which the two copies interlock", self.pp % 2 == 0, self.pp + 1),
            (
                "vpp",
                "1: every rank holds one group of layers of each copy; or a v-bidirectional placement",
                self.vpp == 1 or self.placement == "v-bidirectional",
                1,
            ),
            ("zero", "0 or 1", self.zero <= 1, 1),
            ("zero_group", "no sharding groups", self.zero_group is None, None),
            ("ep", "1", self.ep == 1, 1),
            ("etp", f"tp = {self.tp}", self.expert_tensor_ranks == self.tp, self.tp),
            ("segments", "mixed", self.segments == "mixed", "mixed"),
            ("modules", "one parallelism for all modules", not self.modules, None),
        ):
            if not fits:
                raise ConfigError(
                    f"{name} does not go with a bidirectional placement, the model twice in opposite directions",
                    where=f"parallel.{name}",
                    expected=expected,
                    got=getattr(self, name) if name != "modules" else ", ".join(self.modules),
                    nearest=nearest,
                )

    def _set_layout(self, layout: PipelineLayout) -> None:
        """An empty layout is none."""
        if layout == PipelineLayout():
            object.__setattr__(self, "layout", None)
            return
        if self.partition in TIMED_PARTITIONS:
            raise ConfigError(
                f"a layout leaves nothing to balance by {self.partition}",
                where="parallel.partition",
                expected="no partition beside [parallel.layout]",
                got=self.partition,
            )
        layout.check_stages(self.pp, self.vpp)
        if layout.ranks is not None and self.placement != "circular":
            raise ConfigError(
                "the groups of layers are placed twice",
                where="parallel.layout.ranks",
                expected=f"no ranks beside parallel.placement = {self.placement}",
                got=list(layout.ranks),
            )
        object.__setattr__(self, "layout", layout)

    def _read_modules(self) -> None:
        if not isinstance(self.modules, Mapping):
            raise ConfigError(
                "not a table of modules", where="parallel.modules", expected="module -> sizes", got=repr(self.modules)
            )
        modules = {name: ModuleParallel.of(name, value) for name, value in self.modules.items()}
        object.__setattr__(self, "modules", modules)

    def _check_modules(self) -> None:
        """The sizes of every module fit into those of the job."""
        for name, sizes in self.modules.items():
            if sizes.gpus is not None:
                self._check_own_gpus(name)
            if sizes.gpus is not None or not self.has_own_gpus:  # else its GPUs are still to be found
                sizes.sizes(name, self.sizes, has_ranks=self.segments in OWN_RANKS)

    def _check_own_gpus(self, name: str) -> None:
        """What goes with a module on GPUs of its own."""
        for key, fits, expected, nearest in (
            ("segments", self.segments in OWN_RANKS, " or ".join(OWN_RANKS), OWN_RANKS[0]),
            ("rank_order", self.rank_order == DATA_FIRST, DATA_FIRST, DATA_FIRST),
            ("vpp", self.vpp == 1, 1, 1),
            ("vocabulary", self.vocabulary == "ends", "ends", "ends"),
            ("loss", self.loss == "head", "head", "head"),
        ):
            if not fits:
                raise ConfigError(
                    f"GPUs of {name}'s own do not go with {key} = {getattr(self, key)}",
                    where=f"parallel.{key}",
                    expected=f"{expected}, or no parallel.modules.{name}.gpus",
                    got=getattr(self, key),
                    nearest=nearest,
                )

    @property
    def has_own_gpus(self) -> bool:
        """Whether modality modules have GPUs of their own (``semu.parallel.own_gpus``)."""
        return bool(self.modules) and any(module.gpus is not None for module in self.modules.values())

    @cached_property
    def rank_places(self) -> tuple[RankPlace, ...]:
        """Where every pipeline rank lies, of modules that have GPUs of their own; ``on_own_gpus`` has found them."""
        found: dict[int, RankPlace] = {}
        gpu = 0
        for module in sorted(self.modules.values(), key=lambda own: own.first_rank or 0):
            first, pp, gpus = module.first_rank or 0, module.pp or 1, module.gpus or 0
            if first in found:  # another module has the same ranks
                continue
            for number in range(pp):
                found[first + number] = RankPlace(gpu + number * (gpus // pp), gpus // (pp * self.dp), first)
            gpu += gpus
        return tuple(found.values())

    @property
    def rank_widths(self) -> tuple[int, ...]:
        """GPUs of a replica on every pipeline rank."""
        if self.has_own_gpus:
            return tuple(place.width for place in self.rank_places)
        return (self.replica_gpus,) * self.pp

    @property
    def num_gpus(self) -> int:
        """GPUs that the job needs: dp x cp x tp x pp, or those of its modules."""
        if not self.has_own_gpus:
            return super().num_gpus
        if any(module.first_rank is None for module in self.modules.values()):  # the model says who shares GPUs
            return sum(module.gpus or 0 for module in self.modules.values())
        return sum(place.width * self.dp for place in self.rank_places)

    def on(self, num_gpus: int) -> Self:
        """As ``ParallelSizes.on``; replicas of modules on GPUs of their own are found with the model."""
        return self if self.has_own_gpus else super().on(num_gpus)

    def of_module(self, name: str) -> Self:
        """The parallelism of one modality module: on the same GPUs and pipeline ranks, or on its own, with the module's
        sizes."""
        module = self.modules.get(name)
        if module is None:
            return self if not self.modules else replace(self, modules={})
        dp, cp, tp = module.sizes(name, self.sizes, has_ranks=True)
        is_split = self.sequence_parallel if module.sequence_parallel is None else module.sequence_parallel
        found = replace(self, dp=dp, cp=cp, tp=tp, sequence_parallel=is_split, modules={})
        return found if module.gpus is None else replace(found, pp=module.pp or 1, segments="mixed", shares={})

    def item_groups(self, name: str) -> int:
        """Groups over which the items of a microbatch are spread in a module: 1 where its sizes are the job's."""
        return self.of_module(name).replicas // self.replicas

    def _check_zero_group(self) -> None:
        size = self.zero_group
        if size is None:
            return
        if self.zero not in (1, 3):
            raise ConfigError(
                f"sharding groups are of ZeRO-1 and ZeRO-3, and zero = {self.zero}",
                where="parallel.zero_group",
                expected="zero = 1 or 3, or no zero_group",
                got=size,
            )
        if not is_integer(size) or size < 2 or self.dp % size:
            divisors = [n for n in range(2, self.dp + 1) if self.dp % n == 0]
            has_nearest = isinstance(size, int) and divisors
            raise ConfigError(
                f"dp = {self.dp} does not divide into sharding groups of {size}",
                where="parallel.zero_group",
                expected=f"a divisor of dp = {self.dp}, >= 2",
                got=size,
                nearest=min(divisors, key=lambda n: abs(n - int(size))) if has_nearest else None,
            )

    @property
    def stage_layout(self) -> PipelineLayout | None:
        """What decides the stages; None: they are balanced by ``partition``."""
        if self.layout is None and self.partition == "layers":
            return PipelineLayout()
        return self.layout

    @property
    def cuts_by_time(self) -> bool:
        """Whether the stages depend on simulated times."""
        return self.layout is None and self.partition in TIMED_PARTITIONS

    @property
    def spreads_vocabulary(self) -> bool:
        """Whether embedding and head are split over the pipeline ranks."""
        return self.vocabulary == "pipeline" and self.pp > 1

    @property
    def gathers_towers(self) -> bool:
        """Whether the last ranks of towers all run what joins them."""
        return self.loss != "head" and self.pp > 1

    @property
    def towers_meet(self) -> bool:
        """Whether the last ranks of towers begin together what joins them; else they send one another features."""
        return self.loss == "towers" and self.pp > 1

    @property
    def shard_ranks(self) -> int:
        """Ranks over which ZeRO shards."""
        groups = 1 if self.zero_group is None else self.replicas // self.zero_group
        return self.gradient_ranks // groups

    @property
    def copies(self) -> int:
        """Copies of the model in a pipeline: 2 under a bidirectional placement, else 1."""
        return 2 if self.placement.endswith("bidirectional") else 1

    @property
    def gradient_ranks(self) -> int:
        """Ranks over which gradients are reduced: data x context (every context rank sees part of each sequence), twice
        as many where the model is there twice (2107.06925 §3.1)."""
        return self.data_ranks * self.copies

    @property
    def is_sharded_in_groups(self) -> bool:
        """Whether there are several sharding groups."""
        return self.shard_ranks < self.gradient_ranks

    @property
    def expert_tensor_ranks(self) -> int:
        """Ranks that every expert is split over: where ``etp`` is left open, tp where ranks are left to share experts
        out (Megatron-LM's default), else 1, as under FSDP."""
        if self.etp is not None:
            return self.etp
        return 1 if self.zero == 3 or self.stage_gpus % (self.ep * self.tp) else self.tp

    @property
    def expert_data_ranks(self) -> int:
        """Ranks that hold the same experts: dp x cp x tp / (ep x etp) (Megatron-LM, ``parallel_state``)."""
        return self.stage_gpus // (self.ep * self.expert_tensor_ranks)

    @property
    def expert_shard_ranks(self) -> int:
        """Ranks over which ZeRO shards experts, of a sharding group where there are any (torchtitan's ``efsdp``)."""
        return self.shard_ranks * self.tp // (self.ep * self.expert_tensor_ranks)

    @property
    def token_divisor(self) -> int:
        """What the number of tokens of a stream must be a multiple of: tp, with context parallelism 2 x cp x tp
        (streams are padded to it); where tp x pp ranks share the vocabulary, also so many that rings of these ranks
        send whole bytes of an fp32 number a token."""
        divisor = self.tp * self.sequence_parts
        if self.spreads_vocabulary:
            ranks = self.tp * self.pp
            return math.lcm(divisor, self.cp * ranks // math.gcd(ranks, 8))
        return divisor

    @property
    def context_kind(self) -> ContextKind:
        """``cp_kind`` as a ``ContextKind``; a group of all context ranks leaves no ring."""
        return ContextKind.ALL_TO_ALL if self.cp_inner == self.cp > 1 else ContextKind(self.cp_kind)

    @property
    def sequence_parts(self) -> int:
        """Chunks into which context parallelism cuts every sequence (``semu.parallel.context``)."""
        return sequence_parts(self.cp)


_PLAN_STYLES = (ShardingStyle.REPLICATED, ShardingStyle.COLUMN, ShardingStyle.ROW, ShardingStyle.VOCABULARY)


def _style(pattern: str, style: ShardingStyle | str) -> ShardingStyle:
    value = style.value if isinstance(style, ShardingStyle) else style
    legal = [member.value for member in _PLAN_STYLES]
    return ShardingStyle(check_word(value, legal, "sharding style", f"parallel.plan[{pattern!r}]"))
