"""Which configurations a training framework can run: ``framework_rule``, by the table ``RULES``.

Torch's schedules were read in torch 2.13 (``torch.distributed.pipelining.schedules``) and are tested against it. All
else is believed, as of 2026-11: it was written without Megatron-LM's and torchtitan's sources at hand and is of no
particular release; a source says where to look. docs/explanation/grid.md has the same table, and what is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from enum import StrEnum
from typing import NamedTuple

from semu.checks import check_member
from semu.hardware.software import Software
from semu.job import TrainingJob
from semu.job.experts import mixtures
from semu.nn import SelfAttention
from semu.nn.model import ModalityModule, ModalityRole
from semu.nn.rules.attention.shared_heads import ranks_share
from semu.nn.trace.sharding import ContextKind
from semu.parallel.context import Balance
from semu.parallel.segments import OWN_RANKS
from semu.parallel.stage_layers import layer_parts
from semu.searcher.grid.space import Axis, Point, Value
from semu.searcher.grid.splits import shares_of, sizes_of


class Framework(StrEnum):
    """Whose rules configurations obey; ``any``: semu's alone."""

    MEGATRON = "megatron"
    TORCHTITAN = "torchtitan"
    ANY = "any"


NAMES = {Framework.MEGATRON: "Megatron-LM", Framework.TORCHTITAN: "torchtitan"}
"""As people write them."""

TORCH_SCHEDULES = {
    "1f1b": ("1F1B", "Interleaved1F1B"),
    "gpipe": ("GPipe", "LoopedBFS"),
    "interleaved": ("1F1B", "Interleaved1F1B"),
    "looped-bfs": ("GPipe", "LoopedBFS"),
    "interleaved-zb": (None, "InterleavedZeroBubble"),
    "zb-v": (None, "ZBVZeroBubble"),
    "dualpipe-v": (None, "DualPipeV"),
}
"""Schedules that torch has -> its names for one stage per rank and for several (``get_schedule_class``)."""
_IN_A_V = ("zb-v", "dualpipe-v")

Misfit = Callable[[Point, int], str | None]
"""Configuration, microbatches -> what the framework cannot run, as a sentence; None: it can."""


class FrameworkRule(NamedTuple):
    """What a framework asks of a configuration.

    Attributes:
        framework: which. asks: what. source: the option or function of the framework where to look. misfit: of a job.
    """

    framework: Framework
    asks: str
    source: str
    misfit: Callable[[TrainingJob], Misfit]


def own_framework(job: TrainingJob) -> Framework:
    """Megatron-LM where ``training.software`` says so, else any."""
    return Framework.MEGATRON if job.training.software is Software.MEGATRON else Framework.ANY


def framework_of(framework: Framework | str | None, job: TrainingJob) -> Framework:
    """Whose rules hold for a job's configurations.

    Raises:
        ConfigError: an unknown name.
    """
    return own_framework(job) if framework is None else check_member(framework, Framework, "framework")


def framework_values(framework: Framework, job: TrainingJob) -> dict[Axis, Value]:
    """Values of axes that a framework always has and the job has not: torchtitan's FSDP is ZeRO-3."""
    return {Axis.ZERO: 3} if framework is Framework.TORCHTITAN and job.parallel.zero < 2 else {}


def framework_misfits(framework: Framework, job: TrainingJob) -> list[tuple[FrameworkRule, Misfit]]:
    """The rules of a framework, and what of each a job's configurations break. They read fields of a configuration and
    nothing else of it, so that ``columns.answers`` may ask once for all that are alike."""
    return [(rule, rule.misfit(job)) for rule in RULES if rule.framework is framework]


def _even_stages(job: TrainingJob) -> Misfit:
    language = _language_model(job)
    layers, is_named = len(layer_parts(language)), job.parallel.layout is not None

    def _misfit(point: Point, microbatches: int) -> str | None:
        own = sizes_of(point.modules).get(language.name, {}).get("pp") or shares_of(point.shares).get(language.name)
        pp = own if own is not None and point.segments in OWN_RANKS else point.pp
        if is_named or layers % (pp * point.vpp) == 0:
            return None
        return f"{layers} layers of {language.name} do not divide into pp x vpp = {pp} x {point.vpp} stages"

    return _misfit


def _whole_turns(job: TrainingJob) -> Misfit:
    def _misfit(point: Point, microbatches: int) -> str | None:
        if point.vpp == 1 or microbatches % point.pp == 0:
            return None
        return f"{microbatches} microbatches are no multiple of pp = {point.pp}, which vpp > 1 needs"

    return _misfit


def _whole_heads(job: TrainingJob) -> Misfit:
    return _heads(job, lambda heads, tp: heads % tp == 0)


def _shared_heads(job: TrainingJob) -> Misfit:
    return _heads(job, lambda heads, tp: heads % tp == 0 or ranks_share(heads, tp))


def _heads(job: TrainingJob, can_share: Callable[[int, int], bool]) -> Misfit:
    """Query heads that tp divides, and key-value heads that it can share out."""
    found = [item for _, item in _language_model(job).body.named_modules() if isinstance(item, SelfAttention)]
    queries, keys = sorted({item.heads for item in found}), sorted({item.kv_heads for item in found})

    def _misfit(point: Point, microbatches: int) -> str | None:
        odd = [count for count in keys if not can_share(count, point.tp)]
        odd += [count for count in queries if count % point.tp]
        return f"tp = {point.tp} does not divide {odd[0]} heads" if odd else None

    return _misfit


def _full_stages(job: TrainingJob) -> Misfit:
    layers = len(layer_parts(_language_model(job)))

    def _misfit(point: Point, microbatches: int) -> str | None:
        stages = point.pp * point.vpp
        return f"{stages} stages, and {layers} layers" if stages > layers else None

    return _misfit


def _without(key: str, name: str) -> Callable[[TrainingJob], Misfit]:
    """Nothing runs where a setting of ``Training`` is given that the framework has no option for."""

    def _rule(job: TrainingJob) -> Misfit:
        said = None if getattr(job.training, key) is None else f"{name} has no option like training.{key}"
        return lambda point, microbatches: said

    return _rule


def _distributed_optimizer(job: TrainingJob) -> Misfit:
    def _misfit(point: Point, microbatches: int) -> str | None:
        if point.zero < 2 or point.pp == 1:
            return None
        return f"Megatron-LM shards the optimizer alone in a pipeline (ZeRO-1); pp = {point.pp} with ZeRO-{point.zero}"

    return _misfit


def _megatron_schedules(job: TrainingJob) -> Misfit:
    def _misfit(point: Point, microbatches: int) -> str | None:
        if point.schedule not in ("1f1b", "interleaved"):
            return f"Megatron-LM has 1F1B and interleaved 1F1B, no {point.schedule}"
        return None if point.placement == "circular" else f"Megatron-LM deals chunks in turn, not {point.placement}"

    return _misfit


def _sharded_sequences(job: TrainingJob) -> Misfit:
    is_bare = bool(mixtures(job.model)) and not job.parallel.sequence_parallel

    def _misfit(point: Point, microbatches: int) -> str | None:
        return f"experts under tp = {point.tp} without sequence parallelism" if is_bare and point.tp > 1 else None

    return _misfit


def _fully_sharded(job: TrainingJob) -> Misfit:
    def _misfit(point: Point, microbatches: int) -> str | None:
        if point.zero >= 2 or point.dp * point.cp == 1:
            return None
        if point.zero == 1:
            return "torchtitan's FSDP shards parameters and gradients too; it has no ZeRO-1"
        others = [axis for axis in ("tp", "pp", "cp", "ep") if getattr(point, axis) > 1]
        return f"torchtitan replicates (DDP) only without {others[0]}; ZeRO-0 with {others[0]} > 1" if others else None

    return _misfit


def _torch_schedules(job: TrainingJob) -> Misfit:
    def _misfit(point: Point, microbatches: int) -> str | None:
        found = TORCH_SCHEDULES.get(point.schedule, (None, None))[point.vpp > 1]
        if found is None:
            each = "one stage per rank" if point.vpp == 1 else f"{point.vpp} stages per rank"
            return f"torch has no schedule {point.schedule} with {each}"
        placement = "v-shape" if point.schedule in _IN_A_V else "circular"
        return None if point.placement == placement else f"torch's {found} is {placement}, not {point.placement}"

    return _misfit


def _borrowed_ranks(job: TrainingJob) -> Misfit:
    def _misfit(point: Point, microbatches: int) -> str | None:
        etp = point.tp if job.parallel.etp is None else job.parallel.etp
        if point.ep == 1:
            return None
        if etp not in (1, point.tp):
            return f"etp = {etp} is neither 1 nor tp = {point.tp}"
        lent = point.cp if etp == point.tp else point.cp * point.tp
        return f"ep = {point.ep} is no multiple of the {lent} ranks that it borrows" if point.ep % lent else None

    return _misfit


def _ring(job: TrainingJob) -> Misfit:
    def _misfit(point: Point, microbatches: int) -> str | None:
        is_other = point.cp_kind == ContextKind.ALL_TO_ALL.value or job.parallel.cp_inner > 1
        if point.cp > 1 and ContextKind(point.cp_kind).sends_tiles:
            return "torch's context ranks exchange all keys"
        return "torch's context parallelism has no all-to-all over heads" if is_other and point.cp > 1 else None

    return _misfit


def _whole_rows(name: str) -> Callable[[TrainingJob], Misfit]:
    """No framework cuts the keys of a row of attention in training."""

    def _misfit(point: Point, microbatches: int) -> str | None:
        return f"{name} does not split a row of attention" if point.attention_split else None

    return lambda job: _misfit


def _dealt(name: str, policies: Collection[Balance]) -> Callable[[TrainingJob], Misfit]:
    """Context ranks hold what the framework's own load balancers give them."""
    legal = {one.value for one in policies}

    def _misfit(point: Point, microbatches: int) -> str | None:
        if point.cp == 1 or point.cp_balance in legal:
            return None
        return f"{name} does not deal the text to context ranks by {point.cp_balance}"

    return lambda job: _misfit


def _encoder_first(job: TrainingJob) -> Misfit:
    modules = len(job.model.modules)

    def _misfit(point: Point, microbatches: int) -> str | None:
        if point.pp == 1 or modules == 1 or point.segments == "mixed" or (point.segments == "apart" and modules == 2):
            return None
        return f"Megatron-LM does not place {modules} modules as segments = {point.segments}"

    return _misfit


def _chain_of_stages(job: TrainingJob) -> Misfit:
    modules = job.model.modules
    is_chain = all(len(own.sources) <= 1 for own in modules)

    def _misfit(point: Point, microbatches: int) -> str | None:
        if point.pp == 1 or len(modules) == 1 or point.segments == "mixed":
            return None
        if is_chain and point.segments in ("separated", "apart"):
            return None
        return f"torch's stages are one chain; segments = {point.segments} of {len(modules)} modules are none"

    return _misfit


def _whole_sequences(job: TrainingJob) -> Misfit:
    def _misfit(point: Point, microbatches: int) -> str | None:
        is_other = point.cp > 1 and ContextKind(point.cp_kind).sends_tiles
        return "Megatron-LM's context ranks exchange all keys" if is_other else None

    return _misfit


RULES = (
    FrameworkRule(
        Framework.MEGATRON,
        "pp x vpp divides the layers of the language model, unless the run names its stages (`[parallel.layout]`)",
        "`get_num_layers_to_build`; `--decoder-first-pipeline-num-layers`, `--pipeline-model-parallel-layout`",
        _even_stages,
    ),
    FrameworkRule(
        Framework.MEGATRON,
        "with virtual stages, pp divides the microbatches",
        "`forward_backward_pipelining_with_interleaving`",
        _whole_turns,
    ),
    FrameworkRule(
        Framework.MEGATRON,
        "recomputation is none, selective, full, or of some layers; not of every n-th (`training.recompute_every`)",
        "`--recompute-granularity`, `--recompute-method`, `--recompute-num-layers`",
        _without("recompute_every", NAMES[Framework.MEGATRON]),
    ),
    FrameworkRule(
        Framework.MEGATRON,
        "in a pipeline the optimizer alone is sharded (ZeRO-0 or 1)",
        "`--use-distributed-optimizer`; `--use-torch-fsdp2` asks for pp = 1",
        _distributed_optimizer,
    ),
    FrameworkRule(
        Framework.MEGATRON,
        "the schedule is 1F1B, with virtual stages interleaved; rank r has chunks r, r + pp, ...",
        "`get_forward_backward_func`",
        _megatron_schedules,
    ),
    FrameworkRule(
        Framework.MEGATRON,
        "tp divides the query heads, and divides or is a multiple of the key-value heads",
        "`TransformerConfig.__post_init__`: `num_query_groups`, of which older releases ask a multiple of tp",
        _shared_heads,
    ),
    FrameworkRule(
        Framework.MEGATRON,
        "experts under tp > 1 have sequence parallelism",
        "`MoELayer.forward`",
        _sharded_sequences,
    ),
    FrameworkRule(
        Framework.TORCHTITAN,
        "tp divides the query heads and the key-value heads",
        "`apply_tp`: `wq`, `wk` and `wv` are split by columns, whole heads each",
        _whole_heads,
    ),
    FrameworkRule(
        Framework.TORCHTITAN,
        "a stage has a whole layer or more",
        "`pipeline_llama`: stages are lists of whole modules",
        _full_stages,
    ),
    FrameworkRule(
        Framework.TORCHTITAN,
        "recomputation is none, selective, full, or of every n-th layer; not of the first few or in groups "
        "(`training.recompute_layers`)",
        "`activation_checkpoint.mode`, `activation_checkpoint.selective_ac_option`",
        _without("recompute_layers", NAMES[Framework.TORCHTITAN]),
    ),
    FrameworkRule(
        Framework.TORCHTITAN,
        "parameters are sharded (ZeRO-3, or 2), or all are replicated without tp, pp, cp and ep",
        "`data_parallel_shard_degree`, `data_parallel_replicate_degree`, `fsdp_reshard_after_forward`; `apply_ddp`",
        _fully_sharded,
    ),
    FrameworkRule(
        Framework.TORCHTITAN,
        "the schedule and its placement are among torch's",
        "`pipeline_parallel_schedule`; `get_schedule_class`",
        _torch_schedules,
    ),
    FrameworkRule(
        Framework.TORCHTITAN,
        "with experts on ranks of their own, etp is 1 or tp, and ep a multiple of cp (of cp x tp where etp is 1)",
        "`ParallelDims._validate`",
        _borrowed_ranks,
    ),
    FrameworkRule(
        Framework.TORCHTITAN,
        "context parallelism passes or gathers keys and values",
        "`context_parallel_rotate_method`",
        _ring,
    ),
    FrameworkRule(
        Framework.MEGATRON,
        "context ranks hold chunks from both ends of a sequence or of a document (`cp_balance`: zigzag, "
        "document-zigzag)",
        "`get_batch_on_this_cp_rank`; Transformer Engine's `thd_get_partitioned_indices`",
        _dealt(NAMES[Framework.MEGATRON], (Balance.ZIGZAG, Balance.DOCUMENT_ZIGZAG)),
    ),
    FrameworkRule(
        Framework.MEGATRON,
        "rows of attention are whole (`attention_split` is 0)",
        "`DotProductAttention`: no such option",
        _whole_rows(NAMES[Framework.MEGATRON]),
    ),
    FrameworkRule(
        Framework.MEGATRON,
        "modality modules lie in one row (`segments`: mixed), or one encoder on ranks before the language model's "
        "(apart)",
        "`--encoder-pipeline-model-parallel-size`, which releases of 2025 took out again; `examples/multimodal`",
        _encoder_first,
    ),
    FrameworkRule(
        Framework.TORCHTITAN,
        "context ranks hold chunks from both ends, chunks in order, or blocks as PTRR deals them (`cp_balance`: "
        "zigzag, contiguous, snake)",
        "`context_parallel_load_balancer`: headtail, ptrr, none",
        _dealt(NAMES[Framework.TORCHTITAN], (Balance.ZIGZAG, Balance.CONTIGUOUS, Balance.SNAKE)),
    ),
    FrameworkRule(
        Framework.TORCHTITAN,
        "rows of attention are whole (`attention_split` is 0)",
        "`FlexAttentionWrapper`: no such option",
        _whole_rows(NAMES[Framework.TORCHTITAN]),
    ),
    FrameworkRule(
        Framework.TORCHTITAN,
        "modality modules lie in one row (`segments`: mixed), or, where each reads one other, on stages of their own",
        "`module_fqns_per_model_part`: the stages are a chain",
        _chain_of_stages,
    ),
    FrameworkRule(
        Framework.MEGATRON,
        "context ranks exchange all keys and values, or heads for tokens",
        "`--cp-comm-type`",
        _whole_sequences,
    ),
)
"""What the frameworks ask; semu's own rules (whole tensor-parallel heads, experts, sequences, batches) hold for all."""


def _language_model(job: TrainingJob) -> ModalityModule:
    """The backbone; where there is none, the module with the most parameters."""
    modules = job.model.modules
    backbones = [module for module in modules if module.role is ModalityRole.BACKBONE]
    return max(backbones or modules, key=lambda module: module.body.num_parameters())
